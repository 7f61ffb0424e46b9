"""The box contract: long-lived processes."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from pytest_ageval.box import (
    HOME,
    WORKSPACE,
    Box,
)
from pytest_ageval.errors import BoxError
from pytest_ageval.testing.box_contract.base import (
    TICK,
    TICKS,
    Drive,
    Hooks,
    read_all,
    reason,
    ticking,
    ticks_begin,
)


class Stdio(Hooks):
    """Long-lived processes; skipped for kinds without ``attach_stdio``."""

    @pytest.fixture
    def attached(self, drive: Drive) -> Drive:
        """`drive` for kinds with ``attach_stdio``."""
        self.needs("attach_stdio")
        return drive

    def test_long_lines_both_ways(self, attached: Drive) -> None:
        """A line of a megabyte goes in while it comes out, unchanged."""
        line = os.urandom(512 * 1024).hex().encode() + b"\n"

        async def body(box: Box) -> None:
            transport = await box.attach_stdio(["cat"])
            found = bytearray()

            async def read() -> None:
                while len(found) < len(line):
                    data = await transport.read()
                    assert data, "end of file in the middle"
                    found.extend(data)

            await asyncio.gather(transport.write(line), read())
            assert bytes(found) == line
            await transport.close_stdin()
            await transport.close_stdin()
            assert await transport.read() == b""
            assert await transport.wait(10) == 0
            await transport.terminate()

        attached(body)

    def test_answers_come_at_once(self, attached: Drive) -> None:
        """Each line is answered before the next is sent: nothing is held back."""

        async def body(box: Box) -> None:
            script = 'while read -r line; do echo "got $line"; done'
            transport = await box.attach_stdio(["sh", "-c", script])
            for number in range(20):
                await transport.write(f"{number}\n".encode())
                found = b""
                while not found.endswith(b"\n"):
                    found += await asyncio.wait_for(transport.read(), 10)
                assert found == f"got {number}\n".encode()
            await transport.terminate()

        attached(body)

    def test_place_and_environment(self, attached: Drive) -> None:
        """`cwd`, `env` and HOME are as for `exec`."""

        async def body(box: Box) -> None:
            script = 'printf "%s|%s|" "$HOME" "$GIVEN"; ls'
            await box.exec(["sh", "-c", "mkdir sub; touch sub/marker"])
            transport = await box.attach_stdio(
                ["sh", "-c", script], cwd=f"{WORKSPACE}/sub", env={"GIVEN": "a b"}
            )
            found = await read_all(transport)
            assert found.decode() == f"{box.visible_path(HOME)}|a b|marker\n"
            await transport.terminate()

        attached(body)

    def test_exit_code(self, attached: Drive) -> None:
        """`wait` gives None while the process runs and its exit code afterwards."""

        async def body(box: Box) -> None:
            transport = await box.attach_stdio(["sh", "-c", "read -r x; exit 3"])
            assert await transport.wait(0.2) is None
            await transport.write(b"\n")
            assert await transport.wait(10) == 3
            assert await transport.wait() == 3
            await transport.terminate()

        attached(body)

    def test_writing_to_the_dead(self, attached: Drive) -> None:
        """`write` to a process that is gone raises BrokenPipeError."""

        async def body(box: Box) -> None:
            transport = await box.attach_stdio(["true"])
            assert await transport.wait(10) == 0
            with pytest.raises(BrokenPipeError):
                await transport.write(b"x" * 8 * 1024 * 1024)
            await transport.terminate()

        attached(body)

    def test_flood_of_messages_blocks_nobody(self, attached: Drive) -> None:
        """5 MB on stderr that nobody reads do not keep the process from answering on stdout."""

        async def body(box: Box) -> None:
            script = "head -c 5000000 /dev/zero >&2; echo answer; cat"
            transport = await box.attach_stdio(["sh", "-c", script])
            assert await asyncio.wait_for(transport.read(), 20) == b"answer\n"
            await transport.terminate()

        attached(body)

    def test_messages_can_be_read(self, attached: Drive) -> None:
        """stderr comes by `read_stderr`, or on stdout where the kind merges the two; then its end."""

        async def body(box: Box) -> None:
            transport = await box.attach_stdio(["sh", "-c", "echo complaint >&2"])
            found = bytearray()
            while data := await transport.read_stderr():
                found += data
            found += await read_all(transport)
            assert b"complaint\n" in found
            await transport.terminate()

        attached(body)

    def test_held_stream_ends_with_its_process(self, attached: Drive) -> None:
        """`read` comes to its end soon after the process is gone, also if a descendant holds the stream."""

        async def body(box: Box) -> None:
            transport = await box.attach_stdio(["sh", "-c", "echo last; setsid sleep 60 & exit 0"])
            assert await asyncio.wait_for(read_all(transport), 10) == b"last\n"
            await transport.terminate()

        attached(body)

    def test_terminate_ends_all_of_it(self, attached: Drive) -> None:
        """`terminate` ends children that ignore TERM, soon, and may be called again."""

        async def body(box: Box) -> None:
            script = 'trap "" TERM; sh -c "$TICK" sh "$1" & cat; sleep 100'
            argv = ["sh", "-c", script, "sh", box.visible_path(TICKS)]
            transport = await box.attach_stdio(argv, env={"TICK": TICK})
            await ticks_begin(box)
            begun = time.monotonic()
            code = await transport.terminate(grace=0.5)
            assert time.monotonic() - begun < 8
            assert code != 0
            assert not await ticking(box)
            assert await transport.terminate() == code
            assert await transport.read() == b""

        attached(body)

    def test_several_at_once(self, attached: Drive) -> None:
        """Eight processes are attached at the same time, and each gets its own bytes."""

        async def body(box: Box) -> None:
            async def one(number: int) -> None:
                transport = await box.attach_stdio(["cat"])
                data = f"{number};".encode() * 50_000
                read = asyncio.ensure_future(read_all(transport))
                await transport.write(data)
                await transport.close_stdin()
                assert await read == data
                await transport.terminate()

            await asyncio.gather(*(one(number) for number in range(8)))

        attached(body)

    def test_impossible_processes_are_refused(self, attached: Drive) -> None:
        """An empty command: ``environment_exec_invalid``; a `cwd` outside: ``environment_path_invalid``."""

        async def body(box: Box) -> None:
            with pytest.raises(BoxError) as refused:
                await box.attach_stdio([])
            assert reason(refused) == "environment_exec_invalid"
            with pytest.raises(BoxError) as refused:
                await box.attach_stdio(["cat"], cwd="/etc")
            assert reason(refused) == "environment_path_invalid"

        attached(body)
