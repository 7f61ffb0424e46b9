"""The box protocol: what a kind of sandbox must offer. The only module that a box imports.

A box is one running environment for one attempt. Inside it the paths are always the same:

    /attempt/workspace    where the agent works; the current directory of every command
    /attempt/home         HOME
    /attempt/artifacts    what the run publishes
    /attempt/environment  the task's environment/ directory (setup.sh)
    /attempt/evaluation   gold; exists only in the evaluate phase

Callers always use these paths. A kind that cannot make `/attempt` real translates them, and
`Box.visible_path` says what a process in the box must use instead.
"""

from __future__ import annotations

import abc
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal, Protocol

import msgspec

from pytest_ageval.errors import BoxError

ROOT = "/attempt"
WORKSPACE = "/attempt/workspace"
HOME = "/attempt/home"
ARTIFACTS = "/attempt/artifacts"
ENVIRONMENT = "/attempt/environment"
EVALUATION = "/attempt/evaluation"
SOLUTION = "/attempt/solution"

#: Names a task may require and a kind may offer.
CAPABILITIES = (
    "exec",
    "upload",
    "download",
    "attach_stdio",
    "uid_gid",
    "path_views",
    "compose",
    "network_phases",
)

#: What a box's network lets through. ``allowlist``: named hosts, through a proxy.
NetworkMode = Literal["public", "no-network", "allowlist"]

#: Bytes of stdout and of stderr that an `ExecResult` keeps (half from the head, half from the tail).
STREAM_LIMIT = 256 * 1024

#: Exit code of a command that was ended because its time was up (as coreutils' timeout does).
TIMEOUT_EXIT = 124


class NoOptions(msgspec.Struct, forbid_unknown_fields=True):
    """The options of a kind that has none."""


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What a command in the box did. Streams are text, bounded to `STREAM_LIMIT`, cut in the middle."""

    exit_code: int
    stdout: str = ""
    stderr: str = ""
    truncated: bool = False
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        """The exit code is 0."""
        return self.exit_code == 0


@dataclass(frozen=True, slots=True)
class ImageLayer:
    """What a plugin adds to the image of a box, so that it is made once and not in every attempt.

    `name` is a short word for messages. `recipe` are instructions of a Dockerfile without ``FROM``; its
    ``COPY`` sees `context`, a directory of the host (None: nothing). `key` stands for the content of
    `context` where the plugin knows it to be content-addressed; None: its bytes are hashed. `dest`: the
    layer does nothing but ``COPY . <dest>``, so that a kind which shows the host's files to its boxes
    can show `context` there, read-only, and build nothing.
    """

    name: str
    recipe: str = ""
    context: Path | None = None
    key: str | None = None
    dest: str | None = None


@dataclass(frozen=True, slots=True)
class BoxSpec:
    """What the engine gives a kind to open one box.

    `work_dir` is a host directory that belongs to this box alone, outside the data set and outside
    the evidence; the kind creates and removes it. `hidden` are host directories (the data set, the
    evidence root) that nothing in the box may reach. `resources` are what the task asks for
    (``cpus``, ``memory_mb``, ...). `labels` go onto everything the kind creates, so that leftovers
    can be found: ``ageval.run``, ``ageval.worker``, ``ageval.attempt``. `model_urls` are where the
    agents' providers are, for a kind that can close the rest of the network; with `gateway` their calls
    all go to a port that `Box.forward` makes reachable, so that a kind that can do this need let nothing
    else through. `layers` go into the
    image of a kind that makes images (`Box.makes_images`), in this order.
    """

    kind: str
    attempt_id: str
    task_id: str
    work_dir: Path
    task_root: Path | None = None
    dataset_root: Path | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    resources: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    hidden: Sequence[Path] = ()
    model_urls: Sequence[str] = ()
    gateway: bool = False
    layers: Sequence[ImageLayer] = ()


@dataclass(frozen=True, slots=True)
class ProbeStatus:
    """What became of a box that another process opened.

    ``absent``: it is gone. ``idle``: it is there and nothing runs in it that its owner started. ``busy``:
    its owner still lives, or a command of it still runs. `detail` says which, for people.
    """

    state: Literal["absent", "idle", "busy"]
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Leftover:
    """What a box of an earlier run left: a directory, a container, a sandbox of a vendor.

    `where` names it in the words of its kind. `labels` are those of its `BoxSpec`. `age_seconds` is the
    time since it was made, None where that is not known. `alive_owner`: the process that opened the box
    still runs, so that `Box.reap` leaves it alone.
    """

    kind: str
    where: str
    labels: Mapping[str, str] = field(default_factory=dict)
    age_seconds: float | None = None
    alive_owner: bool = False


class StdioTransport(Protocol):
    """A long-lived process in the box: bytes in, bytes out. One call of a method at a time."""

    async def read(self) -> bytes:
        """The next chunk of stdout; b"" at end of file."""
        ...

    async def read_stderr(self) -> bytes:
        """The next chunk of stderr; b"" at end of file (at once where the kind merges the streams)."""
        ...

    async def write(self, data: bytes) -> None:
        """Write all of `data` to stdin; raises BrokenPipeError when the process is gone."""
        ...

    async def close_stdin(self) -> None:
        """Close stdin. Idempotent."""
        ...

    async def wait(self, timeout: float | None = None) -> int | None:
        """The exit code (negative: that signal), or None if it still runs after `timeout` seconds."""
        ...

    async def terminate(self, grace: float = 2.0) -> int | None:
        """TERM, wait `grace` seconds, KILL the process and all its children, verify. Idempotent."""
        ...


class Box(abc.ABC):
    """One box of one kind. Methods are called from one event loop; none may block it.

    Raises `BoxError` with the failure kind as title: ``environment_not_started``,
    ``environment_path_invalid``, ``environment_upload_missing``, ``environment_download_missing``,
    ``environment_exec_invalid``, ``environment_capability_missing``, ``environment_start_failed``,
    ``environment_preflight_failed``, ``environment_attach_invalid``, ``environment_attach_busy``.
    """

    kind: ClassVar[str]
    capabilities: ClassVar[frozenset[str]]
    #: The kind puts `BoxSpec.layers` into its boxes' image; without it they are not asked for.
    makes_images: ClassVar[bool] = False
    #: Boxes are noted on this machine: `leftovers` and `reap` work even where `check({})` says no.
    keeps_notes: ClassVar[bool] = False
    #: Boxes are on other machines: what their tasks ask for is not taken from this one, and a run keeps
    #: several attempts in flight by default.
    elsewhere: ClassVar[bool] = False
    #: Boxes of this kind that may be open at once, as the vendor's smallest plan allows; None: any number.
    at_once: ClassVar[int | None] = None
    #: A msgspec Struct with ``forbid_unknown_fields=True``; checked when the task is locked.
    Options: ClassVar[type[msgspec.Struct]] = NoOptions

    def __init__(self, spec: BoxSpec) -> None:
        self.spec = spec
        self.options: Any = msgspec.convert(dict(spec.options), self.Options)

    @classmethod
    def describe(cls, options: Mapping[str, Any]) -> str:
        """A few words for the run header, such as ``local (bubblewrap)``. Must not start anything slow."""
        return cls.kind

    async def preflight(self) -> None:
        """Refuse early, with a remedy, if this machine cannot open a box of this kind."""

    @abc.abstractmethod
    async def start(self) -> None:
        """Open the box with empty workspace, home and artifacts. Once."""

    @abc.abstractmethod
    async def exec(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        user: str | None = None,
        service: str | None = None,
        stdin: bytes | None = None,
    ) -> ExecResult:
        """Run `argv` to its end. `cwd` defaults to the workspace.

        After `timeout` seconds every process it started is killed and verified gone, and the result
        has exit code 124 and `timed_out`.
        """

    @abc.abstractmethod
    async def upload(self, source: Path, dest: str, *, service: str | None = None) -> None:
        """Copy a file or a tree into the box. A tree *replaces* `dest`.

        Keeps modes, empty directories and symbolic links (as links, never followed).
        """

    @abc.abstractmethod
    async def download(self, source: str, dest: Path, *, service: str | None = None) -> None:
        """Copy a file or a tree out of the box, under the rules of `upload`."""

    async def attach_stdio(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> StdioTransport:
        """Start a long-lived process and connect to its standard streams."""
        raise BoxError("environment_capability_missing", f"{self.kind} has no attach_stdio")

    async def use_network(self, mode: NetworkMode, hosts: Sequence[str] = (), *, model: bool = False) -> None:
        """From now on everything in the box has this network; connections of before are cut.

        `hosts` may be reached with ``allowlist``, and with `model` what `BoxSpec.model_urls` names. For kinds
        with the capability ``network_phases``.
        """
        raise BoxError("environment_capability_missing", f"{self.kind} has no network_phases")

    def visible_path(self, path: str) -> str:
        """`path` as a process in the box must spell it, for arguments and environment values."""
        return path

    def host_path(self, path: str) -> Path | None:
        """The host's own path of `path` where box and host share files; None where they do not."""
        return None

    def python_command(self) -> Sequence[str]:
        """How to start Python in the box."""
        return ("python3",)

    def cache_path(self) -> str | None:
        """A directory of the box's machine that outlives the box and that all boxes of this user share.

        As a process in the box must spell it; None where there is none. For agents' installs: who writes
        there does so under another name and renames.
        """
        return None

    async def forward(self, port: int) -> str | None:
        """Make the loopback port `port` of this machine reachable in the box, until it is stopped.

        Returns ``host:port`` as a process in the box must spell it, or None where it cannot be reached.
        """
        return None

    # -- a box of another process ----------------------------------------------------------------

    def handle(self) -> dict[str, Any]:
        """Plain data by which another process can find this box again; ``kind`` is among them."""
        return {}

    async def probe(self, handle: Mapping[str, Any]) -> ProbeStatus:
        """Look at the box that `handle` names, without touching it. On an instance that was not started."""
        return ProbeStatus("absent", f"{self.kind} boxes cannot be found again")

    async def attach(self, handle: Mapping[str, Any]) -> None:
        """Take over the box that `handle` names, in place of `start`; from now on this process owns it.

        Its files and the processes that it was told to keep are as they were. BoxError
        ``environment_attach_invalid`` if it is absent, of another kind, or cannot be taken over;
        ``environment_attach_busy`` if its owner lives or a command of it still runs.
        """
        raise BoxError("environment_attach_invalid", f"{self.kind} boxes cannot be taken over")

    async def discard(self, handle: Mapping[str, Any]) -> None:
        """End the box that `handle` names, with all that runs in it, and remove it. Idempotent.

        Refused with ``environment_attach_busy`` while its owner lives.
        """
        raise BoxError("environment_attach_invalid", f"{self.kind} boxes cannot be found again")

    async def quiesce(self) -> list[str]:
        """Kill everything that the agent left running in the box, verify, and say what was killed.

        Called when the run phase ends, before the artifacts are harvested: nobody may write any more.
        """
        return []

    @abc.abstractmethod
    async def stop(self, *, delete: bool = True) -> None:
        """Close the box and all that is in it, fast and by force. Idempotent; safe after a failed start."""

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> str | None:
        """Why a box with these options cannot be opened here, and in a second line the remedy.

        None: nothing is known. What `preflight` refuses, said before a run (``pytest-ageval doctor``).
        Synchronous; a few seconds at most.
        """
        return None

    @classmethod
    def leftovers(cls, labels: Mapping[str, str]) -> list[Leftover]:
        """What boxes with these labels left behind, without touching it: what `reap` would remove,
        and what it would not because its owner lives. Synchronous."""
        return []

    @classmethod
    def reap(cls, labels: Mapping[str, str]) -> list[str]:
        """Remove what boxes with these labels left behind; say what was removed. Synchronous."""
        return []


def work_parent() -> Path:
    """The host directory under which every box of this user has its `work_dir`."""
    return Path(tempfile.gettempdir()).absolute() / f"pytest-ageval-{os.getuid()}"


def cache_root() -> Path:
    """The host directory in which this user keeps what is made once: agents' installs, locks of builds."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "pytest-ageval"


def system_script(script: str, *arguments: str) -> list[str]:
    """A shell script of ours as a command in a box, with `arguments` as ``$1`` and on.

    It runs the system's programs, not those that an agent has put in front of them on ``PATH``.
    """
    return ["/bin/sh", "-c", f"PATH=/usr/sbin:/usr/bin:/sbin:/bin\n{script}", "sh", *arguments]


def check_path(path: str) -> PurePosixPath:
    """`path` if it is absolute, below /attempt and without ``..``. Raises BoxError."""
    found = PurePosixPath(path)
    if "\0" in path or ".." in found.parts or found.parts[:2] != ("/", "attempt"):
        raise BoxError(
            "environment_path_invalid", f"{path!r} is not an absolute path below {ROOT} without '..'"
        )
    return found


def clip(data: bytes, limit: int = STREAM_LIMIT) -> tuple[str, bool]:
    """Decode a stream; beyond `limit` bytes keep head and tail and say how much was cut."""
    if len(data) <= limit:
        return data.decode("utf-8", "replace"), False
    half = limit // 2
    cut = len(data) - 2 * half
    head = data[:half].decode("utf-8", "replace")
    tail = data[-half:].decode("utf-8", "replace")
    return f"{head}\n[... {cut} bytes cut ...]\n{tail}", True


class BoundedStream:
    """Collects a stream of any length in constant memory: head and tail, at most `limit` bytes.

    For kinds that read while the command runs; the text is the same as `clip` would give.
    """

    def __init__(self, limit: int = STREAM_LIMIT) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        self._total += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data[-self._half :]
        # Cut at twice the size, so that the bytes are moved once for many small chunks.
        if len(self._tail) > 2 * self._half:
            del self._tail[: -self._half]

    def text(self) -> tuple[str, bool]:
        """The text so far, and whether something was cut."""
        cut = self._total - len(self._head) - min(len(self._tail), self._half)
        if cut <= 0:
            return (self._head + self._tail).decode("utf-8", "replace"), False
        head = self._head.decode("utf-8", "replace")
        tail = self._tail[-self._half :].decode("utf-8", "replace")
        return f"{head}\n[... {cut} bytes cut ...]\n{tail}", True
