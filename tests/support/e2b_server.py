"""A server on loopback that speaks the protocols of E2B's control plane and of its envd.

Enough for what the library does for a box: create, connect to, list, kill and keep sandboxes, build
templates and look them up (see `e2b_templates`), run commands with streams (Connect with JSON), and
move files. Sandboxes really run commands (see `jail`); one address serves all of them, since each
request names its sandbox.
"""

from __future__ import annotations

import base64
import json
import os
import queue
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, unquote, urlsplit

from e2b_templates import Templates
from image_build import Image
from jail import USERS, Jail

KEY = "e2b_" + "0" * 40


class Refused(Exception):
    """An answer with an error: the HTTP status, and the code of the Connect protocol."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Subscriber:
    """A client that gets the events of a process. Slow ones slow the process down."""

    def __init__(self) -> None:
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue(64)
        self.gone = False

    def put(self, event: dict[str, Any] | None) -> None:
        while not self.gone:
            try:
                return self._events.put(event, timeout=0.1)
            except queue.Full:
                continue
        return None

    def get(self, timeout: float) -> dict[str, Any] | None:
        return self._events.get(timeout=timeout)


class Process:
    """A process in a sandbox, as envd knows it."""

    def __init__(self, sandbox: Sandbox, config: dict[str, Any], user: str, *, stdin: bool) -> None:
        env = {"HOME": "/home/user", "USER": user, **sandbox.envs, **config.get("envs", {})}
        argv = [config["cmd"], *config.get("args", [])]
        # Subscribed before anything is read, so that nothing is lost.
        self.first = Subscriber()
        self.subscribers = [self.first]
        self.popen = sandbox.jail.start(
            argv, cwd=config.get("cwd") or "/home/user", env=env, user=user, stdin=stdin
        )
        self.pid = self.popen.pid
        streams = {"stdout": self.popen.stdout, "stderr": self.popen.stderr}
        self._pumps = [
            threading.Thread(target=self._pump, args=item, daemon=True) for item in streams.items()
        ]
        for pump in self._pumps:
            pump.start()
        threading.Thread(target=self._reap, daemon=True).start()

    def _pump(self, name: str, stream: Any) -> None:
        with stream:
            while data := stream.read(32768):
                self.emit({"data": {name: base64.b64encode(data).decode()}})

    def _reap(self) -> None:
        for pump in self._pumps:
            pump.join()
        code = self.popen.wait()
        if self.popen.stdin is not None:
            self.popen.stdin.close()
        if code < 0:
            name = signal.Signals(-code).name[3:].lower()
            self.emit(
                {
                    "end": {
                        "exited": False,
                        "exitCode": -1,
                        "status": f"signal: {name}",
                        "error": f"signal: {name}",
                    }
                }
            )
        else:
            self.emit({"end": {"exited": True, "exitCode": code, "status": f"exit status {code}"}})

    def emit(self, event: dict[str, Any] | None) -> None:
        for subscriber in list(self.subscribers):
            subscriber.put(event)

    def write(self, data: bytes) -> None:
        if self.popen.stdin is None or self.popen.stdin.closed:
            raise Refused(400, "invalid_argument", "stdin is closed or was not asked for")
        try:
            while data:
                data = data[self.popen.stdin.write(data) or 0 :]
        except BrokenPipeError:
            raise Refused(500, "internal", "error writing to stdin: broken pipe") from None


class Sandbox:
    """A sandbox as the control plane knows it."""

    def __init__(self, body: dict[str, Any], image: Image) -> None:
        self.id = f"i{uuid.uuid4().hex[:19]}"
        self.token = uuid.uuid4().hex
        self.template = body["templateID"]
        self.metadata: dict[str, str] = body.get("metadata") or {}
        self.envs: dict[str, str] = {**image.env, **(body.get("envVars") or {})}
        self.user = image.user or "user"
        self.jail = Jail(Path(tempfile.mkdtemp(prefix="e2b-")), image.root)
        self.processes: dict[int, Process] = {}
        self.begun = time.time()
        self.set_timeout(body.get("timeout") or 300)

    def set_timeout(self, seconds: float) -> None:
        self.end = time.time() + seconds

    def destroy(self) -> None:
        # The streams of a killed sandbox just break; nobody tells how its processes ended.
        for process in list(self.processes.values()):
            for subscriber in process.subscribers:
                threading.Thread(target=subscriber.put, args=(None,), daemon=True).start()
        self.jail.destroy()

    def process(self, selector: dict[str, Any]) -> Process:
        try:
            return self.processes[selector["pid"]]
        except KeyError:
            raise Refused(404, "not_found", f"process with pid {selector.get('pid')} not found") from None

    def created(self) -> dict[str, Any]:
        return {
            "templateID": self.template, "sandboxID": self.id, "clientID": "loopback", "envdVersion": "0.6.4",
            "envdAccessToken": self.token, "domain": None,
        }  # fmt: skip

    def detail(self) -> dict[str, Any]:
        begun, end = (time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(t)) for t in (self.begun, self.end))
        return {
            **self.created(), "state": "running", "cpuCount": 2, "memoryMB": 512, "diskSizeMB": 1024,
            "metadata": self.metadata, "startedAt": begun, "endAt": end, "alias": None,
        }  # fmt: skip


class Listener(ThreadingHTTPServer):
    """For as many connections at once as tests open."""

    daemon_threads = True
    request_queue_size = 256


class E2BServer:
    """The server. `faults` maps the beginning of a path to answers that are given first.

    Use it as a context manager, and `environment` for the library.
    """

    def __init__(self) -> None:
        self.sandboxes: dict[str, Sandbox] = {}
        self.templates = Templates()
        self.faults: dict[str, list[tuple[int, dict[str, str]]]] = {}
        self.requests: Counter[tuple[str, str]] = Counter()
        self._http = Listener(("127.0.0.1", 0), type("Bound", (Handler,), {"cloud": self}))
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._serve, self._expire)]

    @property
    def environment(self) -> dict[str, str]:
        url = f"http://127.0.0.1:{self._http.server_address[1]}"
        return {"E2B_API_URL": url, "E2B_SANDBOX_URL": url, "E2B_API_KEY": KEY}

    def __enter__(self) -> E2BServer:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._http.shutdown()
        for thread in self._threads:
            thread.join()
        self._http.server_close()
        for found in list(self.sandboxes):
            self.kill(found)
        self.templates.close()

    def _serve(self) -> None:
        self._http.serve_forever(0.05)

    def _expire(self) -> None:
        while not self._stopping.wait(0.1):
            for sandbox in list(self.sandboxes.values()):
                if time.time() > sandbox.end:
                    self.kill(sandbox.id)

    def kill(self, sandbox_id: str) -> bool:
        sandbox = self.sandboxes.pop(sandbox_id, None)
        if sandbox is not None:
            sandbox.destroy()
        return sandbox is not None


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    cloud: E2BServer

    def log_message(self, *_: object) -> None:
        """Requests are counted by the server."""

    # -- HTTP ------------------------------------------------------------------------------------

    def _chunks(self) -> Iterator[bytes]:
        length = self.headers.get("content-length")
        if length is not None:
            yield self.rfile.read(int(length))
        elif "chunked" in (self.headers.get("transfer-encoding") or ""):
            while size := int(self.rfile.readline().split(b";")[0], 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()

    def _read(self) -> bytes:
        return b"".join(self._chunks())

    def _answer(self, status: int, body: Any = None, headers: dict[str, str] | None = None) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        if body is not None:
            self.send_header("content-type", "application/json")
        if status != 204:
            self.send_header("content-length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def handle_one(self) -> None:
        url = urlsplit(self.path)
        sandbox_id = self.headers.get("E2b-Sandbox-Id") or ""
        self.cloud.requests[self.command, re.sub(r"/i[0-9a-f]{19}", "/{id}", url.path)] += 1
        for prefix, faults in self.cloud.faults.items():
            if url.path.startswith(prefix) and faults:
                status, headers = faults.pop(0)
                self._read()
                return self._answer(status, {"code": status, "message": "so the test wants it"}, headers)
        try:
            if url.path.startswith("/uploads/"):
                self.cloud.templates.upload(url.path.removeprefix("/uploads/"), self._chunks())
                return self._answer(200)
            if not url.path.startswith(("/process.Process/", "/files", "/health")):
                return self._control(url.path, dict(parse_qsl(url.query)))
            sandbox = self.cloud.sandboxes.get(sandbox_id)
            if sandbox is None:
                self._read()
                message = {"sandboxId": sandbox_id, "message": "The sandbox was not found", "code": 502}
                return self._answer(502, message)
            if url.path == "/health":
                return self._answer(204)
            if self.headers.get("X-Access-Token") != sandbox.token:
                self._read()
                raise Refused(401, "unauthenticated", "unauthorized")
            if url.path == "/files":
                return self._files(sandbox, {name: found[0] for name, found in parse_qs(url.query).items()})
            return self._rpc(sandbox, url.path.rsplit("/", 1)[1])
        except Refused as error:
            code: int | str = error.code if url.path.startswith("/process") else error.status
            return self._answer(error.status, {"code": code, "message": str(error)})
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
            return None

    do_GET = do_POST = do_PUT = do_DELETE = handle_one  # noqa: N815 - names of http.server

    # -- control plane ---------------------------------------------------------------------------

    def _control(self, path: str, query: dict[str, str]) -> None:
        raw = self._read()
        body = json.loads(raw) if raw else {}
        if self.headers.get("X-API-Key") != KEY:
            raise Refused(401, "unauthenticated", "no such API key")
        if "/templates" in path:
            origin = f"http://{self.headers['Host']}"
            answer = self.cloud.templates.request(self.command, path, query, body, origin)
            if answer is None:
                raise Refused(404, "not_found", f"not in this server: {self.command} {path}")
            return self._answer(*answer)
        found = re.fullmatch(r"(?:/v2)?/sandboxes(?:/([^/]+))?(?:/(\w+))?", path)
        if found is None:
            raise Refused(404, "not_found", f"no such endpoint: {path}")
        sandbox_id, verb = found[1], found[2]
        if sandbox_id is None:
            return self._create(body) if self.command == "POST" else self._list(query)
        sandbox = self.cloud.sandboxes.get(sandbox_id)
        if sandbox is None:
            raise Refused(404, "not_found", f"sandbox {sandbox_id} not found")
        if self.command == "DELETE":
            self.cloud.kill(sandbox_id)
        elif verb == "timeout":
            sandbox.set_timeout(body["timeout"])
        elif verb == "connect":
            if time.time() + body.get("timeout", 300) > sandbox.end:
                sandbox.set_timeout(body.get("timeout", 300))
            return self._answer(200, sandbox.created())
        elif self.command == "GET" and verb is None:
            return self._answer(200, sandbox.detail())
        else:
            raise Refused(404, "not_found", f"not in this server: {path}")
        return self._answer(204)

    def _create(self, body: dict[str, Any]) -> None:
        image = self.cloud.templates.image(body["templateID"])
        if image is None:
            raise Refused(404, "not_found", f"template '{body['templateID']}' not found, or not built")
        sandbox = Sandbox(body, image)
        self.cloud.sandboxes[sandbox.id] = sandbox
        self._answer(201, sandbox.created())

    def _list(self, query: dict[str, str]) -> None:
        # The library quotes names and values once more than the query needs.
        wanted = {unquote(name): unquote(value) for name, value in parse_qsl(query.get("metadata", ""))}
        found = [s for s in list(self.cloud.sandboxes.values()) if wanted.items() <= s.metadata.items()]
        self._answer(200, [sandbox.detail() for sandbox in found])

    # -- envd: files -----------------------------------------------------------------------------

    def _user(self, sandbox: Sandbox) -> str:
        word, _, value = (self.headers.get("Authorization") or "").partition(" ")
        name = base64.b64decode(value).decode().partition(":")[0] if word == "Basic" else ""
        return name if name in USERS else sandbox.user

    def _files(self, sandbox: Sandbox, query: dict[str, str]) -> None:
        path = sandbox.jail.path(query["path"])
        if self.command == "GET":
            if not path.is_file():
                raise Refused(404, "not_found", f"path '{query['path']}' does not exist")
            self.send_response(200)
            self.send_header("content-type", "application/octet-stream")
            self.send_header("content-length", str(path.stat().st_size))
            self.end_headers()
            with path.open("rb") as file:
                return shutil.copyfileobj(file, self.wfile)
        if (self.headers.get("content-type") or "").startswith("multipart/"):
            self._read()
            raise Refused(400, "invalid_argument", "this server takes files as octet streams only")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for piece in self._chunks():
                file.write(piece)
        sandbox.jail.owns(path, self._user(sandbox))
        return self._answer(200, [{"name": path.name, "type": "file", "path": query["path"]}])

    # -- envd: processes, by the Connect protocol ------------------------------------------------

    def _rpc(self, sandbox: Sandbox, name: str) -> None:
        raw = self._read()
        if name == "Start":
            return self._start(sandbox, json.loads(raw[5:]))
        body = json.loads(raw or b"{}")
        if name == "SendInput":
            sandbox.process(body["process"]).write(base64.b64decode(body["input"]["stdin"]))
        elif name == "CloseStdin":
            stdin = sandbox.process(body["process"]).popen.stdin
            if stdin is not None:
                stdin.close()
        elif name == "SendSignal":
            number = {"SIGNAL_SIGKILL": signal.SIGKILL, "SIGNAL_SIGTERM": signal.SIGTERM}[body["signal"]]
            os.killpg(sandbox.process(body["process"]).pid, number)
        else:
            raise Refused(501, "unimplemented", name)
        return self._answer(200, {})

    def _envelope(self, message: dict[str, Any], flag: int = 0) -> None:
        data = json.dumps(message).encode()
        data = struct.pack(">BI", flag, len(data)) + data
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _start(self, sandbox: Sandbox, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/connect+json")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        try:
            process = Process(sandbox, body["process"], self._user(sandbox), stdin=body.get("stdin", True))
        except (OSError, subprocess.SubprocessError) as error:
            self._envelope({"error": {"code": "invalid_argument", "message": str(error)}}, 2)
            self.wfile.write(b"0\r\n\r\n")
            return
        sandbox.processes[process.pid] = process
        try:
            self._envelope({"event": {"start": {"pid": process.pid}}})
            self._events(process)
        finally:
            process.first.gone = True
            # Known until it is over, whether or not someone listens, as with envd.
            if process.popen.poll() is not None:
                sandbox.processes.pop(process.pid, None)

    def _events(self, process: Process) -> None:
        interval = float(self.headers.get("Keepalive-Ping-Interval") or 50)
        while True:
            try:
                event = process.first.get(interval)
            except queue.Empty:
                self._envelope({"event": {"keepalive": {}}})
                continue
            if event is None:
                self.close_connection = True
                return
            self._envelope({"event": event})
            if "end" in event:
                self._envelope({}, 2)
                self.wfile.write(b"0\r\n\r\n")
                self.wfile.flush()
                return
