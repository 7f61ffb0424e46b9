"""What the tests of the box contract share: hooks, a driver, a process that will not end."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pytest_ageval.box import (
    WORKSPACE,
    Box,
    BoxSpec,
    StdioTransport,
)
from pytest_ageval.errors import BoxError

Body = Callable[[Box], Awaitable[None]]
Drive = Callable[[Body], None]

#: The file to which `TICK` writes in these tests.
TICKS = f"{WORKSPACE}/ticks"

#: Appends a byte to $1 for ever, ten times a second, and takes no notice of TERM.
TICK = "trap '' TERM HUP INT; while :; do printf x >> \"$1\"; sleep 0.1; done"


def reason(refused: pytest.ExceptionInfo[BoxError]) -> str:
    """The failure kind."""
    return refused.value.title


async def read(box: Box, path: str) -> str:
    """The text of a file in the box."""
    done = await box.exec(["cat", box.visible_path(path)])
    assert done.ok, done.stderr
    return done.stdout


async def ticking(box: Box, *, after: float = 0.5) -> bool:
    """Someone in the box still appends to the tick file."""
    before = len(await read(box, TICKS))
    await asyncio.sleep(after)
    return len(await read(box, TICKS)) > before


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 10) -> None:
    """Wait until `condition` holds, at most `seconds`."""
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline, f"not true within {seconds} seconds"
        await asyncio.sleep(0.05)


async def ticks_begin(box: Box) -> None:
    """Wait until something has been written to the tick file."""

    async def begun() -> bool:
        return (await box.exec(["test", "-s", box.visible_path(TICKS)])).ok

    await until(begun)


async def read_all(transport: StdioTransport) -> bytes:
    """stdout to its end."""
    found = bytearray()
    while data := await transport.read():
        found += data
    return bytes(found)


class Hooks:
    """What the author of a kind sets."""

    #: The kind under test.
    box_class: ClassVar[type[Box]]
    #: Its options.
    options: ClassVar[Mapping[str, Any]] = {}
    #: The kind keeps a process in the box away from the host's files.
    isolated: ClassVar[bool] = True
    #: Seconds that `start` and one test together may take.
    patience: ClassVar[float] = 120
    #: A box whose owner was killed can be found by its handle and taken over.
    can_be_attached: ClassVar[bool] = True
    #: What a killed process left is found by its labels.
    can_be_reaped: ClassVar[bool] = True
    #: Options with which no box can be opened (an image that is not there); None: there are none.
    broken_options: ClassVar[Mapping[str, Any] | None] = None
    #: A user and a group, as numbers, other than root's, for a kind with ``uid_gid``.
    other_user: ClassVar[str] = "65534:65534"

    def make_spec(self, directory: Path) -> BoxSpec:
        """The specification of a box whose data set (with gold) and work directory lie below `directory`."""
        gold = directory / "dataset" / "tasks" / "t" / "evaluation" / "expected.json"
        gold.parent.mkdir(parents=True, exist_ok=True)
        gold.write_text("THE-GOLD")
        return BoxSpec(
            kind=self.box_class.kind,
            attempt_id="attempt-of-the-contract",
            task_id="t",
            work_dir=directory / "work",
            task_root=gold.parent.parent,
            dataset_root=directory / "dataset",
            options=self.options,
            labels={"ageval.run": f"contract-{os.getpid()}", "ageval.attempt": directory.name},
            hidden=[directory / "dataset"],
        )

    @pytest.fixture
    def spec(self, tmp_path: Path) -> BoxSpec:
        """The specification of this test's box."""
        return self.make_spec(tmp_path)

    @pytest.fixture
    def drive(self, spec: BoxSpec) -> Drive:
        """Runs a coroutine function with a started box, and stops the box whatever happens."""

        def run(body: Body) -> None:
            async def all_of_it() -> None:
                box = self.box_class(spec)
                try:
                    await box.start()
                    await body(box)
                finally:
                    await box.stop()

            async def patiently() -> None:
                await asyncio.wait_for(all_of_it(), self.patience)

            asyncio.run(patiently())

        return run

    def needs(self, *capabilities: str) -> None:
        """Skip the test if the kind does not declare all of `capabilities`."""
        missing = sorted(set(capabilities) - self.box_class.capabilities)
        if missing:
            pytest.skip(f"{self.box_class.kind} has no {', '.join(missing)}")
