"""The sandbox behind a remote box: made, kept alive, asked to run our own scripts, and deleted."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import importlib
import importlib.util
import itertools
import json
import os
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from ageval_boxes import _leftovers
from ageval_boxes import _remote_scripts as scripts
from ageval_boxes._files import DOWNLOAD_BYTES, DOWNLOAD_FILES
from ageval_boxes._remote_cloud import remove, remove_directories
from ageval_boxes._remote_link import Command, Interrupted, Link, Report, gone
from ageval_boxes._remote_owner import marks, owner
from ageval_boxes._remote_stdio import RemoteTransport
from pytest_ageval.box import (
    ARTIFACTS,
    HOME,
    WORKSPACE,
    Box,
    BoxSpec,
    check_path,
    work_parent,
)
from pytest_ageval.errors import BoxError

#: Seconds for what the supervisor itself does.
PATIENCE = 60.0
#: Seconds for packing or unpacking an archive in the sandbox.
COPY_PATIENCE = 1800.0
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


class RemoteSandbox(Box):
    """The life of a box that is a sandbox elsewhere, and the calls of its supervisor.

    `warnings` says what was asked for and not done.
    """

    capabilities: ClassVar[frozenset[str]] = frozenset({"exec", "upload", "download", "attach_stdio"})
    makes_images: ClassVar[bool] = True

    #: The environment variable with the account's key, and where keys are made.
    key_name: ClassVar[str]
    keys_at: ClassVar[str]

    #: The most that one download may bring, in bytes and in files.
    download_bytes: int = DOWNLOAD_BYTES
    download_files: int = DOWNLOAD_FILES

    def __init__(self, spec: BoxSpec) -> None:
        super().__init__(spec)
        self.warnings: list[str] = []
        self._state: Literal["new", "started", "failed", "stopped"] = "new"
        self._id = secrets.token_hex(8)
        self._link: Link | None = None
        self._numbers = itertools.count(1)
        self._transports: list[RemoteTransport] = []
        self._background: set[asyncio.Task[Any]] = set()
        self._why_gone = ""
        self._owned = False
        self._asked = False  # for a sandbox: there may be one

    # -- what a vendor fills in ------------------------------------------------------------------

    @abc.abstractmethod
    def _connect(self) -> Link:
        """The connection, to no sandbox yet."""

    @abc.abstractmethod
    async def _image(self, link: Link) -> str | None:
        """The vendor's name of what the sandbox is made from, built now if need be; see `Link.open`."""

    @property
    @abc.abstractmethod
    def _lifetime(self) -> float:
        """Seconds that the sandbox lives without being put off."""

    @classmethod
    def _refusal(cls, options: Any) -> str | None:
        """What is wrong with a set of `Options`, beyond their types."""
        return "timeout_seconds must be at least 1" if options.timeout_seconds < 1 else None

    # -- before it -------------------------------------------------------------------------------

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> str | None:
        """A missing library or key, and options that cannot be. The vendor is not asked."""
        if importlib.util.find_spec(cls.kind) is None:
            return f"the {cls.kind} library is not installed\npip install 'pytest-ageval[{cls.kind}]'"
        if not os.environ.get(cls.key_name):
            return f"{cls.key_name} is not set\nexport {cls.key_name}=... with a key of {cls.keys_at}"
        try:
            why = cls._refusal(msgspec.convert(dict(options), cls.Options))
        except msgspec.ValidationError as error:
            why = str(error)
        return None if why is None else f"{why}\nsee the options of {cls.kind} in docs/reference/boxes.md"

    async def preflight(self) -> None:
        """Refuse what `check` refuses, and a library that cannot be imported."""
        await asyncio.to_thread(sdk, self.kind, self.kind)
        if (why := self.check(self.spec.options)) is not None:
            raise BoxError("environment_preflight_failed", why.replace("\n", "; "))

    # -- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Create the sandbox and make its directories."""
        if self._state != "new":
            raise BoxError("environment_already_started", f"this box is {self._state}")
        self._state = "started"
        try:
            await self._start()
        except BaseException:
            self._state = "failed"
            raise

    async def _start(self) -> None:
        await self.preflight()
        if asked := sorted({"cpus", "memory_mb", "gpus", "storage_mb"} & set(self.spec.resources)):
            self.warnings.append(f"{self.kind} boxes take {', '.join(asked)} from their template only")
        await asyncio.to_thread(self._make_work_dir, self._id)
        self._link = link = self._connect()
        image = await self._image(link)
        self._asked = True
        await link.open(marks(self.spec.labels, self._id), image)
        self._spawn(self._keep_alive())
        await self._prepare()

    def _make_work_dir(self, box_id: str) -> None:
        """Our own directory on this machine, with a note of whose it is.

        What a dead owner left of the same box is replaced.
        """
        work = self.spec.work_dir
        note = {**_leftovers.marker(box_id, self.spec.labels), "kind": self.kind}
        try:
            remove_directories(self.kind, box_id)
            if work_parent() in work.parents:
                _leftovers.default_work_parent()
            work.mkdir(mode=0o700, parents=True)
            self._owned = True
            (work / _leftovers.MARKER).write_text(json.dumps(note), encoding="utf-8")
        except OSError as error:
            raise BoxError("environment_start_failed", str(error)) from error

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
            words = {"stopped": "was stopped", "failed": "could not be started"}
            word = words.get(self._state, "was not started")
            raise BoxError("environment_not_started", f"this box {word}")
        return self._link

    def visible_path(self, path: str) -> str:
        """The path itself: ``/attempt`` is real in the sandbox."""
        check_path(path)
        return path

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
                "environment_exec_lost",
                f"the supervisor of the command was ended in the sandbox. {why}".strip(),
            )
        return BoxError("environment_connection_lost", f"{self.kind} sandbox {self._link.sandbox_id}: {why}")

    async def _line(self, script: str) -> str:
        """The command line that runs `script`; a long one is put into a file first."""
        try:
            data = script.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise BoxError("environment_exec_invalid", f"not a text that can be sent: {error}") from error
        if len(data) <= scripts.INLINE_LIMIT:
            return scripts.as_line(data)
        path = f"{scripts.directory_of(self._id)}/script-{next(self._numbers)}"
        await self._put_bytes(data, path)
        return f"exec sh {path}"

    @contextlib.asynccontextmanager
    async def _running(self, script: str, report: Report, **more: Any) -> AsyncIterator[Command]:
        """Start a script of a supervisor; forget it in the end."""
        link = self._open
        line = await self._line(script)
        more.setdefault("stdout", report.feed)
        command = await link.command(line, stderr=more.pop("stderr", report.note), **more)
        try:
            yield command
        finally:
            self._spawn(command.close())

    async def _call(
        self,
        make: Callable[[str], str],
        *,
        root: bool = False,
        into: list[tuple[str, str]] | None = None,
        patience: float = PATIENCE,
    ) -> tuple[str, str]:
        """Run a script of ours to its end; the last line of its report, the others `into`."""
        report = Report(secrets.token_hex(6))
        try:
            async with self._running(make(report.token), report, root=root) as command:
                found = await report.end(command, patience)
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

    def _staging(self) -> Path:
        return self.spec.work_dir / f"copy-{next(self._numbers)}"

    async def _put_bytes(self, data: bytes, path: str) -> None:
        local = self._staging()
        try:
            await asyncio.to_thread(local.write_bytes, data)
            await self._open.put(path, local)
        finally:
            local.unlink(missing_ok=True)

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
            if link is not None and self._asked:
                await remove(link.account, self.kind, self._id)
        finally:
            for transport in self._transports:
                await transport.let_go()
            self._transports.clear()
            if self._background:
                await asyncio.wait(list(self._background), timeout=2)
            if link is not None:
                await link.disconnect()
            if self._owned:
                await asyncio.to_thread(_leftovers.remove_directory, self.spec.work_dir)
