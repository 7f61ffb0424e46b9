"""The methods of boxes in a vendor's cloud: commands under a supervisor, files as tar archives.

See `_remote_scripts` for what runs in the sandbox. ``/attempt`` is real there, and nothing of the
host can be reached.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from ageval_boxes import _remote_scripts as scripts
from ageval_boxes._files import Budget
from ageval_boxes._remote_again import FoundAgain
from ageval_boxes._remote_link import Report, result_of
from ageval_boxes._remote_sandbox import COPY_PATIENCE, PATIENCE, pieces_of, sdk
from ageval_boxes._remote_stdio import RemoteTransport
from ageval_boxes._remote_tar import read_archive, write_archive
from pytest_ageval.box import (
    ARTIFACTS,
    EVALUATION,
    HOME,
    TIMEOUT_EXIT,
    WORKSPACE,
    ExecResult,
    StdioTransport,
    check_path,
)
from pytest_ageval.errors import BoxError

__all__ = ["RemoteBox", "pieces_of", "sdk"]

#: Seconds between TERM and KILL when the time of a command is up or the box is quiesced.
GRACE = 0.5


class RemoteBox(FoundAgain):
    """A box that is a sandbox elsewhere. Subclasses name the library and make the `Link`."""

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
                    kind, rest = await report.end(command, PATIENCE)
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
            line = await self._line(script)
            command = await link.command(
                line, stdout=transport.feed_stdout, stderr=transport.feed_stderr, stdin=True
            )
            refused = await transport.begin(command, PATIENCE)
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
        kind, rest = await self._call(
            lambda token: scripts.unpack(token, remote, str(path), mode), patience=COPY_PATIENCE
        )
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
        kind, rest = await self._call(
            lambda token: scripts.pack(token, str(path), remote, limit), into=lines, patience=COPY_PATIENCE
        )
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
        said = [
            base64.b64decode(rest).decode("utf-8", "replace").strip() for kind, rest in lines if kind == "N"
        ]
        self.warnings += [f"download of {note}" for note in (*notes, *filter(None, said))]

    async def _forget(self, remote: str) -> None:
        with contextlib.suppress(BoxError):  # it goes with the sandbox
            await self._call(lambda token: scripts.remove(token, remote))

    def _copying(self, path: str, service: str | None) -> PurePosixPath:
        if service is not None:
            raise BoxError("environment_capability_missing", f"{self.kind} boxes have no services")
        _ = self._open
        return check_path(path)


def _refuse_start(kind: str, rest: str, cwd: str) -> None:
    if kind == "C":
        raise BoxError("environment_exec_invalid", f"the directory {cwd} does not exist")
    if kind != "X":
        raise BoxError("environment_exec_failed", rest or f"the supervisor reported {kind}")


def _in_lines(data: bytes) -> bytes:
    return base64.b64encode(data) + b"\n"
