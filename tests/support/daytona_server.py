"""A server on loopback that speaks the protocols of Daytona's control API and of its toolbox.

Enough for what the library does for a box: create, list, get, start, label, delete and keep sandboxes,
build snapshots and look them up (see `daytona_snapshots`), run commands in sessions and follow their
output (a websocket), and move files. Sandboxes really run commands (see `jail`). It is made with
aiohttp, which the library brings along.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
import time
import uuid
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import WSCloseCode, web
from daytona_snapshots import Snapshots
from image_build import Image
from jail import PATH, Jail

KEY = "dtn_" + "0" * 40

#: What precedes each piece of a stream in the websocket.
STDOUT, STDERR = b"\1\1\1", b"\2\2\2"


class Command:
    """A command of a session, with all of its output."""

    def __init__(self, process: asyncio.subprocess.Process, line: str) -> None:
        self.id = uuid.uuid4().hex[:8]
        self.line = line
        self.process = process
        self.output: list[bytes] = []
        self.over = False
        self.changed = asyncio.Condition()
        self._work = asyncio.create_task(self._collect())

    async def _collect(self) -> None:
        await asyncio.gather(self._pump(self.process.stdout, STDOUT), self._pump(self.process.stderr, STDERR))
        await self.process.wait()
        async with self.changed:
            self.over = True
            self.changed.notify_all()

    async def _pump(self, stream: asyncio.StreamReader | None, prefix: bytes) -> None:
        assert stream is not None
        while data := await stream.read(32768):
            async with self.changed:
                self.output.append(prefix + data)
                self.changed.notify_all()

    async def follow(self, socket: web.WebSocketResponse) -> None:
        """Send all output, from its beginning to its end."""
        sent = 0
        while True:
            async with self.changed:
                while len(self.output) == sent and not self.over:
                    await self.changed.wait()
                pieces, over = self.output[sent:], self.over
            for piece in pieces:
                await socket.send_bytes(piece)
            sent += len(pieces)
            if over and sent == len(self.output):
                return


class Sandbox:
    """A sandbox as the control API knows it."""

    def __init__(self, body: dict[str, Any], origin: str, image: Image) -> None:
        self.id = str(uuid.uuid4())
        self.body = body
        self.origin = origin
        self.env = {**image.env, **(body.get("env") or {})}
        self.jail = Jail(Path(tempfile.mkdtemp(prefix="daytona-")), image.root)
        self.state = "started"
        self.begun = time.time()
        self.sessions: dict[str, dict[str, Command]] = {}
        self.sockets: set[web.WebSocketResponse] = set()
        self.active = time.time()

    def document(self) -> dict[str, Any]:
        body = self.body
        return {
            "id": self.id, "organizationId": "o", "name": body.get("name") or self.id,
            "snapshot": body.get("snapshot") or "default", "user": "root", "env": body.get("env") or {},
            "labels": body.get("labels") or {}, "public": False, "networkBlockAll": False, "kvm": False,
            "target": body.get("target") or "us", "cpu": 1, "gpu": 0, "memory": 1, "disk": 3,
            "state": self.state, "desiredState": self.state, "autoStopInterval": body.get("autoStopInterval"),
            "createdAt": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(self.begun)),
            "toolboxProxyUrl": f"{self.origin}/toolbox",
        }  # fmt: skip


def refused(status: int, message: str) -> web.Response:
    """An answer with an error."""
    return web.json_response({"statusCode": status, "message": message}, status=status)


class DaytonaServer:
    """The server. `faults` maps the beginning of a path to statuses that are answered first.

    Use it as a context manager, and `environment` for the library. An auto-stop interval of n
    minutes ends a sandbox after n times `minute` seconds without activity.
    """

    def __init__(self, minute: float = 60.0) -> None:
        self.sandboxes: dict[str, Sandbox] = {}
        self.snapshots = Snapshots()
        self.faults: dict[str, list[int]] = {}
        self.requests: Counter[tuple[str, str]] = Counter()
        self.minute = minute
        self.origin = ""
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(
            target=self._loop.run_until_complete, args=(self._main(),), daemon=True
        )

    @property
    def environment(self) -> dict[str, str]:
        return {"DAYTONA_API_URL": f"{self.origin}/api", "DAYTONA_API_KEY": KEY, "DAYTONA_TARGET": "us"}

    def __enter__(self) -> DaytonaServer:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    def kill(self, sandbox_id: str) -> None:
        """End a sandbox as if the vendor did. From any thread but the server's."""
        asyncio.run_coroutine_threadsafe(self._destroy(sandbox_id), self._loop).result()

    async def _main(self) -> None:
        app = web.Application(middlewares=[self._middleware])
        app.add_routes(
            [
                web.post("/api/sandbox", self._create),
                web.get("/api/sandbox", self._list),
                web.get("/api/sandbox/{id}", self._get),
                web.delete("/api/sandbox/{id}", self._delete),
                web.post("/api/sandbox/{id}/last-activity", self._activity),
                web.post("/api/sandbox/{id}/start", self._start),
                web.put("/api/sandbox/{id}/labels", self._label),
                *self.snapshots.routes(),
                web.post("/toolbox/{id}/process/session", self._session),
                web.delete("/toolbox/{id}/process/session/{session}", self._end_session),
                web.post("/toolbox/{id}/process/session/{session}/exec", self._exec),
                web.get("/toolbox/{id}/process/session/{session}/command/{command}/logs", self._logs),
                web.post("/toolbox/{id}/process/session/{session}/command/{command}/input", self._input),
                web.post("/toolbox/{id}/files/bulk-upload", self._upload),
                web.post("/toolbox/{id}/files/bulk-download", self._download),
            ]
        )
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=256)
        await site.start()
        self.origin = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._ready.set()
        while not self._stop.is_set():
            for sandbox in list(self.sandboxes.values()):
                interval = sandbox.body.get("autoStopInterval") or 0
                if interval and time.time() - sandbox.active > interval * self.minute:
                    await self._expire(sandbox)
            await asyncio.sleep(0.05)
        for found in list(self.sandboxes):
            await self._destroy(found)
        await runner.cleanup()
        await self.snapshots.close()

    @web.middleware
    async def _middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        resource = request.match_info.route.resource
        self.requests[request.method, "" if resource is None else resource.canonical] += 1
        for prefix, faults in self.faults.items():
            if request.path.startswith(prefix) and faults:
                return refused(faults.pop(0), "so the test wants it")
        # The object store has keys of its own.
        if not request.path.startswith("/s3/") and request.headers.get("authorization") != f"Bearer {KEY}":
            return refused(401, "no such API key")
        sandbox_id = request.match_info.get("id")
        if sandbox_id is not None and sandbox_id not in self.sandboxes:
            return refused(404, f"Sandbox with ID or name {sandbox_id} not found")
        return await handler(request)

    async def _expire(self, sandbox: Sandbox) -> None:
        """The time of a sandbox is up: it is deleted if it is ephemeral, else stopped."""
        if sandbox.body.get("autoDeleteInterval") == 0:
            await self._destroy(sandbox.id)
        elif sandbox.state == "started":
            sandbox.state = "stopped"
            await self._drop(sandbox)
            await asyncio.to_thread(sandbox.jail.halt)

    async def _destroy(self, sandbox_id: str) -> None:
        sandbox = self.sandboxes.pop(sandbox_id, None)
        if sandbox is not None:
            await self._drop(sandbox)
            await asyncio.to_thread(sandbox.jail.destroy)

    @staticmethod
    async def _drop(sandbox: Sandbox) -> None:
        sandbox.sessions.clear()
        for socket in list(sandbox.sockets):
            # The real thing just drops the connection.
            await socket.close(code=WSCloseCode.INTERNAL_ERROR, message=b"sandbox is gone", drain=False)

    def _sandbox(self, request: web.Request) -> Sandbox:
        return self.sandboxes[request.match_info["id"]]

    # -- control API -----------------------------------------------------------------------------

    async def _create(self, request: web.Request) -> web.Response:
        body = await request.json()
        image = self.snapshots.image(body.get("snapshot"))
        if image is None:
            return refused(404, f"Snapshot {body['snapshot']} not found")
        sandbox = await asyncio.to_thread(Sandbox, body, self.origin, image)
        self.sandboxes[sandbox.id] = sandbox
        return web.json_response(sandbox.document())

    async def _list(self, request: web.Request) -> web.Response:
        wanted = json.loads(request.query.get("labels", "{}"))
        found = [s.document() for s in self.sandboxes.values()]
        items = [document for document in found if wanted.items() <= document["labels"].items()]
        return web.json_response({"items": items, "nextCursor": None})

    async def _get(self, request: web.Request) -> web.Response:
        return web.json_response(self._sandbox(request).document())

    async def _delete(self, request: web.Request) -> web.Response:
        sandbox: Sandbox = self._sandbox(request)
        await self._destroy(sandbox.id)
        return web.json_response({**sandbox.document(), "state": "destroyed"})

    async def _activity(self, request: web.Request) -> web.Response:
        self._sandbox(request).active = time.time()
        return web.Response(status=201)

    async def _start(self, request: web.Request) -> web.Response:
        sandbox: Sandbox = self._sandbox(request)
        if sandbox.state == "stopped":
            await asyncio.to_thread(sandbox.jail.boot)
            sandbox.state = "started"
        sandbox.active = time.time()
        return web.json_response(sandbox.document())

    async def _label(self, request: web.Request) -> web.Response:
        labels = (await request.json())["labels"]
        self._sandbox(request).body["labels"] = labels
        return web.json_response({"labels": labels})

    # -- toolbox: sessions -----------------------------------------------------------------------

    async def _session(self, request: web.Request) -> web.Response:
        self._sandbox(request).sessions[(await request.json())["sessionId"]] = {}
        return web.Response(status=201)

    async def _end_session(self, request: web.Request) -> web.Response:
        commands = self._sandbox(request).sessions.pop(request.match_info["session"], None)
        if commands is None:
            return refused(404, "session not found")
        for command in commands.values():
            if command.process.returncode is None:
                command.process.kill()
        return web.Response(status=204)

    async def _exec(self, request: web.Request) -> web.Response:
        sandbox: Sandbox = self._sandbox(request)
        commands = sandbox.sessions.get(request.match_info["session"])
        body = await request.json()
        if commands is None:
            return refused(404, "session not found")
        if not body.get("runAsync"):
            return refused(400, "this server runs asynchronous commands only")
        env = {"PATH": PATH, "HOME": "/root", **sandbox.env}
        process = await asyncio.create_subprocess_exec(
            *sandbox.jail.argv(["bash", "-c", body["command"]], "/", "root"),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            start_new_session=True,
            env=env,
        )
        command = Command(process, body["command"])
        commands[command.id] = command
        return web.json_response({"cmdId": command.id}, status=202)

    def _command(self, request: web.Request) -> Command | None:
        session = self._sandbox(request).sessions.get(request.match_info["session"], {})
        found: Command | None = session.get(request.match_info["command"])
        return found

    async def _input(self, request: web.Request) -> web.Response:
        command = self._command(request)
        if command is None:
            return refused(404, "command not found")
        if command.process.returncode is not None or command.process.stdin is None:
            return refused(410, "command already completed")
        command.process.stdin.write((await request.json())["data"].encode())
        try:
            await command.process.stdin.drain()
        except ConnectionError:
            return refused(410, "command already completed")
        return web.Response(status=204)

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        command = self._command(request)
        sandbox: Sandbox = self._sandbox(request)
        if command is None:
            return refused(404, "command not found")
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        sandbox.sockets.add(socket)
        try:
            following = asyncio.create_task(command.follow(socket))
            listening = asyncio.create_task(socket.receive())
            await asyncio.wait({following, listening}, return_when=asyncio.FIRST_COMPLETED)
            for task in (following, listening):
                task.cancel()
            await asyncio.gather(following, listening, return_exceptions=True)
            await socket.close()
        finally:
            sandbox.sockets.discard(socket)
        return socket

    # -- toolbox: files --------------------------------------------------------------------------

    async def _upload(self, request: web.Request) -> web.Response:
        sandbox: Sandbox = self._sandbox(request)
        target = ""
        async for part in await request.multipart():
            if not hasattr(part, "read_chunk"):
                return refused(400, "a part within a part")
            if (part.name or "").endswith(".path"):
                target = await part.text()
                continue
            path = sandbox.jail.path(target)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                while piece := await part.read_chunk(1024 * 1024):
                    file.write(piece)
        return web.json_response({})

    async def _download(self, request: web.Request) -> web.StreamResponse:
        sandbox: Sandbox = self._sandbox(request)
        boundary = uuid.uuid4().hex
        response = web.StreamResponse(headers={"content-type": f"multipart/form-data; boundary={boundary}"})
        await response.prepare(request)
        for name in (await request.json())["paths"]:
            path = sandbox.jail.path(name)
            there = path.is_file()
            kind = ("file", "application/octet-stream") if there else ("error", "application/json")
            head = f'--{boundary}\r\nContent-Disposition: form-data; name="{kind[0]}"; filename="{name}"\r\n'
            await response.write(f"{head}Content-Type: {kind[1]}\r\n\r\n".encode())
            if there:
                with path.open("rb") as file:
                    while piece := file.read(1024 * 1024):
                        await response.write(piece)
            else:
                await response.write(
                    json.dumps({"statusCode": 404, "message": f"file not found: {name}"}).encode()
                )
            await response.write(b"\r\n")
        await response.write(f"--{boundary}--\r\n".encode())
        return response
