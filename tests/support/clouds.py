"""The servers that stand in for vendors' clouds, and boxes of their kinds, for tests of both kinds."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_ageval.box import Box, BoxSpec
from pytest_ageval.errors import BoxError
from pytest_ageval.registry import Registry

RUN = f"behaviour-{os.getpid()}"


@dataclass
class Cloud:
    """A vendor's stand-in, and how a box of its kind is made."""

    kind: str
    server: Any
    key_name: str

    @property
    def options(self) -> dict[str, Any]:
        """Options with which no template is looked for."""
        return {"template_id": "base"} if self.kind == "e2b" else {"snapshot": "base"}

    @property
    def builds(self) -> Any:
        """The server's templates or snapshots."""
        return self.server.templates if self.kind == "e2b" else self.server.snapshots

    def box(self, directory: Path, **more: Any) -> Box:
        """A box, not started; `options` are added to those of `options`."""
        options = {**self.options, **more.pop("options", {})}
        return self.plain_box(directory, options=options, **more)

    def plain_box(self, directory: Path, **more: Any) -> Box:
        """A box with just these options."""
        given = {"labels": {"ageval.run": RUN}, **more}
        spec = BoxSpec(kind=self.kind, attempt_id="a", task_id="t", work_dir=directory / "work", **given)
        return Registry().box(self.kind)(spec)

    def fail_create(self, *statuses: int) -> None:
        """Refuse the next sandboxes."""
        if self.kind == "e2b":
            self.server.faults["/v2/sandboxes"] = [(status, {"Retry-After": "0"}) for status in statuses]
        else:
            self.server.faults["/api/sandbox"] = list(statuses)

    def kill(self, box: Box) -> None:
        """End a sandbox as if the vendor did."""
        self.server.kill(box.handle()["sandbox_id"])


@contextlib.contextmanager
def opened(kind: str, *, minute: float = 2.0) -> Iterator[Cloud]:
    """The stand-in of a vendor, in this process's environment. Nothing must be left in the end.

    `minute`: the seconds that a minute of Daytona takes, which counts lifetimes in minutes.
    """
    pytest.importorskip(kind, reason=f"the extra {kind} is not installed")
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        if kind == "e2b":
            from e2b_server import E2BServer

            server: Any = stack.enter_context(E2BServer())
        else:
            from daytona_server import DaytonaServer

            server = stack.enter_context(DaytonaServer(minute=minute))
            plain_store(patch)
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield Cloud(kind, server, f"{kind.upper()}_API_KEY")
        assert server.sandboxes == {}


def plain_store(patch: pytest.MonkeyPatch) -> None:
    """Let the client of the object store speak HTTP without TLS: it has no other switch for that."""
    from daytona._async import object_storage

    store = object_storage.S3Store

    def plain(*args: Any, client_options: dict[str, Any], **more: Any) -> Any:
        return store(*args, client_options={**client_options, "allow_http": True}, **more)

    patch.setattr(object_storage, "S3Store", plain)


def with_box(box: Box, body: Callable[[Box], Awaitable[None]]) -> None:
    async def main() -> None:
        try:
            await box.start()
            await body(box)
        finally:
            await box.stop()

    asyncio.run(asyncio.wait_for(main(), 60))


def refusal(box: Box) -> BoxError:
    """Why the box does not start. It is stopped."""

    async def main() -> BoxError:
        try:
            with pytest.raises(BoxError) as refused:
                await box.start()
        finally:
            await box.stop()
        return refused.value

    return asyncio.run(asyncio.wait_for(main(), 60))
