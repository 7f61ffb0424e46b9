"""The box contract: commands that run to their end, and those that do not."""

from __future__ import annotations

import asyncio
import resource
import time
from typing import Any

import pytest

from pytest_ageval.box import (
    ARTIFACTS,
    HOME,
    STREAM_LIMIT,
    WORKSPACE,
    Box,
)
from pytest_ageval.errors import BoxError
from pytest_ageval.testing.box_contract.base import (
    TICK,
    TICKS,
    Drive,
    Hooks,
    read,
    reason,
    ticking,
    ticks_begin,
)


class Exec(Hooks):
    """Commands that run to their end."""

    def test_runs_in_the_workspace(self, drive: Drive) -> None:
        """The current directory is the workspace, or `cwd`."""

        async def body(box: Box) -> None:
            await box.exec(["mkdir", "sub dir"])
            await box.exec(["touch", "inside"], cwd=f"{WORKSPACE}/sub dir")
            found = await box.exec(["find", ".", "-name", "inside"])
            assert found.stdout == "./sub dir/inside\n"
            where = await box.exec(["sh", "-c", 'test "$(pwd -P)" = "$(cd "$1" && pwd -P)"', "sh",
                                    box.visible_path(WORKSPACE)])  # fmt: skip
            assert where.ok

        drive(body)

    @pytest.mark.parametrize("cwd", ["/etc", "workspace", "/attempt/../etc", "/attempted", ""])
    def test_cwd_outside_is_refused(self, drive: Drive, cwd: str) -> None:
        """A current directory that is not below ``/attempt``: ``environment_path_invalid``."""

        async def body(box: Box) -> None:
            with pytest.raises(BoxError) as refused:
                await box.exec(["true"], cwd=cwd)
            assert reason(refused) == "environment_path_invalid"

        drive(body)

    def test_missing_cwd_is_refused(self, drive: Drive) -> None:
        """A current directory that does not exist: ``environment_exec_invalid``, not a strange exit code."""

        async def body(box: Box) -> None:
            with pytest.raises(BoxError) as refused:
                await box.exec(["true"], cwd=f"{WORKSPACE}/not-there")
            assert reason(refused) == "environment_exec_invalid"

        drive(body)

    def test_arguments_arrive_unchanged(self, drive: Drive) -> None:
        """Nothing interprets an argument: spaces, quotes, dollars, newlines, unicode, the empty one."""
        words = ["a b", "'\"", "$HOME `id`", "line\nbreak", "żółć 漢字 🎉", "", "-n", "*", "\\"]

        async def body(box: Box) -> None:
            done = await box.exec(["printf", "<%s>", *words])
            assert done.stdout == "".join(f"<{word}>" for word in words)

        drive(body)

    def test_environment(self, drive: Drive) -> None:
        """The caller's variables arrive unchanged; HOME and the ``AGEVAL_`` paths are those of the box."""
        given = {"PLAIN": "a b", "ODD": "$HOME 'x' \"y\" `z` 漢\nnext", "EMPTY": ""}

        async def body(box: Box) -> None:
            for name, value in given.items():
                done = await box.exec(["sh", "-c", f'printf %s "${{{name}-unset}}"'], env=given)
                assert done.stdout == value
            paths = {"HOME": HOME, "AGEVAL_WORKSPACE": WORKSPACE, "AGEVAL_ARTIFACTS": ARTIFACTS}
            for name, path in paths.items():
                done = await box.exec(["sh", "-c", f'printf %s "${name}"'])
                assert done.stdout == box.visible_path(path)

        drive(body)

    def test_environment_of_the_caller_stays_out(self, drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
        """Variables of our own process (the operator's keys) are not in the box."""
        monkeypatch.setenv("CONTRACT_API_KEY", "sk-operator")

        async def body(box: Box) -> None:
            assert "sk-operator" not in (await box.exec(["env"])).stdout

        drive(body)

    def test_stdin(self, drive: Drive) -> None:
        """`stdin` arrives byte for byte, however long; without it, stdin is at its end at once."""
        data = bytes(range(256)) * 4096

        async def body(box: Box) -> None:
            done = await box.exec(["sh", "-c", "cat > copy; wc -c < copy"], stdin=data)
            assert int(done.stdout) == len(data)
            assert (await box.exec(["cat"], timeout=20)).stdout == ""
            assert (await box.exec(["cat"], stdin=b"")).stdout == ""
            # A command that does not read must not break or hang us.
            assert (await box.exec(["true"], stdin=data)).ok

        drive(body)

    def test_exit_codes(self, drive: Drive) -> None:
        """Exit codes as in a shell: the command's own, 128+n for signal n, 127 for a missing command."""

        async def body(box: Box) -> None:
            for script, code in {"exit 0": 0, "exit 3": 3, "kill -9 $$": 137, "exit 255": 255}.items():
                done = await box.exec(["sh", "-c", script])
                assert (script, done.exit_code, done.timed_out) == (script, code, False)
            missing = await box.exec(["no-such-command-here"])
            assert missing.exit_code == 127
            assert "no-such-command-here" in missing.stderr

        drive(body)

    @pytest.mark.parametrize("argv", [[], [""], ["printf", "a\0b"]], ids=["none", "empty", "nul"])
    def test_impossible_commands_are_refused(self, drive: Drive, argv: list[str]) -> None:
        """No command, an empty one, or a NUL in an argument: ``environment_exec_invalid``."""

        async def body(box: Box) -> None:
            with pytest.raises(BoxError) as refused:
                await box.exec(argv)
            assert reason(refused) == "environment_exec_invalid"

        drive(body)

    def test_what_the_kind_cannot_do_is_refused(self, drive: Drive) -> None:
        """`user` and `service` of a kind without them: ``environment_capability_missing``, never ignored."""

        async def body(box: Box) -> None:
            for capability, argument in {"uid_gid": "user", "compose": "service"}.items():
                if capability not in box.capabilities:
                    given: dict[str, Any] = {argument: "other"}
                    with pytest.raises(BoxError) as refused:
                        await box.exec(["true"], **given)
                    assert reason(refused) == "environment_capability_missing"

        drive(body)

    def test_user(self, drive: Drive) -> None:
        """With ``uid_gid`` a command runs as the `user` that was asked for, by number."""
        self.needs("uid_gid")

        async def body(box: Box) -> None:
            for user in ("0:0", self.other_user):
                done = await box.exec(["sh", "-c", 'printf "%s:%s" "$(id -u)" "$(id -g)"'], user=user)
                assert done.stdout == user
            with pytest.raises(BoxError) as refused:
                await box.exec(["true"], user="no such\nuser")
            assert reason(refused) == "environment_exec_invalid"

        drive(body)

    def test_long_output_is_cut_in_the_middle(self, drive: Drive) -> None:
        """Of 3 MB on each stream, head and tail are kept, `truncated` says so, and nothing blocks."""
        script = "echo BEGIN; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo END"

        async def body(box: Box) -> None:
            done = await box.exec(["sh", "-c", f"({script}); ({script}) >&2"], timeout=60)
            assert done.ok
            assert done.truncated
            for stream in (done.stdout, done.stderr):
                assert stream.startswith("BEGIN\n")
                assert stream.endswith("x\nEND\n")
                assert STREAM_LIMIT / 2 < len(stream) < STREAM_LIMIT + 200

        drive(body)

    def test_short_output_is_whole(self, drive: Drive) -> None:
        """Output within the limit is not cut; bytes that are not UTF-8 are replaced, not an error."""

        async def body(box: Box) -> None:
            done = await box.exec(["sh", "-c", "head -c 200000 /dev/zero | tr '\\0' x"])
            assert (len(done.stdout), done.truncated) == (200_000, False)
            done = await box.exec(["printf", "a\\377b"])
            assert done.stdout == "a\N{REPLACEMENT CHARACTER}b"

        drive(body)

    def test_heavy_output_costs_no_memory(self, drive: Drive) -> None:
        """A gigabyte of output grows our own process by less than 64 MiB."""

        async def body(box: Box) -> None:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            done = await box.exec(["head", "-c", "1000000000", "/dev/zero"])
            assert done.ok
            assert done.truncated
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024

        drive(body)

    def test_many_commands_at_once(self, drive: Drive) -> None:
        """64 commands at the same time all give their own result."""

        async def body(box: Box) -> None:
            async def one(number: int) -> None:
                done = await box.exec(["sh", "-c", f"sleep 0.1; echo {number}; exit {number}"])
                assert (done.exit_code, done.stdout) == (number, f"{number}\n")

            await asyncio.gather(*(one(number) for number in range(64)))

        drive(body)


class Ending(Hooks):
    """Commands that do not end by themselves, and what they leave behind."""

    def test_time_is_up(self, drive: Drive) -> None:
        """After `timeout`: exit code 124, `timed_out`, the output so far, soon."""

        async def body(box: Box) -> None:
            begun = time.monotonic()
            done = await box.exec(["sh", "-c", "echo so far; exec sleep 100"], timeout=1)
            assert time.monotonic() - begun < 10
            assert (done.exit_code, done.timed_out, done.stdout) == (124, True, "so far\n")

        drive(body)

    @pytest.mark.parametrize(
        "start",
        ['sh -c "$TICK" sh "$1" & exec sleep 100', 'setsid sh -c "$TICK" sh "$1" & exec sleep 100'],
        ids=["grandchild", "escapee"],
    )
    def test_time_is_up_for_all_it_started(self, drive: Drive, start: str) -> None:
        """After `timeout`, grandchildren that ignore TERM are gone too, also those in another session."""

        async def body(box: Box) -> None:
            argv = ["sh", "-c", start, "sh", box.visible_path(TICKS)]
            done = await box.exec(argv, env={"TICK": TICK}, timeout=1.5)
            assert done.timed_out
            assert len(await read(box, TICKS)) > 2
            assert not await ticking(box)

        drive(body)

    def test_timeout_spares_others(self, drive: Drive) -> None:
        """A command whose time is up takes no other command with it."""

        async def body(box: Box) -> None:
            other = asyncio.ensure_future(box.exec(["sh", "-c", "sleep 3 & wait; echo done"]))
            done = await box.exec(["sleep", "100"], timeout=1)
            assert done.timed_out
            assert (await other).stdout == "done\n"

        drive(body)

    def test_held_streams_do_not_hold_us(self, drive: Drive) -> None:
        """A command that leaves a background process with its stdout returns within seconds."""

        async def body(box: Box) -> None:
            begun = time.monotonic()
            done = await box.exec(["sh", "-c", "echo first; setsid sleep 60 & exit 0"], timeout=30)
            assert time.monotonic() - begun < 5
            assert (done.exit_code, done.stdout, done.timed_out) == (0, "first\n", False)

        drive(body)

    def test_killed_command_whose_streams_are_held(self, drive: Drive) -> None:
        """A command that was killed (as when memory runs out) is told of soon, whoever holds its streams."""

        async def body(box: Box) -> None:
            begun = time.monotonic()
            done = await box.exec(["sh", "-c", "echo first; setsid sleep 60 & kill -9 $$"], timeout=30)
            assert time.monotonic() - begun < 5
            assert (done.exit_code, done.stdout, done.timed_out) == (137, "first\n", False)

        drive(body)

    def test_cancelled_command_is_killed(self, drive: Drive) -> None:
        """Cancelling `exec` (Ctrl-C) kills what it started."""

        async def body(box: Box) -> None:
            argv = ["sh", "-c", TICK, "sh", box.visible_path(TICKS)]
            command = asyncio.ensure_future(box.exec(argv))
            await ticks_begin(box)
            command.cancel()
            with pytest.raises(asyncio.CancelledError):
                await command
            await asyncio.sleep(0.5)
            assert not await ticking(box)

        drive(body)

    def test_quiesce(self, drive: Drive) -> None:
        """`quiesce` kills what runs in the background, names it, keeps the files; the box goes on."""

        async def body(box: Box) -> None:
            script = 'setsid sh -c "$TICK" sh "$1" > /dev/null 2>&1 &'
            argv = ["sh", "-c", script, "sh", box.visible_path(TICKS)]
            assert (await box.exec(argv, env={"TICK": TICK})).ok
            await ticks_begin(box)
            killed = await box.quiesce()
            assert killed
            assert all(isinstance(name, str) for name in killed)
            assert not await ticking(box)
            assert await box.quiesce() == []

        drive(body)
