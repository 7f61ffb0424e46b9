"""What boxes in a vendor's cloud have in common: one sandbox for each box, commands under a supervisor.

See `_remote_scripts` for what runs in the sandbox. ``/attempt`` is real there, and nothing of the
host can be reached; files go up and come down as tar archives.
"""

from __future__ import annotations

import abc
import asyncio
import base64
import contextlib
import importlib
import itertools
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal

from ageval_boxes import _remote_scripts as scripts
from ageval_boxes._files import DOWNLOAD_BYTES, DOWNLOAD_FILES, Budget, remove_tree
from ageval_boxes._leftovers import default_work_parent
from ageval_boxes._remote_link import Command, Interrupted, Link, Report, gone, result_of
from ageval_boxes._remote_owner import OWNER, owner
from ageval_boxes._remote_stdio import RemoteTransport
from ageval_boxes._remote_tar import read_archive, write_archive
from pytest_ageval.box import (
    ARTIFACTS,
    EVALUATION,
    HOME,
    TIMEOUT_EXIT,
    WORKSPACE,
    Box,
    BoxSpec,
    ExecResult,
    StdioTransport,
    check_path,
    work_parent,
)
from pytest_ageval.errors import BoxError

#: Seconds between TERM and KILL when the time of a command is up or the box is quiesced.
GRACE = 0.5
#: Seconds for what the supervisor itself does.
_PATIENCE = 60.0
#: The share of a sandbox's time after which it is put off again.
_RENEW = 1 / 3


def sdk(module: str, extra: str) -> Any:
    """The vendor's library; BoxError ``environment_preflight_failed`` that names the extra."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BoxError(
            "environment_preflight_failed",
            f"the {module} library cannot be imported ({error}); install pytest-ageval[{extra}]",
        ) from error


async def pieces_of(source: Path) -> AsyncIterator[bytes]:
    """A file of the host in pieces of a mebibyte, read without blocking the loop."""
    with contextlib.closing(source.open("rb")) as file:
        while piece := await asyncio.to_thread(file.read, 1024 * 1024):
            yield piece


class RemoteBox(Box):
    """A box that is a sandbox elsewhere. Subclasses name the library and make the `Link`.

    `warnings` says what was asked for and not done.
    """

    capabilities: ClassVar[frozenset[str]] = frozenset({"exec", "upload", "download", "attach_stdio"})

    #: The most that one download may bring, in bytes and in files.
    download_bytes: int = DOWNLOAD_BYTES
    download_files: int = DOWNLOAD_FILES

    def __init__(self, spec: BoxSpec) -> None:
        super().__init__(spec)
        self.warnings: list[str] = []
        self._state: Literal["new", "started", "stopped"] = "new"
        self._id = secrets.token_hex(8)
        self._link: Link | None = None
        self._numbers = itertools.count(1)
        self._transports: list[RemoteTransport] = []
        self._background: set[asyncio.Task[Any]] = set()
        self._why_gone = ""
        self._owned = False

    # -- what a vendor fills in ------------------------------------------------------------------

    @abc.abstractmethod
    async def _make_link(self) -> Link:
        """The connection, not yet open. BoxError when options, recipe or account do not allow it."""

    @property
    @abc.abstractmethod
    def _lifetime(self) -> float:
        """Seconds that the sandbox lives without being put off."""

    # -- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Create the sandbox and make its directories."""
        if self._state != "new":
            raise BoxError("environment_already_started", f"this box is {self._state}")
        await self.preflight()
        self._state = "started"
        if asked := sorted({"cpus", "memory_mb", "gpus", "storage_mb"} & set(self.spec.resources)):
            self.warnings.append(f"{self.kind} boxes take {', '.join(asked)} from their template only")
        try:
            self._make_work_dir()
        except OSError as error:
            raise BoxError("environment_start_failed", str(error)) from error
        self._link = await self._make_link()
        await self._link.open({**self.spec.labels, OWNER: owner(), "ageval.box": self._id})
        self._spawn(self._keep_alive())
        await self._prepare()

    def _make_work_dir(self) -> None:
        work = self.spec.work_dir
        if work_parent() in work.parents:
            default_work_parent()
        work.mkdir(mode=0o700, parents=True)
        self._owned = True

    async def _prepare(self) -> None:
        directories = (WORKSPACE, HOME, ARTIFACTS)
        kind, rest = await self._call(lambda token: scripts.prepare(token, self._id, directories))
        if kind == "D":
            # The usual user of a sandbox may not write to "/".
            await self._call(lambda token: scripts.make_root(token, rest), root=True)
            kind, rest = await self._call(lambda token: scripts.prepare(token, self._id, directories))
        why = {
            "M": f"the sandbox lacks {rest}; the supervisor of its commands needs them",
            "D": f"/attempt cannot be made in the sandbox by user {rest}, nor by its superuser",
            "U": f"{rest} of the sandbox is not empty; its template must not contain it",
        }
        if kind != "X":
            raise BoxError("environment_start_failed", why.get(kind, f"{kind} {rest}"))

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(max(0.5, self._lifetime * _RENEW))
            try:
                await self._open.keep_alive()
            except Exception as error:
                # The next look may work; whether the sandbox is gone is found by whoever uses it.
                self._why_gone = f"its time could not be extended: {error}"
            else:
                self._why_gone = ""

    @property
    def _open(self) -> Link:
        if self._link is None or self._state != "started":
            word = "was stopped" if self._state == "stopped" else "was not started"
            raise BoxError("environment_not_started", f"this box {word}")
        return self._link

    def handle(self) -> dict[str, Any]:
        """Kind, the vendor's id of the sandbox, labels, owner."""
        found = {"kind": self.kind, "id": self._id, "labels": dict(self.spec.labels), "owner": owner()}
        return {**found, "sandbox_id": "" if self._link is None else self._link.sandbox_id}

    # -- commands --------------------------------------------------------------------------------

    async def _lost(self, error: BaseException) -> BoxError:
        """What became of the sandbox, when a use of it failed with `error`."""
        if isinstance(error, BoxError):
            return error
        why = str(error.__cause__ or error) or type(error).__name__
        if self._link is None or self._state != "started":
            return gone(self.kind, "" if self._link is None else self._link.sandbox_id, "the box was stopped")
        try:
            there = await asyncio.wait_for(self._link.exists(), 20)
        except Exception as other:
            return BoxError("environment_connection_lost", f"{self.kind}: {why}; then: {other}")
        if not there:
            return gone(self.kind, self._link.sandbox_id, self._why_gone or why)
        if isinstance(error, Interrupted) and error.__cause__ is None:
            return BoxError(
                "environment_exec_lost", f"the supervisor of the command was ended in the sandbox. {why}".strip()
            )
        return BoxError("environment_connection_lost", f"{self.kind} sandbox {self._link.sandbox_id}: {why}")

    @contextlib.asynccontextmanager
    async def _running(self, script: str, report: Report, **more: Any) -> AsyncIterator[Command]:
        """Start a script of a supervisor; forget it in the end."""
        link = self._open
        line = scripts.as_line(script)
        if len(script) > scripts.INLINE_LIMIT:
            path = f"{scripts.directory_of(self._id)}/script-{next(self._numbers)}"
            await self._put_bytes(script.encode(), path)
            line = f"exec sh {path}"
        more.setdefault("stdout", report.feed)
        command = await link.command(line, stderr=more.pop("stderr", report.note), **more)
        try:
            yield command
        finally:
            self._spawn(command.close())

    async def _call(
        self, make: Callable[[str], str], *, root: bool = False, into: list[tuple[str, str]] | None = None
    ) -> tuple[str, str]:
        """Run a script of ours to its end; the last line of its report, the others `into`."""
        report = Report(secrets.token_hex(6))
        try:
            async with self._running(make(report.token), report, root=root) as command:
                found = await report.end(command, _PATIENCE)
        except (BoxError, asyncio.CancelledError):
            raise
        except Exception as error:
            raise await self._lost(error) from error
        if into is not None:
            into += report.lines
        return found

    async def _end(self, cookie: str, grace: float) -> list[str]:
        """End all whose cookie begins so, and verify; says who. BoxError when someone stayed."""
        lines: list[tuple[str, str]] = []
        await self._call(lambda token: scripts.end(token, cookie, grace), root=True, into=lines)
        if left := [rest for kind, rest in lines if kind == "L"]:
            raise BoxError("environment_processes_left", f"could not be killed: {', '.join(left)}")
        return [rest for kind, rest in lines if kind == "K"]

    def _environment(self, extra: Mapping[str, str] | None) -> dict[str, str]:
        env = {
            "HOME": HOME,
            "AGEVAL_WORKSPACE": WORKSPACE,
            "AGEVAL_ARTIFACTS": ARTIFACTS,
            "AGEVAL_EVALUATION": EVALUATION,
            "AGEVAL_ATTEMPT_ID": self.spec.attempt_id,
        }
        for name, value in (extra or {}).items():
            if not name or "=" in name or "\0" in name + value:
                raise BoxError("environment_exec_invalid", f"{name!r} is no environment variable")
            env[name] = value
        return env

    def _check(self, argv: Sequence[str], cwd: str | None, user: str | None, service: str | None) -> str:
        _ = self._open
        for what, given in (("users", user), ("services", service)):
            if given is not None:
                raise BoxError("environment_capability_missing", f"{self.kind} boxes have no other {what}")
        if isinstance(argv, str) or not argv or not argv[0] or any("\0" in word for word in argv):
            raise BoxError("environment_exec_invalid", f"{argv!r} is not a command with its arguments")
        return WORKSPACE if cwd is None else str(check_path(cwd))

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
        """Run `argv` to its end; see `Box.exec`. The environment is the sandbox's own and `env`.

        Raises BoxError ``environment_sandbox_gone``, ``environment_connection_lost``, or
        ``environment_exec_lost`` when someone in the sandbox ended the command's supervisor.
        """
        place, number = self._check(argv, cwd, user, service), next(self._numbers)
        where = scripts.Place(self._id, number)
        full = self._environment(env)
        report = Report(secrets.token_hex(6))
        source = None if not stdin else f"{scripts.directory_of(self._id)}/in-{number}"
        timed_out = False
        try:
            if source is not None and stdin:
                await self._put_bytes(stdin, source)
            script = scripts.run_to_end(where, report.token, argv, cwd=place, env=full, stdin=source)
            async with self._running(script, report) as command:
                try:
                    kind, rest = await report.end(command, timeout)
                except TimeoutError:
                    timed_out = True
                    await self._end(where.cookie, GRACE)
                    kind, rest = await report.end(command, _PATIENCE)
        except BoxError:
            raise
        except asyncio.CancelledError:
            await self._end_quietly(where.cookie)
            raise
        except Exception as error:
            raise await self._lost(error) from error
        _refuse_start(kind, rest, place)
        return result_of(report, TIMEOUT_EXIT if timed_out else int(rest), timed_out=timed_out)

    async def _end_quietly(self, cookie: str) -> None:
        """End what a cancelled command started. A second cancellation does not stop this."""
        if self._state != "started":
            return
        ending = self._spawn(self._end(cookie, 0))
        await asyncio.wait({ending}, timeout=10)
        if ending.done() and not ending.cancelled() and (error := ending.exception()) is not None:
            self.warnings.append(f"after a cancelled command: {error}")

    async def attach_stdio(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> StdioTransport:
        """Start a long-lived process; see `Box.attach_stdio`. `terminate` ends everything it started."""
        place = self._check(argv, cwd, user, None)
        where = scripts.Place(self._id, next(self._numbers))
        link = self._open
        token = secrets.token_hex(6)

        async def end(grace: float) -> None:
            await self._end(where.cookie, grace)

        encode = _in_lines if link.encoded_stdin else None
        transport = RemoteTransport(token, encode, end, self._lost)
        script = scripts.attach(
            where, token, argv, cwd=place, env=self._environment(env), encoded_stdin=link.encoded_stdin
        )
        try:
            line = scripts.as_line(script)
            command = await link.command(
                line, stdout=transport.feed_stdout, stderr=transport.feed_stderr, stdin=True
            )
            refused = await transport.begin(command, _PATIENCE)
        except BaseException as error:
            await transport.let_go()
            if isinstance(error, Exception):
                raise await self._lost(error) from error
            await self._end_quietly(where.cookie)
            raise
        if refused is not None:
            await transport.let_go()
            _refuse_start(*refused, place)
        self._transports.append(transport)
        return transport

    async def quiesce(self) -> list[str]:
        """Kill everything that commands and attached processes left running, verify, and say what."""
        ended = await self._end(f"{self._id}:", GRACE)
        for transport in self._transports:
            with contextlib.suppress(BoxError):  # whoever waits for it hears of it
                await transport.wait(2.0)
            await transport.let_go()
        self._transports.clear()
        return ended

    # -- files -----------------------------------------------------------------------------------

    def _staging(self) -> Path:
        return self.spec.work_dir / f"copy-{next(self._numbers)}"

    async def _put_bytes(self, data: bytes, path: str) -> None:
        local = self._staging()
        try:
            await asyncio.to_thread(local.write_bytes, data)
            await self._open.put(path, local)
        finally:
            local.unlink(missing_ok=True)

    async def upload(self, source: Path, dest: str, *, service: str | None = None) -> None:
        """Copy into the box; see `Box.upload`. FIFOs, sockets and devices are left out (`warnings`)."""
        path = self._copying(dest, service)
        if len(path.parts) == 2:
            raise BoxError("environment_path_invalid", f"{dest} cannot be replaced as a whole")
        local = self._staging()
        remote = f"{scripts.directory_of(self._id)}/{local.name}"
        try:
            mode, notes = await asyncio.to_thread(write_archive, source, local)
            await self._open.put(remote, local)
        except FileNotFoundError as error:
            raise BoxError("environment_upload_missing", f"{source} does not exist") from error
        except OSError as error:
            raise BoxError("environment_upload_failed", f"{source} to {dest}: {error}") from error
        except BoxError:
            raise
        except Exception as error:
            raise await self._lost(error) from error
        finally:
            local.unlink(missing_ok=True)
        kind, rest = await self._call(lambda token: scripts.unpack(token, remote, str(path), mode))
        if kind == "P":
            raise BoxError("environment_path_invalid", f"{dest}: its directory is not below /attempt")
        if kind != "X":
            raise BoxError("environment_upload_failed", f"{source} to {dest}: {rest}")
        self.warnings += [f"upload of {note}" for note in notes]

    async def download(self, source: str, dest: Path, *, service: str | None = None) -> None:
        """Copy out of the box; see `Box.download`. A tree or file replaces `dest`.

        BoxError ``environment_download_too_large`` beyond `download_bytes` or `download_files`.
        Special files, and what the sandbox's user cannot read, are left out (`warnings`).
        """
        path = self._copying(source, service)
        local = self._staging()
        remote = f"{scripts.directory_of(self._id)}/{local.name}"
        # Headers and padding: at most 4 KiB for each file, and some for those with long names.
        limit = self.download_bytes + 4096 * self.download_files
        lines: list[tuple[str, str]] = []
        kind, rest = await self._call(lambda token: scripts.pack(token, str(path), remote, limit), into=lines)
        if kind == "P":
            title = "environment_download_missing" if rest == "1" else "environment_path_invalid"
            raise BoxError(title, f"{source} {'does not exist' if rest == '1' else 'leads out of /attempt'}")
        budget = Budget("environment_download_too_large", self.download_bytes, self.download_files)
        if int(rest) >= limit:
            raise BoxError(budget.title, f"{source}: more than {limit} bytes as an archive")
        try:
            await self._open.fetch(remote, local)
            notes = await asyncio.to_thread(read_archive, local, path.name, dest, budget)
        except OSError as error:
            raise BoxError("environment_download_failed", f"{source}: {error}") from error
        except BoxError:
            raise
        except Exception as error:
            raise await self._lost(error) from error
        finally:
            local.unlink(missing_ok=True)
            self._spawn(self._forget(remote))
        said = [base64.b64decode(rest).decode("utf-8", "replace").strip() for kind, rest in lines if kind == "N"]
        self.warnings += [f"download of {note}" for note in (*notes, *filter(None, said))]

    async def _forget(self, remote: str) -> None:
        with contextlib.suppress(BoxError):  # it goes with the sandbox
            await self._call(lambda token: scripts.remove(token, remote))

    def _copying(self, path: str, service: str | None) -> PurePosixPath:
        if service is not None:
            raise BoxError("environment_capability_missing", f"{self.kind} boxes have no services")
        _ = self._open
        return check_path(path)

    # -- the end ---------------------------------------------------------------------------------

    async def stop(self, *, delete: bool = True) -> None:
        """Delete the sandbox with everything in it, and verify that it is gone.

        A sandbox costs money while it lives: `delete` set to False keeps nothing but its id in a warning.
        """
        link = self._link
        started = self._state == "started"
        self._state = "stopped"
        if not delete and started:
            self.warnings.append(f"{self.kind} sandboxes are not kept")
        for task in list(self._background):
            task.cancel()
        try:
            if link is not None:
                await link.close()
        finally:
            for transport in self._transports:
                await transport.let_go()
            self._transports.clear()
            if self._background:
                await asyncio.wait(list(self._background), timeout=2)
            if link is not None:
                await link.disconnect()
            if self._owned:
                await asyncio.to_thread(remove_tree, self.spec.work_dir)


def _refuse_start(kind: str, rest: str, cwd: str) -> None:
    if kind == "C":
        raise BoxError("environment_exec_invalid", f"the directory {cwd} does not exist")
    if kind != "X":
        raise BoxError("environment_exec_failed", rest or f"the supervisor reported {kind}")


def _in_lines(data: bytes) -> bytes:
    return base64.b64encode(data) + b"\n"
