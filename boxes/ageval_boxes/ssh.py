"""The kind ``ssh``: a directory on a host that is reached with ssh, or a container there.

Without `image`, ``/attempt`` is a directory of the host (`visible_path` says which); commands run as the user who
logs in, with nothing but ssh between them and the rest of that host. It keeps attempts apart from
this machine, its data sets and its credentials; it does not keep attempts of the same user on the
same host apart from each other. The host needs Linux, ``sh``, coreutils, awk, grep and tar.

With `image` the box is a container of the host's docker, nothing of the host is mounted into it,
``/attempt`` is real, and the image needs those programs.

Processes are found again by a variable in their environment, by their parents and by their session;
one that clears its environment, leaves its session and loses its parent can stay.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import secrets
import stat
import tarfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal, TypeVar

import msgspec

from ageval_boxes import _ssh_leftovers as leftovers
from ageval_boxes._files import DOWNLOAD_BYTES, DOWNLOAD_FILES, Budget, remove_tree
from ageval_boxes._processes import COOKIE
from ageval_boxes._ssh_connection import Address, Done, Host, host, in_thread, lost, start_thread
from ageval_boxes._ssh_process import Process, SshTransport
from ageval_boxes._ssh_scripts import (
    DOCKER,
    DOWNLOAD,
    END,
    MISSING,
    OUTSIDE,
    START,
    START_INSIDE,
    UNUSABLE,
    UPLOAD,
    orders,
    run_command,
)
from ageval_boxes._stdio import Backlog
from ageval_boxes._tar import pack, unpack
from pytest_ageval.box import (
    ARTIFACTS,
    EVALUATION,
    HOME,
    ROOT,
    TIMEOUT_EXIT,
    WORKSPACE,
    BoundedStream,
    Box,
    BoxSpec,
    ExecResult,
    StdioTransport,
    check_path,
)
from pytest_ageval.errors import BoxError

__all__ = ["SshBox", "SshOptions"]

#: Seconds between TERM and KILL when the time of a command is up or the box is quiesced.
GRACE = 0.5

#: Seconds in which an image must have been pulled.
PULL_SECONDS = 1800.0

#: Seconds in which a started command must have said so.
BEGIN_SECONDS = 60.0

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_T = TypeVar("_T")


class SshOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The options of an ssh box.

    `host`, `port`, `user` (default: yours). `key_file` is the path of a private key, `key_env` the
    name of an environment variable that holds such a path; without either, the ssh agent and the
    usual files in ``~/.ssh`` are tried. The host must prove to be itself: by `known_hosts`, or by
    `host_key` (``SHA256:...`` or a line such as ``ssh-ed25519 AAAA...``). `root` is the directory on
    the host in which boxes are made (default ``/tmp/pytest-ageval-<uid>``). `connect_timeout` is in
    seconds. `image`: the box is a container of that image, made with the host's ``docker``.
    """

    host: str
    user: str | None = None
    port: int = 22
    key_file: str | None = None
    key_env: str | None = None
    known_hosts: str = "~/.ssh/known_hosts"
    host_key: str | None = None
    root: str | None = None
    connect_timeout: float = 10.0
    image: str | None = None


class SshBox(Box):
    """One directory on one host.

    `warnings` says what was left out of copies, and what earlier boxes had left on the host.
    """

    kind = "ssh"
    capabilities: ClassVar[frozenset[str]] = frozenset({"exec", "upload", "download", "attach_stdio"})
    Options = SshOptions

    #: The most that one download may bring, in bytes and in files.
    download_bytes: int = DOWNLOAD_BYTES
    download_files: int = DOWNLOAD_FILES

    def __init__(self, spec: BoxSpec) -> None:
        super().__init__(spec)
        self.warnings: list[str] = []
        self._state: Literal["new", "started", "stopped"] = "new"
        self._id = secrets.token_hex(8)
        self._root = ""
        self._place = _Place("", "", "")
        self._container: str | None = None
        self._path = ""
        self._note: leftovers.Note | None = None
        self._owned = False
        self._at: Host | None = None
        self._number = 0
        self._processes: set[Process] = set()
        self._transports: set[SshTransport] = set()

    @classmethod
    def describe(cls, options: Mapping[str, Any]) -> str:
        """``ssh (user@host)``."""
        user = f"{options['user']}@" if options.get("user") else ""
        image = f", {options['image']}" if options.get("image") else ""
        return f"ssh ({user}{options.get('host', '?')}{image})"

    # -- open ------------------------------------------------------------------------------------

    @property
    def address(self) -> Address:
        """Where the host is. Raises BoxError when the variable of `key_env` is not set."""
        given: SshOptions = self.options
        key = given.key_file
        if given.key_env is not None:
            key = os.environ.get(given.key_env)
            if not key:
                raise BoxError(
                    "environment_preflight_failed",
                    f"the environment variable {given.key_env} (option key_env) holds no path of a key",
                )
        if key is not None:
            key = str(Path(key).expanduser())
            if not Path(key).is_file():
                raise BoxError("environment_preflight_failed", f"the key {key} is not a file")
        return Address(
            given.host, given.user, given.port, key, given.known_hosts, given.host_key, given.connect_timeout
        )

    async def preflight(self) -> None:
        """Refuse a key that is not there, a host out of reach, a wrong host key, a refused login."""
        at = host(self.address)
        await in_thread(lambda: at.release(at.open("exit 0", script=True)))

    async def start(self) -> None:
        """Make the directories of the box on the host, and remove what earlier boxes left there."""
        if self._state != "new":
            raise BoxError("environment_already_started", f"this box is {self._state}")
        address = self.address
        at = self._at = host(address)
        self._state = "started"
        kept = {"cpus", "memory_mb", "pids"} if self.options.image else set()
        if asked := sorted(({"cpus", "memory_mb", "gpus", "storage_mb"} & set(self.spec.resources)) - kept):
            self.warnings.append(f"ssh boxes do not enforce {', '.join(asked)}")
        self.spec.work_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._owned = True
        note = self._note = leftovers.Note.new(self._id, self.spec.labels, address)
        # Before the directory exists: what has no note would never be found again.
        note.write(parent=self.options.root or "", container=self.options.image is not None)
        if self.options.image is None:
            await self._make_directory(at, note)
        else:
            await self._make_container(at, note, self.options.image)
        self.warnings += await in_thread(lambda: leftovers.sweep(address))

    async def _make_directory(self, at: Host, note: leftovers.Note) -> None:
        marker = json.dumps({name: value for name, value in note.data.items() if name != "address"})
        args = (note.data["parent"], leftovers.root_name(self._id), marker)
        done = await in_thread(lambda: at.run(START, *args))
        _refuse_start(at, done)
        self._root, self._path = done.stdout.rstrip("\n").rsplit("\n", 1)
        self._place = _Place(f"{self._root}/box", f"{self._root}/staging", f"{self._root}/tmp")
        note.write(root=self._root)

    async def _make_container(self, at: Host, note: leftovers.Note, image: str) -> None:
        name = leftovers.root_name(self._id)
        words = ["run", "-d", "--init", "--name", name, "--security-opt", "no-new-privileges"]
        for label, value in {**self.spec.labels, "ageval.box": self._id}.items():
            words += ["--label", f"{label}={value}"]
        limits = {"cpus": "--cpus={}", "memory_mb": "--memory={}m", "pids": "--pids-limit={}"}
        words += [limits[key].format(value) for key, value in self.spec.resources.items() if key in limits]
        words += ["--entrypoint", "tail", image, "-f", "/dev/null"]
        # The image may have to be pulled first; the phase has its own clock.
        _refuse_start(at, await in_thread(lambda: at.run(DOCKER, *words, timeout=PULL_SECONDS)))
        place = _Place(ROOT, "/var/tmp/ageval-staging", "/tmp")  # noqa: S108 - the container's own
        done = await in_thread(lambda: at.run(START_INSIDE, place.staging, container=name))
        _refuse_start(at, done)
        self._root, self._path, self._container, self._place = name, done.stdout.strip(), name, place
        note.write(root=name)

    def _opened(self) -> Host:
        if self._state != "started" or not self._root or self._at is None:
            word = "was stopped" if self._state == "stopped" else "was not started"
            raise BoxError("environment_not_started", f"this box {word}")
        return self._at

    def visible_path(self, path: str) -> str:
        """Where `path` is on the host, or in the container."""
        check_path(path)
        return str(PurePosixPath(self._place.box, *PurePosixPath(path).parts[2:]))

    def handle(self) -> dict[str, Any]:
        """Kind, id, address, root and labels, and the owner's pid and boot id."""
        return {} if self._note is None else dict(self._note.data)

    # -- commands --------------------------------------------------------------------------------

    def _environment(self, extra: Mapping[str, str] | None) -> dict[str, str]:
        env = {
            "PATH": self._path,
            "LANG": "C.UTF-8",
            "HOME": self.visible_path(HOME),
            "TMPDIR": self._place.tmp,
            "AGEVAL_WORKSPACE": self.visible_path(WORKSPACE),
            "AGEVAL_ARTIFACTS": self.visible_path(ARTIFACTS),
            "AGEVAL_EVALUATION": self.visible_path(EVALUATION),
            "AGEVAL_ATTEMPT_ID": self.spec.attempt_id,
        }
        for name, value in (extra or {}).items():
            if not _NAME.match(name) or "\0" in value:
                raise BoxError(
                    "environment_exec_invalid", f"{name!r} cannot be the name of a variable in an ssh box"
                )
            env[name] = value
        return env

    async def _start(
        self,
        argv: Sequence[str],
        cwd: str | None,
        env: Mapping[str, str] | None,
        user: str | None,
        errors: Callable[[bytes], None],
        stdin: bytes | None,
    ) -> Process:
        """Start `argv`; with `stdin` None it is left open."""
        at = self._opened()
        if user is not None:
            raise BoxError("environment_capability_missing", "ssh boxes have no other users")
        if isinstance(argv, str) or not argv or not argv[0] or any("\0" in word for word in argv):
            raise BoxError("environment_exec_invalid", f"{argv!r} is not a command with its arguments")
        place = self.visible_path(WORKSPACE if cwd is None else cwd)
        self._number += 1
        number, mark = self._number, f"ageval-{secrets.token_hex(8)}:"
        line = orders(argv, place, self._environment(env), mark)
        command = run_command(leftovers.cookie(self._id, number), self._container)
        channel = await in_thread(lambda: at.open(command), undo=at.release)
        process = Process(at, channel, number, mark)
        self._processes.add(process)
        process.pump_stderr(errors)

        def feed() -> None:
            # A command need not read what it is given.
            with contextlib.suppress(OSError, EOFError):
                channel.sendall(line)
                if stdin is not None:
                    channel.sendall(stdin)
                    channel.shutdown_write()

        start_thread(feed)
        try:
            await process.started(BEGIN_SECONDS)
        except BoxError as error:
            self._drop(process)
            if error.title == "environment_exec_invalid":
                raise BoxError(error.title, f"the directory {cwd} does not exist") from None
            raise
        except BaseException:
            self._abandon(process)
            raise
        return process

    def _drop(self, process: Process) -> None:
        self._processes.discard(process)
        process.release()

    def _abandon(self, process: Process) -> None:
        """End what we cannot wait for any more, in the background, also by a new connection."""
        self._drop(process)
        args = (f"{COOKIE}={leftovers.cookie(self._id, process.number)}", "", "0")

        def end() -> None:
            # Out of reach: the end of the box looks again, and then `reap`.
            with contextlib.suppress(BoxError):
                process.host.run(END, *args, container=self._container)

        start_thread(end)

    async def _end(self, process: Process, grace: float) -> None:
        """End all that `process` started, verified. Its runner lives on to tell the exit code."""
        needle = f"{COOKIE}={leftovers.cookie(self._id, process.number)}"
        spare = str(process.pid.result())
        args = (needle, spare, _twentieths(grace))
        run = process.host.run
        leftovers.ended(await in_thread(lambda: run(END, *args, container=self._container)))

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
        """Run `argv` to its end; see `Box.exec`.

        A command ended by signal n has the exit code 128+n. BoxError ``environment_connection_lost``
        when the connection was cut: how the command ended is then not known, and it is killed as soon
        as the host can be reached.
        """
        if service is not None:
            raise BoxError("environment_capability_missing", "ssh boxes have no services")
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        output, errors = BoundedStream(), BoundedStream()
        process = await self._start(argv, cwd, env, user, errors.feed, stdin or b"")
        process.pump_stdout(output.feed)
        timed_out = False
        try:
            left = None if deadline is None else max(0.0, deadline - loop.time())
            await asyncio.wait({process.exited}, timeout=left)
            if not process.exited.done():
                timed_out = True
                await self._end(process, GRACE)
                await asyncio.wait({process.exited}, timeout=2.0)
            code = process.exited.result() if process.exited.done() else TIMEOUT_EXIT
            if code is None:
                raise lost(process.host.address, f"while {argv[0]} ran")
            await process.drain()
        except BaseException:
            self._abandon(process)
            raise
        if process.drained:
            self._drop(process)
        # Otherwise a descendant still writes: it is read on, so that it neither blocks nor fails.
        (stdout, cut), (stderr, cut_too) = output.text(), errors.text()
        return ExecResult(TIMEOUT_EXIT if timed_out else code, stdout, stderr, cut or cut_too, timed_out)

    async def attach_stdio(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> StdioTransport:
        """Start a long-lived process; see `Box.attach_stdio`. `terminate` ends everything it started."""
        errors = Backlog()
        process = await self._start(argv, cwd, env, user, errors.feed, None)
        transport = SshTransport(process, lambda grace: self._end(process, grace), errors)
        self._transports.add(transport)
        return transport

    # -- files -----------------------------------------------------------------------------------

    async def upload(self, source: Path, dest: str, *, service: str | None = None) -> None:
        """Copy into the box; see `Box.upload`. FIFOs, sockets and devices are left out (`warnings`)."""
        at, path = self._copying(dest, service)
        if len(path.parts) == 2:
            raise BoxError("environment_path_invalid", f"{dest} cannot be replaced as a whole")
        try:
            info = source.lstat()  # noqa: ASYNC240 - one stat call
        except OSError as error:
            raise BoxError("environment_upload_missing", f"{source}: {error}") from error
        mode = f"{stat.S_IMODE(info.st_mode) & 0o777:o}" if stat.S_ISDIR(info.st_mode) else ""
        notes: list[str] = []

        def send(channel: Any) -> None:
            notes.extend(pack(source, "x", _Writer(channel)))

        args = (self._place.box, *self._inner(path), mode, self._place.staging)
        try:
            done = await in_thread(
                lambda: at.run(UPLOAD, *args, container=self._container, feed=send, timeout=120.0)
            )
        except (OSError, tarfile.TarError) as error:
            raise BoxError("environment_upload_failed", f"{source} to {dest}: {error}") from error
        self._check(done, dest, "environment_upload_failed")
        self.warnings += [f"upload of {source.name}{note[1:]}" for note in notes]

    async def download(self, source: str, dest: Path, *, service: str | None = None) -> None:
        """Copy out of the box; see `Box.download`. A tree or file replaces `dest`.

        BoxError ``environment_download_too_large`` beyond `download_bytes` or `download_files`.
        FIFOs, sockets, devices and unreadable files are left out (`warnings`).
        """
        at, path = self._copying(source, service)
        parent, name = self._inner(path)
        args = (self._place.box, parent, name)
        budget = Budget("environment_download_too_large", self.download_bytes, self.download_files)
        arrived = False

        def take(channel: Any) -> None:
            nonlocal arrived
            stream = _Reader(channel)
            try:
                arrived = unpack(stream, name, dest, budget)
            except tarfile.TarError as error:
                if stream.total:
                    raise OSError(f"the copy is not whole: {error}") from error
            while stream.read(65536):  # the padding after the end
                pass

        try:
            done = await in_thread(
                lambda: at.run(DOWNLOAD, *args, container=self._container, take=take, timeout=120.0)
            )
        except OSError as error:
            raise BoxError("environment_download_failed", f"{source}: {error}") from error
        if done.code in (OUTSIDE, MISSING) or not arrived:
            self._check(done, source, "environment_download_failed")
            raise BoxError("environment_download_missing", f"{source}: {'; '.join(budget.notes)}")
        if done.code != 0:
            budget.notes += done.stderr.strip().splitlines()[:20]
        self.warnings += [f"download of {note}" for note in budget.notes]

    def _copying(self, path: str, service: str | None) -> tuple[Host, PurePosixPath]:
        if service is not None:
            raise BoxError("environment_capability_missing", "ssh boxes have no services")
        at = self._opened()
        return at, check_path(path)

    def _inner(self, path: PurePosixPath) -> tuple[str, str]:
        """The parent directory and the name of a path of the box, for the scripts."""
        if len(path.parts) == 2:
            return "..", PurePosixPath(self._place.box).name
        return str(PurePosixPath(".", *path.parts[2:-1])), path.name

    @staticmethod
    def _check(done: Done, path: str, title: str) -> None:
        if done.code == OUTSIDE:
            raise BoxError("environment_path_invalid", f"{path}: {done.stderr.strip()[-500:]}")
        if done.code == MISSING:
            raise BoxError("environment_download_missing", f"{path} does not exist")
        if done.code != 0:
            raise BoxError(title, f"{path}: {done.stderr.strip()[-500:] or done.code}")

    # -- the end ---------------------------------------------------------------------------------

    async def quiesce(self) -> list[str]:
        """Kill everything in the box, verify, and say what was killed."""
        at = self._opened()
        needle = f"{COOKIE}={leftovers.cookie(self._id)}"
        args = (needle, "", _twentieths(GRACE))
        done = await in_thread(lambda: at.run(END, *args, container=self._container))
        self._let_go()
        return leftovers.ended(done)

    def _let_go(self) -> None:
        for transport in self._transports:
            transport.close()
        self._transports.clear()
        for process in self._processes:
            process.release()
        self._processes.clear()

    async def stop(self, *, delete: bool = True) -> None:
        """Kill everything in the box, verify, and remove its files unless `delete` is False.

        BoxError ``environment_stop_failed`` if the host is out of reach: the box is then removed at
        the next contact with it.
        """
        self._state = "stopped"
        try:
            if self._note is not None:
                await self._remove(self._note, delete)
        finally:
            self._let_go()
            if self._owned and delete:
                self._owned = False
                await asyncio.to_thread(remove_tree, self.spec.work_dir)

    async def _remove(self, note: leftovers.Note, delete: bool) -> None:
        at = host(note.address)
        try:
            await _twice(lambda: in_thread(lambda: leftovers.remove(at, note, keep=not delete, timeout=6.0)))
        except BoxError as error:
            note.write(orphan=True)
            raise BoxError(
                "environment_stop_failed",
                f"{self._root or 'a box'} on {note.address} is still there ({error.message}); it is "
                "removed when the host is used next, or by: pytest-ageval clean",
            ) from error
        note.forget()
        self._note = None

    @classmethod
    def reap(cls, labels: Mapping[str, str]) -> list[str]:
        """Remove boxes noted on this machine with these labels whose owner is gone (or is us)."""
        return leftovers.reap(labels)


@dataclass(frozen=True, slots=True)
class _Place:
    """Directories of a box: what is its ``/attempt``, where copies are prepared, temporary files."""

    box: str
    staging: str
    tmp: str


def _refuse_start(at: Host, done: Done) -> None:
    if done.code != 0:
        title = "environment_preflight_failed" if done.code == UNUSABLE else "environment_start_failed"
        raise BoxError(title, f"{at.address}: {done.stderr.strip()[-500:]}")


class _Writer:
    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def write(self, data: bytes) -> int:
        self._channel.sendall(data)
        return len(data)


class _Reader:
    """Also counts, so that nothing at all can be told from half of something."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self.total = 0

    def read(self, size: int) -> bytes:
        data: bytes = self._channel.recv(size)
        self.total += len(data)
        return data


async def _twice(work: Callable[[], Awaitable[_T]]) -> _T:
    """Try again with a new connection when the old one turns out to be lost."""
    try:
        return await work()
    except BoxError as error:
        if error.title != "environment_connection_lost":
            raise
        return await work()


def _twentieths(seconds: float) -> str:
    return str(max(0, round(seconds * 20)))
