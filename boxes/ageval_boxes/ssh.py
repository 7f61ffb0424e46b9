"""The kind ``ssh``: a directory on a host that is reached with ssh, or a container there.

Without `image`, ``/attempt`` is a directory of the host (`visible_path` says which); commands run as
the user who logs in, with nothing but ssh between them and the rest of that host. It keeps attempts
apart from this machine, its data sets and its credentials; it does not keep attempts of the same user
on the same host apart from each other. The host needs Linux, ``sh``, coreutils, awk, grep and tar.

With `image` the box is a container of the host's docker, nothing of the host is mounted into it,
``/attempt`` is real, and the image needs those programs.

Processes are found again by a variable in their environment, by their parents and by their session;
one that clears its environment, leaves its session and loses its parent can stay until the end of
its container, and without a container for longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal

import msgspec

from ageval_boxes import _ssh_adoption
from ageval_boxes import _ssh_leftovers as leftovers
from ageval_boxes._files import DOWNLOAD_BYTES, DOWNLOAD_FILES, Budget, remove_tree
from ageval_boxes._leftovers import MARKER
from ageval_boxes._processes import COOKIE
from ageval_boxes._ssh_connection import BROKEN, Address, Host, host, in_thread, lost, start_thread
from ageval_boxes._ssh_copies import get, put
from ageval_boxes._ssh_forward import forwarded
from ageval_boxes._ssh_place import LIMITS, Place, find_container, open_container, open_directory
from ageval_boxes._ssh_process import Process, SshTransport
from ageval_boxes._ssh_scripts import END, orders, run_command
from ageval_boxes._stdio import Backlog
from pytest_ageval.box import (
    ARTIFACTS,
    EVALUATION,
    HOME,
    TIMEOUT_EXIT,
    WORKSPACE,
    BoundedStream,
    Box,
    BoxSpec,
    ExecResult,
    Leftover,
    ProbeStatus,
    StdioTransport,
    check_path,
)
from pytest_ageval.errors import BoxError

__all__ = ["SshBox", "SshOptions"]

#: Seconds between TERM and KILL when the time of a command is up or the box is quiesced.
GRACE = 0.5

#: Seconds in which a started command must have said so.
BEGIN_SECONDS = 60.0

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class SshOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The options of an ssh box.

    `host`, `port`, `user` (default: yours). `key_file` is the path of a private key, `key_env` the
    name of an environment variable that holds such a path; without either, the ssh agent and the
    usual files in ``~/.ssh`` are tried. The host must prove to be itself: by `known_hosts`, or by
    `host_key` (``SHA256:...`` or a line such as ``ssh-ed25519 AAAA...``). `root` is the directory on
    the host in which boxes are made (default ``/tmp/pytest-ageval-<uid>``). `connect_timeout` is in
    seconds. `image`: the box is a container of that image, made with the host's ``docker``. `cache`:
    agents' installs are kept on the host, in the cache directory of the user who logs in.
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
    cache: bool = True


class SshBox(Box):
    """One directory on one host.

    `warnings` says what was left out of copies, and what earlier boxes had left on the host.
    """

    kind = "ssh"
    capabilities: ClassVar[frozenset[str]] = frozenset({"exec", "upload", "download", "attach_stdio"})
    Options = SshOptions
    keeps_notes = True
    elsewhere = True

    #: The most that one download may bring, in bytes and in files.
    download_bytes: int = DOWNLOAD_BYTES
    download_files: int = DOWNLOAD_FILES

    def __init__(self, spec: BoxSpec) -> None:
        super().__init__(spec)
        self.warnings: list[str] = []
        self._state: Literal["new", "started", "stopped"] = "new"
        self._id = secrets.token_hex(8)
        self._place: Place | None = None
        self._note: leftovers.Note | None = None
        self._owned = False
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
        return self._address(self.options)

    @staticmethod
    def _address(given: SshOptions) -> Address:
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
        # A host that was never reached holds nothing of us, and needs no note.
        await self.preflight()
        address = self.address
        at = host(address)
        self._begin()
        note = self._note = leftovers.Note.new(self._id, self.spec.labels, address)
        work = self.spec.work_dir
        note.mark(work)
        # Before the directory exists: what has no note would never be found again.
        container = self.options.image is not None
        note.write(parent=self.options.root or "", container=container, work_dir=str(work))
        self._place = await in_thread(lambda: self._make(at, note))
        note.write(root=self._place.root)
        self.warnings += await in_thread(lambda: leftovers.sweep(address))

    def _begin(self) -> None:
        self._state = "started"
        self._owned = True
        kept = set(LIMITS) if self.options.image else set()
        if asked := sorted(({"cpus", "memory_mb", "gpus", "storage_mb"} & set(self.spec.resources)) - kept):
            self.warnings.append(f"ssh boxes do not enforce {', '.join(asked)}")

    def _make(self, at: Host, note: leftovers.Note) -> Place:
        cache: bool = self.options.cache
        if self.options.image is None:
            return open_directory(at, note, cache=cache)
        resources = self.spec.resources
        return open_container(at, note, self.options.image, self.spec.labels, resources, cache=cache)

    @property
    def _open(self) -> Place:
        if self._state != "started" or self._place is None:
            word = "was stopped" if self._state == "stopped" else "was not started"
            raise BoxError("environment_not_started", f"this box {word}")
        return self._place

    def visible_path(self, path: str) -> str:
        """Where `path` is on the host, or in the container. Raises BoxError before the box was started."""
        check_path(path)
        if self._place is None:
            raise BoxError("environment_not_started", "where this box is will be known when it was started")
        return self._place.inside(path)

    async def forward(self, port: int) -> str | None:
        """A port of the host's loopback that leads here; None where the box is a container there."""
        place = self._open
        if place.container is not None:
            return None
        return await in_thread(lambda: forwarded(place.at, port))

    def handle(self) -> dict[str, Any]:
        """Kind, id, address, root and labels, and the owner's pid and boot id."""
        return {} if self._note is None else dict(self._note.data)

    def cache_path(self) -> str | None:
        """A directory of the user who logs in, or of all containers of the image; None before the start."""
        return None if self._place is None else self._place.cache

    # -- a box of another process ----------------------------------------------------------------

    async def probe(self, handle: Mapping[str, Any]) -> ProbeStatus:
        """See `Box.probe`. BoxError when the host is out of reach, or not the one that the options name."""
        return await _ssh_adoption.probe(handle, self.address)

    async def attach(self, handle: Mapping[str, Any]) -> None:
        """Take over; see `Box.attach`. A container that was stopped is started again."""
        if self._state != "new":
            raise BoxError("environment_already_started", f"this box is {self._state}")
        container = self.options.image is not None
        address, work = self.address, self.spec.work_dir
        note = await _ssh_adoption.take_over(handle, address, self.spec.labels, work, container=container)
        # From here on `stop` removes it.
        self._id, self._note = note.box_id, note
        self._begin()
        note.mark(work)
        at = host(address)
        cache: bool = self.options.cache
        self._place = await in_thread(
            lambda: (
                find_container(at, note) if container else open_directory(at, note, cache=cache, again=True)
            )
        )

    async def discard(self, handle: Mapping[str, Any]) -> None:
        """End and remove; see `Box.discard`. With the host out of reach it goes at the next contact."""
        await _ssh_adoption.discard(handle, self.address)

    # -- commands --------------------------------------------------------------------------------

    def _environment(self, place: Place, extra: Mapping[str, str] | None) -> dict[str, str]:
        env = {
            "PATH": place.path,
            "LANG": "C.UTF-8",
            "HOME": place.inside(HOME),
            "TMPDIR": place.tmp,
            "AGEVAL_WORKSPACE": place.inside(WORKSPACE),
            "AGEVAL_ARTIFACTS": place.inside(ARTIFACTS),
            "AGEVAL_EVALUATION": place.inside(EVALUATION),
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
        place = self._open
        if user is not None:
            raise BoxError("environment_capability_missing", "ssh boxes have no other users")
        if isinstance(argv, str) or not argv or not argv[0] or any("\0" in word for word in argv):
            raise BoxError("environment_exec_invalid", f"{argv!r} is not a command with its arguments")
        directory = place.inside(WORKSPACE if cwd is None else str(check_path(cwd)))
        self._number += 1
        number, mark = self._number, f"ageval-{secrets.token_hex(8)}:"
        line = orders(argv, directory, self._environment(place, env), mark)
        command = run_command(leftovers.cookie(self._id, number), place.container)
        channel = await in_thread(lambda: place.at.open(command), undo=place.at.release)
        process = Process(place.at, channel, number, mark)
        self._processes.add(process)
        process.pump_stderr(errors)

        def feed() -> None:
            # A command need not read what it is given.
            with contextlib.suppress(*BROKEN):
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
        place = self._place
        assert place is not None  # the process was started
        args = (f"{COOKIE}={leftovers.cookie(self._id, process.number)}", "", "0")

        def end() -> None:
            # Out of reach: the end of the box looks again, and then `reap`.
            with contextlib.suppress(BoxError):
                place.run(END, *args)

        start_thread(end)

    async def _end(self, process: Process, grace: float) -> None:
        """End all that `process` started, verified. Its runner lives on to tell the exit code."""
        needle = f"{COOKIE}={leftovers.cookie(self._id, process.number)}"
        spare = str(process.pid.result())
        args = (needle, spare, _twentieths(grace))
        place = self._place
        assert place is not None  # the process was started
        leftovers.ended(await in_thread(lambda: place.run(END, *args)))

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
        place, path = self._copying(dest, service)
        if len(path.parts) == 2:
            raise BoxError("environment_path_invalid", f"{dest} cannot be replaced as a whole")
        notes = await in_thread(lambda: put(place, source, path))
        self.warnings += [f"upload of {note}" for note in notes]

    async def download(self, source: str, dest: Path, *, service: str | None = None) -> None:
        """Copy out of the box; see `Box.download`. A tree or file replaces `dest`.

        BoxError ``environment_download_too_large`` beyond `download_bytes` or `download_files`.
        FIFOs, sockets, devices and unreadable files are left out (`warnings`).
        """
        place, path = self._copying(source, service)
        budget = Budget("environment_download_too_large", self.download_bytes, self.download_files)
        notes = await in_thread(lambda: get(place, path, dest, budget))
        self.warnings += [f"download of {note}" for note in notes]

    def _copying(self, path: str, service: str | None) -> tuple[Place, PurePosixPath]:
        if service is not None:
            raise BoxError("environment_capability_missing", "ssh boxes have no services")
        place = self._open
        return place, check_path(path)

    # -- the end ---------------------------------------------------------------------------------

    async def quiesce(self) -> list[str]:
        """Kill everything in the box, verify, and say what was killed."""
        place = self._open
        needle = f"{COOKIE}={leftovers.cookie(self._id)}"
        args = (needle, "", _twentieths(GRACE))
        done = await in_thread(lambda: place.run(END, *args))
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
                await _ssh_adoption.end(self._note, keep=not delete)
                self._note = None
        finally:
            self._let_go()
            if self._owned and delete:
                self._owned = False
                await asyncio.to_thread(remove_tree, self.spec.work_dir)
            elif self._owned:
                # What was kept on purpose is not a leftover.
                (self.spec.work_dir / MARKER).unlink(missing_ok=True)

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> str | None:
        """No host, no paramiko, no key where one is named. The host itself is not asked."""
        if not options.get("host"):
            return "the kind ssh needs to know a host\n--box-option host=NAME"
        if importlib.util.find_spec("paramiko") is None:
            return "paramiko is not installed\npip install 'pytest-ageval[ssh]'"
        try:
            cls._address(msgspec.convert(dict(options), SshOptions))
        except (BoxError, msgspec.ValidationError) as error:
            said = error.message if isinstance(error, BoxError) else str(error)
            return f"{said}\nmend the options of the box"
        return None

    @classmethod
    def leftovers(cls, labels: Mapping[str, str]) -> list[Leftover]:
        """Boxes noted on this machine with these labels. No host is asked whether they are still there."""
        return leftovers.find(labels)

    @classmethod
    def reap(cls, labels: Mapping[str, str]) -> list[str]:
        """Remove boxes noted on this machine with these labels whose owner is gone (or is us)."""
        return leftovers.reap(labels)


def _twentieths(seconds: float) -> str:
    return str(max(0, round(seconds * 20)))
