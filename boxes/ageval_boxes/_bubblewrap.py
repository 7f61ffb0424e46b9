"""What a process of a local box sees of this machine, by bubblewrap (https://github.com/containers/bubblewrap).

Each command is its own `bwrap` (a few milliseconds) with a tmpfs root in which only what a program
needs is bound, read-only. All commands of a box share one pid namespace, whose first process is
ours: they see each other and nobody else, orphans are reaped, and killing that first process makes
the kernel kill every process of the box at once.
"""

# ruff: noqa: PTH100, PTH110, PTH112, PTH113

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

from ageval_boxes._processes import KILL_SECONDS, Child, Pump, pid_namespace
from pytest_ageval.errors import BoxError

#: Bound where they exist; a symbolic link (``/bin -> usr/bin``) is made again as a link.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix")

#: What root keeps in the box: enough for installers, tar and su; nothing that reaches the machine
#: (no mounts, no devices, no open_by_handle_at, no tracing).
_CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "SETFCAP",
    "NET_BIND_SERVICE", "SYS_CHROOT",
)  # fmt: skip

#: /proc and /dev as a command of a box gets them.
KERNEL = ("--proc", "/proc", "--dev", "/dev")
#: As the first process gets them: with terminals, a user's bwrap would nest two user namespaces.
FIRST_KERNEL = ("--proc", "/proc", "--dev-bind", "/dev/null", "/dev/null")

#: The first process of a box: says that it is there, reaps orphans (`wait`) and cannot be killed from inside.
_INIT = (
    "echo up; exec > /dev/null 2>&1; "
    "while :; do sleep 1000000 & wait $!; s=$?; [ $s = 0 ] || [ $s -gt 128 ] || exit 1; done"
)


#: Files of /proc that change the machine, and that its root may write without any capability.
_MACHINE = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs")


def bwrap() -> str | None:
    """The bubblewrap program, or None."""
    return shutil.which("bwrap")


@functools.cache
def unusable() -> str | None:
    """Why bubblewrap cannot be used here, found by running it once; None if it can."""
    program = bwrap()
    if program is None:
        return "bubblewrap (bwrap) is not installed"
    argv = [program, "--unshare-pid", *privileges(), *_system(), *KERNEL, "--", "/bin/sh", "-c", ":"]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=10, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not start: {error}"
    if done.returncode:
        return f"bubblewrap does not work here: {done.stderr.decode('utf-8', 'replace').strip()}"
    return None


def privileges() -> list[str]:
    """The options of bwrap that take from root what a box must not have. Every bwrap needs them."""
    if os.geteuid() != 0:
        return []
    keep = [word for name in _CAPABILITIES for word in ("--cap-add", f"CAP_{name}")]
    return ["--cap-drop", "ALL", *keep]


@functools.cache
def _system() -> tuple[str, ...]:
    found = ["--tmpfs", "/"]
    for name in _SYSTEM:
        if Path(name).is_symlink():
            found += ["--symlink", str(Path(name).readlink()), name]
        elif Path(name).is_dir():
            found += ["--ro-bind", name, name]
    return tuple(found)


# Paths are text in what follows: a box compares hundreds of them, which takes pathlib ten times as long.


def _below(path: str, parents: Iterable[str]) -> bool:
    return any(path == parent or path.startswith(f"{parent}/") for parent in parents)


def _is_dir(path: Path) -> bool:
    """`path` is a directory that we may look at: a PATH can name those of another user."""
    try:
        return path.is_dir()
    except OSError:
        return False


@functools.cache
def _python_roots() -> tuple[str, ...]:
    executable = Path(sys.executable).resolve()
    return (sys.prefix, sys.base_prefix, str(executable.parent.parent))


@functools.cache
def _tool_root(text: str, home: Path) -> str:
    """What to bind for a PATH entry: ``<prefix>/bin`` needs ``<prefix>/lib``; ``~/.local`` is too much."""
    entry = Path(text)
    prefix = entry.parent
    private = (home, home / ".local", Path("/"))
    if entry.name == "shims" and prefix not in private:
        return str(prefix)  # pyenv, rbenv, asdf, mise: a shim starts the manager that lies beside it
    if entry.name == "bin" and _is_dir(prefix / "lib") and prefix not in private:
        return str(prefix)
    return str(entry)


class View:
    """Which host paths a box shows read-only, and which it hides although they lie under one of those."""

    def __init__(self, hidden: Sequence[Path], exposed: Sequence[Path] = ()) -> None:
        places = map(os.fspath, hidden)
        known = {p for h in places for p in (os.path.abspath(h), os.path.realpath(h)) if p != "/"}
        self._hidden = sorted(known)
        self._bound: dict[str, None] = {}
        for root in _python_roots():
            self._bind(root)
        path: list[str] = []
        for text in os.environ.get("PATH", os.defpath).split(os.pathsep):
            entry = str(Path(text))
            if not entry.startswith("/") or not os.path.isdir(entry):
                continue
            if not self.shows(entry) and not self._hides(entry):
                self._bind(_tool_root(entry, Path.home()))
            if self.shows(entry):
                path.append(text)
        self.path = os.pathsep.join(path) or os.defpath
        # A name server file is often a link to /run, which is not bound.
        resolver = os.path.realpath("/etc/resolv.conf")
        if os.path.isfile(resolver):
            self._bind(resolver)
        for extra in exposed:
            self.expose(extra)

    def shows(self, path: str) -> bool:
        """`path` lies under something that is bound (it may still be hidden)."""
        return _below(path, _SYSTEM) or _below(path, self._bound)

    def _hides(self, path: str) -> bool:
        return _below(path, self._hidden) or _below(os.path.realpath(path), self._hidden)

    def _bind(self, path: str) -> None:
        if os.access(path, os.R_OK) and not self.shows(path):
            self._bound[path] = None

    def expose(self, path: Path) -> None:
        """Show `path` too. Raises BoxError if it does not exist, is hidden, or belongs to the box itself."""
        path = path.expanduser().absolute()
        if not path.exists():
            raise BoxError("environment_expose_invalid", f"{path} does not exist on this machine")
        text = str(path)
        if self._hides(text):
            raise BoxError("environment_expose_invalid", f"{path} is hidden from every box")
        if text in ("/", "/tmp") or _below(text, _OWN):  # noqa: S108
            raise BoxError("environment_expose_invalid", f"{path} cannot be shown in a box")
        self._bind(text)

    def _covers(self, path: str) -> bool:
        """`path` would be visible: what lies nearest above it is bound, not hidden."""
        above = [p for p in (*_SYSTEM, *self._bound, *self._hidden) if path.startswith(f"{p}/")]
        return bool(above) and max(above, key=len) not in self._hidden

    def arguments(self, files: Path, tmp: Path, kernel: Sequence[str] = KERNEL) -> list[str]:
        """The mounts of a box whose files are `files` and whose /tmp is `tmp`, in bwrap's words."""
        entries = [(path, ["--ro-bind", path, path]) for path in self._bound]
        closed = ["--remount-ro", "/"]
        for path in self._hidden:
            if not self._covers(path) or not os.path.exists(path):
                continue
            if os.path.isdir(path):
                entries.append((path, ["--tmpfs", path]))
                closed += ["--remount-ro", path]
            else:
                entries.append((path, ["--ro-bind", os.devnull, path]))
        entries.append(("/tmp", ["--bind", str(tmp), "/tmp"]))  # noqa: S108
        entries.append(("/var/tmp", ["--bind", str(tmp), "/var/tmp"]))  # noqa: S108
        # One mount for each directory, as it is now: none can be renamed or replaced from inside, and
        # what comes later (gold) is not there for a process that was left running.
        entries.append(("/attempt", ["--tmpfs", "/attempt"]))
        closed += ["--remount-ro", "/attempt"]
        with os.scandir(files) as found:
            own = sorted((f"/attempt/{entry.name}", entry.path) for entry in found if not entry.is_symlink())
        entries += [(inside, ["--bind", outside, inside]) for inside, outside in own]
        # Parents first, so that what is mounted deeper is what counts.
        entries.sort(key=lambda entry: entry[0].count("/"))
        mounts = [word for _path, words in entries for word in words]
        if os.geteuid() == 0:
            closed += [word for name in _MACHINE for word in ("--ro-bind-try", name, name)]
        return [*_system(), *mounts, *kernel, *closed]


_OWN = ("/attempt", "/proc", "/dev", "/sys")


class Namespace:
    """The pid namespace of one box, held open by its first process.

    That process dies with the thread that called `start` (the event loop's), and everything in
    the namespace with it.
    """

    def __init__(self) -> None:
        #: Of the first process, on the host.
        self.pid = 0
        self.number = 0
        self._child: Child | None = None
        self._status: _Gathered | None = None
        self._fds: list[int] = []
        self._user = os.geteuid() != 0

    async def start(self, mounts: Sequence[str], env: Mapping[str, str]) -> None:
        """Make the namespace. Raises BoxError ``environment_start_failed``.

        `mounts` are those of the box's commands: they can reach this process's root by /proc.
        """
        receive, give = os.pipe()
        argv = [bwrap() or "bwrap", "--unshare-pid", "--as-pid-1", "--die-with-parent", *privileges()]
        argv += ["--new-session", *mounts, "--json-status-fd", str(give), "--", "/bin/sh", "-c", _INIT]
        try:
            self._child = Child(argv, env=env, cwd="/", stdin=subprocess.DEVNULL, pass_fds=(give,))
        finally:
            os.close(give)
            self._status = _Gathered(receive)
        # Its own word, not bwrap's: before that, the user namespace may not be fit to be joined.
        ready, errors = (_Gathered.of(pipe) for pipe in (self._child.popen.stdout, self._child.popen.stderr))
        try:
            up = await ready.line()
            status = await self._status.line() if up else b""
        finally:
            ready.close()
            errors.close()
        if status:
            self.pid = int(json.loads(status)["child-pid"])
        number = pid_namespace(self.pid) if self.pid else None
        if number is None:
            why = errors.text.decode("utf-8", "replace").strip()
            await self.close()
            raise BoxError("environment_start_failed", f"bubblewrap could not open the box: {why}")
        self.number = number
        kinds = ("pid", "user") if self._user else ("pid",)
        self._fds = [os.open(f"/proc/{self.pid}/ns/{kind}", os.O_RDONLY) for kind in kinds]

    @property
    def alive(self) -> bool:
        """It was started and its first process still runs."""
        return self._child is not None and not self._child.exited.done() and self.number != 0

    @property
    def fds(self) -> tuple[int, ...]:
        """What a bwrap that joins must inherit."""
        return tuple(self._fds)

    def join(self) -> list[str]:
        """The options by which another bwrap joins."""
        names = ("--pidns", "--userns")
        return [word for name, fd in zip(names, self._fds, strict=False) for word in (name, str(fd))]

    def kill(self) -> None:
        """Kill every process in the namespace. Does not wait."""
        if self.pid and self._child is not None and not self._child.exited.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    async def close(self) -> bool:
        """Kill every process in the namespace; whether all are gone. Idempotent."""
        self.kill()
        gone = True
        if self._child is not None:
            if not self.pid:
                self._child.popen.kill()
            # The kernel lets the first process end only when all others have ended.
            gone = await self._child.wait(KILL_SECONDS) is not None
        if self._status is not None:
            self._status.close()
        for fd in self._fds:
            os.close(fd)
        self._fds = []
        self.number = 0
        return gone


class _Gathered:
    """The beginning of what comes through a pipe, which is read until `close`: no writer breaks."""

    def __init__(self, fd: int) -> None:
        self.text = bytearray()
        self._news = asyncio.Event()
        self._pump = Pump(fd, self._take)
        os.close(fd)
        self._pump.ended.add_done_callback(lambda _done: self._news.set())

    @classmethod
    def of(cls, pipe: IO[bytes] | None) -> _Gathered:
        """What comes through a pipe of a child."""
        if pipe is None:
            raise ValueError("the process has no pipe")
        fd = os.dup(pipe.fileno())
        pipe.close()
        return cls(fd)

    def _take(self, data: bytes) -> None:
        self.text += data[: 4096 - len(self.text)]
        if b"\n" in self.text:
            self._news.set()

    async def line(self) -> bytes:
        """The first line without its end; b"" if there will be none, or not within ten seconds."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), 10)
        return bytes(self.text).partition(b"\n")[0] if b"\n" in self.text else b""

    def close(self) -> None:
        """Close the pipe. Idempotent."""
        self._pump.catch_up()
        self._pump.close()
