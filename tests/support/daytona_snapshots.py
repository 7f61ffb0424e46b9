"""The snapshots of the server that stands in for Daytona, and the object store with their contexts."""

from __future__ import annotations

import asyncio
import posixpath
import shlex
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from e2b_dockerfile_utils import parse_dockerfile_ast
from image_build import Builder, BuildFailed, Image, forget, unpack

#: What one may write to the object store with.
ACCESS = {"accessKey": "AKIALOOPBACK", "secret": "s" * 40, "sessionToken": "t" * 40}


@dataclass
class Snapshot:
    """A snapshot, and its build."""

    name: str
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    state: str = "building"
    lines: list[str] = field(default_factory=list)
    reason: str | None = None
    image: Image | None = None

    def document(self) -> dict[str, Any]:
        """As the control API says it."""
        moment = "2026-01-01T00:00:00Z"
        return {
            "id": self.id, "general": False, "name": self.name, "state": self.state, "size": 1,
            "entrypoint": None, "cpu": 1, "gpu": 0, "mem": 1, "disk": 3, "errorReason": self.reason,
            "createdAt": moment, "updatedAt": moment, "lastUsedAt": None, "sourceSandboxId": None,
        }  # fmt: skip


class Snapshots:
    """All snapshots of the account."""

    def __init__(self) -> None:
        self.by_name = {"base": Snapshot("base", state="active", image=Image())}
        self.started: list[str] = []
        #: Seconds that each build takes at least.
        self.slow = 0.0
        self._store = Path(tempfile.mkdtemp(prefix="daytona-snapshots-"))
        self._uploads: dict[str, dict[int, bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def routes(self) -> list[web.RouteDef]:
        """What is to be added to the server."""
        return [
            web.post("/api/snapshots", self._create),
            web.get("/api/snapshots/{snapshot}", self._get),
            web.delete("/api/snapshots/{snapshot}", self._delete),
            web.post("/api/snapshots/{snapshot}/activate", self._activate),
            web.get("/api/snapshots/{snapshot}/build-logs-url", self._logs_url),
            web.get("/api/build-logs/{snapshot}", self._logs),
            web.get("/api/object-storage/push-access", self._access),
            web.route("*", "/s3/{bucket}/{organization}/{hash}/context.tar", self._object),
        ]

    async def close(self) -> None:
        """Remove everything."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        forget(self._store)

    def image(self, name: str | None) -> Image | None:
        """What a sandbox of a snapshot begins with; without a name, of the default snapshot."""
        found = self.by_name.get(name or "base")
        return found.image if found is not None and found.state == "active" else None

    def _find(self, request: web.Request) -> Snapshot:
        wanted = request.match_info["snapshot"]
        for found in self.by_name.values():
            if wanted in (found.id, found.name):
                return found
        text = '{"statusCode": 404, "message": "Snapshot not found"}'
        raise web.HTTPNotFound(text=text, content_type="application/json")

    async def _create(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body["name"] in self.by_name:
            raise web.HTTPConflict(text='{"message": "exists"}', content_type="application/json")
        snapshot = self.by_name[body["name"]] = Snapshot(body["name"])
        self.started.append(body["name"])
        task = asyncio.create_task(asyncio.to_thread(self._build, snapshot, body["buildInfo"]))
        self._tasks.add(task)
        return web.json_response(snapshot.document())

    async def _get(self, request: web.Request) -> web.Response:
        return web.json_response(self._find(request).document())

    async def _delete(self, request: web.Request) -> web.Response:
        del self.by_name[self._find(request).name]
        return web.Response()

    async def _activate(self, request: web.Request) -> web.Response:
        self._find(request).state = "active"
        return await self._get(request)

    async def _logs_url(self, request: web.Request) -> web.Response:
        url = f"http://{request.host}/api/build-logs/{self._find(request).id}"
        return web.json_response({"url": url})

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        snapshot = self._find(request)
        response = web.StreamResponse()
        await response.prepare(request)
        sent = 0
        while sent < len(snapshot.lines) or snapshot.state == "building":
            for line in snapshot.lines[sent:]:
                await response.write(f"{line}\n".encode())
                sent += 1
            await asyncio.sleep(0.05)
        return response

    # -- the build -------------------------------------------------------------------------------

    def _build(self, snapshot: Snapshot, info: dict[str, Any]) -> None:
        time.sleep(self.slow)
        context = unpack([self._store / name for name in info.get("contextHashes") or []])
        builder = Builder(Image())
        try:
            for row in parse_dockerfile_ast(info["dockerfileContent"]).instructions:
                snapshot.lines.append(f"{row.name} {' '.join(row.args)}")
                self._step(builder, row, context, snapshot)
        except BuildFailed as error:
            builder.abandon()
            snapshot.reason = str(error)
            snapshot.state = "build_failed"
            return
        finally:
            forget(context)
        snapshot.image = builder.finish(self._store / f"image-{snapshot.id}", None)
        snapshot.state = "active"

    def _step(self, builder: Builder, row: Any, context: Path, snapshot: Snapshot) -> None:
        match row.name:
            case "RUN":
                snapshot.lines += builder.run(shlex.join(row.args) if row.json else row.args[0])
            case "COPY" | "ADD":
                words = row.args if row.json else [word.strip("\"'") for word in row.args]
                modes = [flag.partition("=")[2] for flag in row.flags if flag.startswith("--chmod=")]
                sources = [posixpath.normpath(word) for word in words[:-1]]
                builder.copy(context, sources, words[-1], mode=int(modes[0], 8) if modes else None)
            case "ENV":
                builder.env |= dict(zip(row.args[::3], row.args[1::3], strict=True))
            case "USER":
                builder.user = row.args[0]
            case "WORKDIR":
                builder.enter(row.args[0])

    # -- the object store, as S3 has it ----------------------------------------------------------

    async def _access(self, request: web.Request) -> web.Response:
        more = {"organizationId": "o", "bucket": "contexts", "region": "us-1"}
        return web.json_response({**ACCESS, **more, "storageUrl": f"http://{request.host}/s3"})

    async def _object(self, request: web.Request) -> web.Response:
        if f"Credential={ACCESS['accessKey']}/" not in request.headers.get("authorization", ""):
            raise web.HTTPForbidden
        path = self._store / request.match_info["hash"]
        upload = request.query.get("uploadId")
        if request.method == "HEAD":
            if not path.exists():
                raise web.HTTPNotFound
            size = str(path.stat().st_size)
            return web.Response(headers={"content-length": size, "etag": '"x"', **_modified()})
        if request.method == "POST" and "uploads" in request.query:
            name = uuid.uuid4().hex
            self._uploads[name] = {}
            return _xml(f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId>", "Initiate")
        if request.method == "PUT" and upload is not None:
            self._uploads[upload][int(request.query["partNumber"])] = await request.read()
            return web.Response(headers={"etag": '"part"'})
        if request.method == "POST" and upload is not None:
            parts = self._uploads.pop(upload)
            path.write_bytes(b"".join(parts[number] for number in sorted(parts)))
            return _xml('<CompleteMultipartUploadResult><ETag>"x"</ETag>', "Complete")
        if request.method == "PUT":
            path.write_bytes(await request.read())
            return web.Response(headers={"etag": '"x"'})
        raise web.HTTPMethodNotAllowed(request.method, ["HEAD", "PUT", "POST"])


def _modified() -> dict[str, str]:
    return {"last-modified": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())}


def _xml(text: str, verb: str) -> web.Response:
    whole = f'<?xml version="1.0"?>{text}</{verb}MultipartUploadResult>'
    return web.Response(text=whole, content_type="application/xml")
