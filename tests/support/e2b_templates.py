"""The templates of the server that stands in for E2B: requested, filled with files, built, looked up."""

from __future__ import annotations

import re
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from image_build import Builder, BuildFailed, Image, forget, unpack

Answer = tuple[int, Any]


@dataclass
class Build:
    """One build of a template."""

    status: str = "waiting"
    entries: list[dict[str, Any]] = field(default_factory=list)
    reason: dict[str, Any] | None = None
    image: Image | None = None

    def say(self, message: str) -> None:
        """Log a line."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.entries.append({"timestamp": now, "message": message, "level": "info"})


class Templates:
    """All templates of the account. As with E2B a name is known from the request of its first build on."""

    def __init__(self) -> None:
        self.ids = {"base": "tbase"}
        self.builds: dict[str, dict[str, Build]] = {"tbase": {"b": Build("ready", image=Image())}}
        self.started: list[str] = []
        #: Seconds that each build takes at least.
        self.slow = 0.0
        self._store = Path(tempfile.mkdtemp(prefix="e2b-templates-"))
        (self._store / "files").mkdir()
        self._threads: list[threading.Thread] = []

    def close(self) -> None:
        """Remove everything."""
        for thread in self._threads:
            thread.join()
        forget(self._store)

    def image(self, name: str) -> Image | None:
        """The newest finished build of a template, by its name or id."""
        builds = self.builds.get(self.ids.get(name, name), {})
        done = [build.image for build in builds.values() if build.status == "ready"]
        return done[-1] if done else None

    def upload(self, name: str, pieces: Iterable[bytes]) -> None:
        """What the client sends to the address that `request` gave it."""
        with (self._store / "files" / name).open("wb") as file:
            for piece in pieces:
                file.write(piece)

    def request(
        self, method: str, path: str, query: dict[str, str], body: dict[str, Any], origin: str
    ) -> Answer | None:
        """Answer a request to the control plane; None if it is not one that this server knows."""
        if found := re.fullmatch(r"/templates/aliases/(.+)", path):
            known = self.ids.get(found[1])
            if known is None:
                return 404, {"code": 404, "message": "no such template"}
            return 200, {"templateID": known, "public": False}
        if (method, path) == ("POST", "/v3/templates"):
            return self._new(body)
        if found := re.fullmatch(r"/templates/(\w+)/files/(\w+)", path):
            present = (self._store / "files" / found[2]).exists()
            return 201, {"present": present, "url": f"{origin}/uploads/{found[2]}"}
        if found := re.fullmatch(r"(?:/v2)?/templates/(\w+)/builds/([\w-]+)(/status)?", path):
            build = self.builds.get(found[1], {}).get(found[2])
            if build is None:
                return 404, {"code": 404, "message": "no such build"}
            if method == "POST":
                return self._begin(build, body)
            return 200, _status(found[1], found[2], build, int(query.get("logsOffset", 0)))
        return None

    def _new(self, body: dict[str, Any]) -> Answer:
        name = body["name"]
        template_id = self.ids.setdefault(name, f"t{uuid.uuid4().hex[:19]}")
        build_id = str(uuid.uuid4())
        self.builds.setdefault(template_id, {})[build_id] = Build()
        self.started.append(name)
        return 202, {
            "templateID": template_id, "buildID": build_id, "public": False, "names": [name],
            "tags": ["default"], "aliases": [name],
        }  # fmt: skip

    def _begin(self, build: Build, body: dict[str, Any]) -> Answer:
        build.status = "building"
        thread = threading.Thread(target=self._build, args=(build, body), daemon=True)
        self._threads.append(thread)
        thread.start()
        return 202, None

    def _build(self, build: Build, body: dict[str, Any]) -> None:
        time.sleep(self.slow)
        base = self.image(body["fromTemplate"]) if "fromTemplate" in body else Image()
        if base is None:
            build.reason = {"message": f"template {body['fromTemplate']} not found", "step": "base"}
            build.status = "error"
            return
        builder = Builder(base)
        number = 0
        try:
            for number, step in enumerate(body["steps"], 1):
                build.say(f"[{number}] {step['type']} {' '.join(step['args'])}")
                self._step(builder, step, build)
        except BuildFailed as error:
            builder.abandon()
            build.reason = {"message": str(error), "step": str(number)}
            build.status = "error"
            return
        build.image = builder.finish(self._store / uuid.uuid4().hex, builder.user)
        build.status = "ready"

    def _step(self, builder: Builder, step: dict[str, Any], build: Build) -> None:
        args = step["args"]
        match step["type"]:
            case "RUN":
                for line in builder.run(*args):
                    build.say(line)
            case "COPY":
                context = unpack([self._store / "files" / step["filesHash"]])
                try:
                    source, dest, owner, mode = args
                    builder.copy(context, [source], dest, owner, int(mode, 8) if mode else None)
                finally:
                    forget(context)
            case "ENV":
                builder.env |= dict(zip(args[::2], args[1::2], strict=True))
            case "USER":
                builder.user = args[0]
            case "WORKDIR":
                builder.enter(args[0])


def _status(template_id: str, build_id: str, build: Build, offset: int) -> dict[str, Any]:
    # The status before the entries: the last ones are there when it is over.
    said: dict[str, Any] = {"templateID": template_id, "buildID": build_id, "status": build.status}
    said |= {"logs": [], "logEntries": build.entries[offset : offset + 100]}
    return said if build.reason is None else {**said, "reason": build.reason}
