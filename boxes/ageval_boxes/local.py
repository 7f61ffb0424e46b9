"""The kind ``local``: commands on this machine, behind bubblewrap where it works.

With bubblewrap (``isolation: bwrap``, or ``auto`` where it is usable) ``/attempt`` is real, the
host's programs are visible read-only, and neither the operator's HOME, the data set, the evidence
nor any process outside the box is. The network is the host's. Without it (``isolation: none``) the
box is a plain directory: it keeps honest agents apart and holds nothing back from others.

What a command leaves running stays until the box is quiesced (when the run phase ends) or stopped.
With ``background: kill`` (the default) quiescing kills everything in the box. With ``keep`` it
kills what still belongs to a command or an attached process, and keeps what has detached itself (a
server that the task asked for: its parent is gone), until the box is stopped. A command whose time
is up always loses everything that it started.

Limits that a task asks for (``cpus``, ``memory_mb``) are not enforced: see `LocalBox.warnings`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal

import msgspec

from ageval_boxes import _adoption, _bubblewrap, _leftovers
from ageval_boxes._commands import Commands, IsolatedCommands, Run
from ageval_boxes._files import DOWNLOAD_BYTES, DOWNLOAD_FILES, Budget, get, put, remove_tree
from ageval_boxes._leftovers import default_work_parent
from ageval_boxes._processes import DRAIN, Proc, Pump, end_processes, kill_now, label
from ageval_boxes._stdio import PipeTransport
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
    work_parent,
)
from pytest_ageval.errors import BoxError

__all__ = ["LocalBox", "LocalOptions", "default_work_parent"]

#: What mends unusable bubblewrap.
REMEDY = "install bubblewrap and allow user namespaces, or choose another box"

#: Seconds between TERM and KILL when the time of a command is up or the box is quiesced.
GRACE = 0.5


class LocalOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The options of a local box.

    `isolation`: ``bwrap`` fails where bubblewrap cannot be used, ``auto`` then goes on without.
    `background`: what `quiesce` does with processes that detached themselves.
    `expose`: further host paths that the box shows read-only (``~`` is expanded); without isolation
    every host path is visible anyway.
    """

    isolation: Literal["auto", "bwrap", "none"] = "auto"
    background: Literal["kill", "keep"] = "kill"
    expose: list[str] = msgspec.field(default_factory=list)


class LocalBox(Box):
    """One box on this machine (Linux).

    `warnings` says what was asked for and not done: resources that are not enforced, special files
    that were not copied, processes that `quiesce` kept.
    """

    kind = "local"
    capabilities: ClassVar[frozenset[str]] = frozenset({"exec", "upload", "download", "attach_stdio"})
    Options = LocalOptions

    #: The most that one download may bring, in bytes and in files.
    download_bytes: int = DOWNLOAD_BYTES
    download_files: int = DOWNLOAD_FILES

    def __init__(self, spec: BoxSpec) -> None:
        super().__init__(spec)
        self.warnings: list[str] = []
        self._state: Literal["new", "started", "stopped"] = "new"
        self._owned = False
        self._id = secrets.token_hex(8)
        self._adopted = False
        self._set_work(spec.work_dir)
        self._exposed = [Path(text) for text in self.options.expose]
        self._open: Commands | None = None
        self._transports: list[PipeTransport] = []
        self._pumps: set[Pump] = set()

    def _set_work(self, work: Path) -> None:
        self._work = work
        self._files = work / "box"
        self._staging = work / "staging"

    @classmethod
    def describe(cls, options: Mapping[str, Any]) -> str:
        """``local (bubblewrap)`` or ``local (no isolation)``."""
        return f"local ({'bubblewrap' if cls._isolates(options.get('isolation')) else 'no isolation'})"

    @staticmethod
    def _isolates(isolation: object) -> bool:
        return isolation == "bwrap" or (isolation != "none" and _bubblewrap.unusable() is None)

    @property
    def isolated(self) -> bool:
        """The box is behind bubblewrap."""
        return self._isolates(self.options.isolation)

    async def preflight(self) -> None:
        """Refuse another system than Linux, unusable bubblewrap where asked for, an unwritable parent."""
        why = await asyncio.to_thread(self.check, {"isolation": self.options.isolation})
        if why is not None:
            raise BoxError("environment_preflight_failed", why.replace("\n", "; "))
        parent = self.spec.work_dir.parent
        while not parent.exists():
            parent = parent.parent
        if not os.access(parent, os.W_OK | os.X_OK):
            raise BoxError("environment_preflight_failed", f"{parent} is not writable")

    async def start(self) -> None:
        """Make the directories of the box. Nothing runs yet."""
        await self._begin()
        try:
            self._make_directories()
        except OSError as error:
            raise BoxError("environment_start_failed", str(error)) from error
        self._open_up()

    async def _begin(self) -> None:
        if self._state != "new":
            raise BoxError("environment_already_started", f"this box is {self._state}")
        await self.preflight()
        self._state = "started"
        if asked := sorted({"cpus", "memory_mb", "gpus", "storage_mb"} & set(self.spec.resources)):
            self.warnings.append(f"local boxes do not enforce {', '.join(asked)}")

    def _open_up(self) -> None:
        tmp = self._work / "tmp"
        if not self.isolated:
            self._open = Commands(self._id, self._files, tmp)
            return
        known = (self.spec.dataset_root, self.spec.task_root)
        hidden = [*self.spec.hidden, *(path for path in known if path is not None)]
        view = _bubblewrap.View(hidden, self._exposed)
        self._open = IsolatedCommands(self._id, self._files, tmp, view)

    def _make_directories(self) -> None:
        work = self._work
        if work_parent() in work.parents:
            default_work_parent()
        work.mkdir(mode=0o700, parents=True, exist_ok=True)
        note = _leftovers.marker(self._id, self.spec.labels, self.kind)
        # Exclusive: two boxes never share a directory, and none inherits another one's files.
        with (work / _leftovers.MARKER).open("x", encoding="utf-8") as file:
            self._owned = True
            json.dump(note, file)
        for path in (WORKSPACE, HOME, ARTIFACTS):
            (self._files / PurePosixPath(path).name).mkdir(parents=True)
        (work / "tmp").mkdir()
        (work / "tmp").chmod(0o1777)

    @property
    def _commands(self) -> Commands:
        if self._open is None or self._state != "started":
            word = "was stopped" if self._state == "stopped" else "was not started"
            raise BoxError("environment_not_started", f"this box {word}")
        return self._open

    def expose(self, path: Path) -> None:
        """Show a host path (a runtime of an agent) read-only to every command that starts from now on.

        Raises BoxError ``environment_expose_invalid`` if it does not exist or is hidden from the box.
        """
        self._exposed.append(path)
        if isinstance(self._open, IsolatedCommands):
            self._open.view.expose(path)

    def visible_path(self, path: str) -> str:
        """`path` itself behind bubblewrap, else where it is on the host."""
        check_path(path)
        return path if self.isolated else str(self._host(path))

    def host_path(self, path: str) -> Path:
        """Where `path` is on the host. The box may have made any part of it a symbolic link."""
        check_path(path)
        return self._host(path)

    def _host(self, path: str) -> Path:
        return self._files.joinpath(*PurePosixPath(path).parts[2:])

    def python_command(self) -> Sequence[str]:
        """The interpreter that runs us; its prefix is visible in the box."""
        return (sys.executable,)

    async def forward(self, port: int) -> str | None:
        """The network of a local box is this machine's, with and without isolation."""
        return f"127.0.0.1:{port}"

    def handle(self) -> dict[str, Any]:
        """Kind, id, work directory, labels, and the owner's pid and boot id."""
        note = _leftovers.marker(self._id, self.spec.labels, self.kind)
        return {**note, "work_dir": str(self._work), "isolated": self.isolated}

    async def probe(self, handle: Mapping[str, Any]) -> ProbeStatus:
        """See `Box.probe`. Any process that is still in the box makes it busy."""
        return await asyncio.to_thread(_adoption.probe, handle, self.kind)

    async def attach(self, handle: Mapping[str, Any]) -> None:
        """Take over; see `Box.attach`. The work directory is that of the handle."""
        if self._state != "new":
            raise BoxError("environment_already_started", f"this box is {self._state}")
        _adoption.refuse_other(handle, self.kind, "id", "work_dir")
        if bool(handle.get("isolated")) != self.isolated:
            raise BoxError(
                "environment_attach_invalid",
                f"the box was opened with isolation: {'bwrap' if handle.get('isolated') else 'none'}; "
                "its paths would be others now",
            )
        note = _leftovers.marker(str(handle["id"]), self.spec.labels, self.kind)
        work = await asyncio.to_thread(_adoption.take_over, handle, note)
        # From here on `stop` removes it.
        self._id, self._owned, self._adopted = str(handle["id"]), True, True
        self._set_work(work)
        await self._begin()
        self._open_up()

    async def discard(self, handle: Mapping[str, Any]) -> None:
        """End and remove; see `Box.discard`."""
        await asyncio.to_thread(_adoption.discard, handle, self.kind)

    def _environment(self, commands: Commands, extra: Mapping[str, str] | None) -> dict[str, str]:
        env = {
            "PATH": commands.path,
            "LANG": os.environ.get("LANG", "C.UTF-8"),
            "HOME": commands.translate(HOME),
            "TMPDIR": commands.visible_tmp,
            "AGEVAL_WORKSPACE": commands.translate(WORKSPACE),
            "AGEVAL_ARTIFACTS": commands.translate(ARTIFACTS),
            "AGEVAL_EVALUATION": commands.translate(EVALUATION),
            "AGEVAL_ATTEMPT_ID": self.spec.attempt_id,
        }
        for name, value in (extra or {}).items():
            if not name or "=" in name or "\0" in name + value:
                raise BoxError("environment_exec_invalid", f"{name!r} is no environment variable")
            env[name] = value
        return env

    async def _start(
        self,
        argv: Sequence[str],
        cwd: str | None,
        env: Mapping[str, str] | None,
        user: str | None,
        stdin: int,
    ) -> Run:
        commands = self._commands
        if user is not None:
            raise BoxError("environment_capability_missing", "local boxes have no other users")
        if isinstance(argv, str) or not argv or not argv[0] or any("\0" in word for word in argv):
            raise BoxError("environment_exec_invalid", f"{argv!r} is not a command with its arguments")
        place = WORKSPACE if cwd is None else str(check_path(cwd))
        return await commands.start(argv, cwd=place, env=self._environment(commands, env), stdin=stdin)

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

        A command ended by signal n has the exit code 128+n, one that does not exist 127, as in a
        shell. What it leaves running in the background goes on; its output is then no longer read.
        """
        if service is not None:
            raise BoxError("environment_capability_missing", "local boxes have no services")
        source = subprocess.DEVNULL if stdin is None else _in_memory(stdin)
        try:
            run = await self._start(argv, cwd, env, user, source)
        finally:
            if source >= 0:
                os.close(source)
        return await self._finish(run, timeout)

    async def _finish(self, run: Run, timeout: float | None) -> ExecResult:
        commands = self._commands
        streams = (BoundedStream(), BoundedStream())
        pumps = _pump(run, streams)
        self._pumps.update(pumps)
        for pump in pumps:
            pump.ended.add_done_callback(functools.partial(self._forget, pump))
        timed_out = False
        try:
            code = await run.child.wait(timeout)
            if code is None:
                timed_out = True
                _ended, left = await end_processes(lambda: commands.of_run(run), GRACE)
                _refuse(left)
                code = await run.child.wait(1.0)
            await asyncio.wait([pump.ended for pump in pumps], timeout=DRAIN)
        except BaseException:
            kill_now(lambda: commands.of_run(run))
            raise
        finally:
            for pump in pumps:
                pump.detach()
        (stdout, cut), (stderr, cut_too) = (stream.text() for stream in streams)
        code = commands.exit_code(0 if code is None else code, stderr[:4096].encode())
        if code == 1 and stderr.startswith("bwrap: Can't chdir to "):
            raise BoxError("environment_exec_invalid", stderr.strip().removeprefix("bwrap: "))
        if code < 0:
            code = 128 - code
        return ExecResult(TIMEOUT_EXIT if timed_out else code, stdout, stderr, cut or cut_too, timed_out)

    def _forget(self, pump: Pump, _done: object) -> None:
        self._pumps.discard(pump)

    async def attach_stdio(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> StdioTransport:
        """Start a long-lived process; see `Box.attach_stdio`.

        `terminate` ends everything the process started; with ``background: keep``, only what has
        not detached itself.
        """
        run = await self._start(argv, cwd, env, user, subprocess.PIPE)
        commands = self._commands
        find = commands.attached if self.options.background == "keep" else commands.of_run

        async def end(grace: float) -> None:
            _ended, left = await end_processes(lambda: find(run), grace)
            _refuse(left)

        transport = PipeTransport(run.child, end, commands.exit_code)
        self._transports.append(transport)
        return transport

    async def upload(self, source: Path, dest: str, *, service: str | None = None) -> None:
        """Copy into the box; see `Box.upload`. FIFOs, sockets and devices are left out (`warnings`)."""
        visible, path = self._copying(dest, service)
        if len(path.parts) == 2:
            raise BoxError("environment_path_invalid", f"{dest} cannot be replaced as a whole")
        try:
            notes = await asyncio.to_thread(put, self._files, self._staging, source, path, visible)
        except FileNotFoundError as error:
            raise BoxError("environment_upload_missing", f"{source} does not exist") from error
        except OSError as error:
            raise BoxError("environment_upload_failed", f"{source} to {dest}: {error}") from error
        self.warnings += [f"upload of {note}" for note in notes]

    async def download(self, source: str, dest: Path, *, service: str | None = None) -> None:
        """Copy out of the box; see `Box.download`. A tree or file replaces `dest`.

        BoxError ``environment_download_too_large`` beyond `download_bytes` or `download_files`.
        FIFOs, sockets, devices and unreadable files are left out (`warnings`).
        """
        visible, path = self._copying(source, service)
        budget = Budget("environment_download_too_large", self.download_bytes, self.download_files)
        try:
            notes = await asyncio.to_thread(get, self._files, path, dest, visible, budget)
        except FileNotFoundError as error:
            raise BoxError("environment_download_missing", f"{source} does not exist") from error
        except OSError as error:
            raise BoxError("environment_download_failed", f"{source}: {error}") from error
        self.warnings += [f"download of {note}" for note in notes]

    def _copying(self, path: str, service: str | None) -> tuple[str, PurePosixPath]:
        if service is not None:
            raise BoxError("environment_capability_missing", "local boxes have no services")
        return self._commands.visible, check_path(path)

    async def quiesce(self) -> list[str]:
        """Kill what runs in the box, verify, and say what was killed; see the module for ``background``."""
        commands = self._commands
        if self.options.background == "kill":
            ended, left = await commands.end_everyone(GRACE)
        else:
            ended, left = await end_processes(lambda: _attached(commands), GRACE)
            kept = await asyncio.to_thread(commands.everyone)
            self.warnings += [f"kept running: {label(proc.pid)}" for proc in kept]
        _refuse(left)
        await self._let_go(kept=self.options.background == "keep")
        return ended

    async def _let_go(self, *, kept: bool) -> None:
        """Close our ends of the streams of processes that are gone."""
        for transport in self._transports:
            await transport.wait(1.0)
            transport.close()
        self._transports.clear()
        if not kept:
            for pump in list(self._pumps):
                pump.close()

    async def stop(self, *, delete: bool = True) -> None:
        """Kill everything in the box at once, verify, and remove its files unless `delete` is False."""
        commands = self._open
        self._state = "stopped"
        left: list[str] = []
        if commands is not None:
            commands.kill()  # before anything can interrupt us
            _ended, left = await commands.end_everyone(0)
            waiting = [run.child.exited for run in commands.runs]
            if waiting:
                await asyncio.wait(waiting, timeout=1.0)
            await self._let_go(kept=False)
        work = self._work
        if not self._owned:
            return
        if delete:
            # The directories above a box that was taken over belong to a run that is gone.
            remove = _leftovers.remove_directory if self._adopted else remove_tree
            try:
                await asyncio.to_thread(remove, work)
            except OSError as error:
                raise BoxError("environment_stop_failed", f"{work}: {error}") from error
        else:
            # What was kept on purpose is not a leftover.
            with contextlib.suppress(FileNotFoundError):
                (work / _leftovers.MARKER).unlink()
        _refuse(left)

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> str | None:
        """Not Linux; unusable bubblewrap where ``isolation: bwrap`` asks for it."""
        if not sys.platform.startswith("linux"):
            return "the kind local needs Linux\nuse docker"
        if options.get("isolation") == "bwrap" and (why := _bubblewrap.unusable()) is not None:
            return f"{why}\n{REMEDY}"
        return None

    @classmethod
    def leftovers(cls, labels: Mapping[str, str]) -> list[Leftover]:
        """Boxes below `work_parent` with these labels; those of this process count as left over."""
        return _leftovers.find(cls.kind, labels)

    @classmethod
    def reap(cls, labels: Mapping[str, str]) -> list[str]:
        """Remove boxes below `default_work_parent` with these labels whose owner is gone (or is us)."""
        return _leftovers.reap(labels, cls.kind)


def _attached(commands: Commands) -> list[Proc]:
    found = {proc.pid: proc for run in list(commands.runs) for proc in commands.attached(run)}
    return list(found.values())


def _refuse(left: Sequence[str]) -> None:
    if left:
        raise BoxError("environment_processes_left", f"could not be killed: {', '.join(left)}")


def _in_memory(data: bytes) -> int:
    """A file descriptor from which `data` can be read, without anyone having to write it."""
    fd = os.memfd_create("stdin")
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _pump(run: Run, streams: Sequence[BoundedStream]) -> list[Pump]:
    pumps = []
    for pipe, stream in zip((run.child.popen.stdout, run.child.popen.stderr), streams, strict=True):
        if pipe is not None:
            pumps.append(Pump(pipe.fileno(), stream.feed))
            pipe.close()
    return pumps
