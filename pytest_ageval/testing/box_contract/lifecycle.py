"""The box contract: what a kind says of itself, start and stop."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from pytest_ageval.box import (
    ARTIFACTS,
    CAPABILITIES,
    EVALUATION,
    HOME,
    WORKSPACE,
    Box,
    BoxSpec,
)
from pytest_ageval.errors import BoxError
from pytest_ageval.testing.box_contract.base import (
    Drive,
    Hooks,
    reason,
)


class Declaration(Hooks):
    """What a kind says of itself."""

    def test_declares_itself(self, spec: BoxSpec) -> None:
        """`kind` is a word, `capabilities` are known names, `describe` says a few words, and where it is."""
        assert self.box_class.kind.isidentifier()
        assert self.box_class.capabilities <= set(CAPABILITIES)
        assert self.box_class.capabilities >= {"exec", "upload", "download"}
        assert isinstance(self.box_class.elsewhere, bool)
        assert self.box_class.at_once is None or self.box_class.at_once >= 1
        described = self.box_class.describe(self.options)
        assert self.box_class.kind in described
        assert "\n" not in described

    def test_unknown_options_are_refused(self, spec: BoxSpec) -> None:
        """An option that the kind does not know is an error, so that a typo is not ignored."""
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({**self.options, "no_such_option": 1}, self.box_class.Options)

    def test_this_machine_can_open_it(self, spec: BoxSpec) -> None:
        """Where these tests run `preflight` passes and `check` knows nothing against it."""
        asyncio.run(self.box_class(spec).preflight())
        assert self.box_class.check(self.options) is None

    def test_options_that_cannot_work(self, spec: BoxSpec) -> None:
        """`broken_options`: `start` (or `preflight`) fails with a title and words; `stop` leaves nothing."""
        if self.broken_options is None:
            pytest.skip("this kind names no options that cannot work")
        broken = replace(spec, options=self.broken_options)

        async def main() -> None:
            box = self.box_class(broken)
            with pytest.raises(BoxError) as refused:
                await box.start()
            assert reason(refused).startswith("environment_")
            assert len(refused.value.message) > 10
            with pytest.raises(BoxError) as unusable:
                await box.exec(["true"])
            assert reason(unusable) == "environment_not_started"
            await box.stop()

        asyncio.run(asyncio.wait_for(main(), self.patience))
        assert self.box_class.leftovers(spec.labels) == []
        assert not spec.work_dir.exists()

    def test_paths_outside_have_no_name_in_the_box(self, drive: Drive) -> None:
        """`visible_path` of a path that is not below ``/attempt``: ``environment_path_invalid``."""

        async def body(box: Box) -> None:
            for path in ("/etc/passwd", "workspace", f"{WORKSPACE}/../../etc"):
                with pytest.raises(BoxError) as refused:
                    box.visible_path(path)
                assert reason(refused) == "environment_path_invalid"

        drive(body)

    def test_python_command(self, drive: Drive) -> None:
        """`python_command` starts Python, in a box that has one."""

        async def body(box: Box) -> None:
            done = await box.exec([*box.python_command(), "-c", "print(6 * 7)"])
            assert done.exit_code == 127 or done.stdout == "42\n"

        drive(body)

    def test_handle_is_plain_data(self, drive: Drive) -> None:
        """`handle()` of a started box can be written as JSON, and names the kind where it is of use."""

        async def body(box: Box) -> None:
            assert json.loads(json.dumps(box.handle())) == box.handle()
            if self.can_be_attached:
                assert box.handle()["kind"] == self.box_class.kind

        drive(body)


class Lifecycle(Hooks):
    """Start, stop, and everything in between in the wrong order."""

    def test_starts_with_empty_directories(self, drive: Drive) -> None:
        """Workspace, home and artifacts exist and are empty; the evaluation directory does not exist."""

        async def body(box: Box) -> None:
            for path in (WORKSPACE, HOME, ARTIFACTS):
                done = await box.exec(["ls", "-A", box.visible_path(path)])
                assert done.ok, done.stderr
                assert done.stdout == ""
            assert not (await box.exec(["test", "-e", box.visible_path(EVALUATION)])).ok

        drive(body)

    def test_starts_once(self, drive: Drive) -> None:
        """A second `start` is refused with ``environment_already_started``."""

        async def body(box: Box) -> None:
            with pytest.raises(BoxError) as refused:
                await box.start()
            assert reason(refused) == "environment_already_started"

        drive(body)

    def test_cannot_be_used_before_start_or_after_stop(self, spec: BoxSpec, tmp_path: Path) -> None:
        """exec, upload, download and attach_stdio of a box that is not open: ``environment_not_started``."""
        source = tmp_path / "source"
        source.write_text("x")

        async def refuses_everything(box: Box) -> None:
            uses: list[Callable[[], Awaitable[object]]] = [
                lambda: box.exec(["true"]),
                lambda: box.upload(source, f"{WORKSPACE}/source"),
                lambda: box.download(WORKSPACE, tmp_path / "dest"),
            ]
            if "attach_stdio" in box.capabilities:
                uses.append(lambda: box.attach_stdio(["cat"]))
            for use in uses:
                with pytest.raises(BoxError) as refused:
                    await use()
                assert reason(refused) == "environment_not_started"

        async def main() -> None:
            box = self.box_class(spec)
            await refuses_everything(box)
            await box.start()
            await box.stop()
            await refuses_everything(box)

        asyncio.run(main())

    def test_stop_is_idempotent(self, spec: BoxSpec) -> None:
        """`stop` works before `start` and after `stop`."""

        async def main() -> None:
            box = self.box_class(spec)
            await box.stop()
            box = self.box_class(spec)
            await box.start()
            await box.stop()
            await box.stop()

        asyncio.run(main())

    def test_stop_ends_running_commands(self, spec: BoxSpec) -> None:
        """`stop` ends a command in the middle, its caller gets a result or a BoxError, and it is quick."""

        async def main() -> None:
            box = self.box_class(spec)
            await box.start()
            command = asyncio.ensure_future(box.exec(["sleep", "100"]))
            await asyncio.sleep(0.3)
            begun = time.monotonic()
            await box.stop()
            assert time.monotonic() - begun < 10
            done, _ = await asyncio.wait([command], timeout=10)
            assert done
            error = command.exception()
            assert isinstance(error, BoxError) if error else not command.result().ok

        asyncio.run(asyncio.wait_for(main(), self.patience))

    def test_stop_removes_what_cannot_be_read(self, spec: BoxSpec) -> None:
        """A box in which someone left directories without permissions, deeply nested, can be removed."""

        async def main() -> None:
            box = self.box_class(spec)
            await box.start()
            script = "mkdir -p a/b/c r/s; touch a/b/c/f r/s/f; chmod 000 a/b/c a/b a; chmod 555 r/s r; i=0; "
            script += "while [ $i -lt 200 ]; do mkdir d; cd d; i=$((i+1)); done"
            assert (await box.exec(["sh", "-c", script])).ok
            await box.stop()
            assert not spec.work_dir.exists()

        asyncio.run(main())

    def test_starts_again(self, spec: BoxSpec) -> None:
        """After `stop` a second box of the same specification starts, empty."""

        async def main() -> None:
            for _ in range(2):
                box = self.box_class(spec)
                try:
                    await box.start()
                    assert (await box.exec(["ls", "-A"])).stdout == ""
                    assert (await box.exec(["touch", "left-here"])).ok
                finally:
                    await box.stop()
                assert not spec.work_dir.exists()

        asyncio.run(asyncio.wait_for(main(), self.patience))

    def test_cache(self, tmp_path: Path) -> None:
        """What one box leaves in `cache_path` is there for the next; skipped for a kind without it."""
        name = f"contract-{tmp_path.name}-{os.getpid()}"

        async def use(number: int, script: str) -> str | None:
            box = self.box_class(self.make_spec(tmp_path / str(number)))
            try:
                await box.start()
                cache = box.cache_path()
                if cache is None:
                    return None
                done = await box.exec(["sh", "-c", f'cd -- "$1" && {script}', "sh", cache, name])
                assert done.ok, done.stderr
                return done.stdout
            finally:
                await box.stop()

        async def main() -> None:
            # Written under another name and renamed, as an install is.
            script = (
                'mkdir "$2.part" && echo once > "$2.part/file" && chmod 755 "$2.part" && mv "$2.part" "$2"'
            )
            if await use(1, script) is None:
                pytest.skip(f"boxes of the kind {self.box_class.kind} have no cache")
            assert await use(2, 'cat "$2/file" && rm -r "$2"') == "once\n"
            assert await use(3, 'ls -d "$2" 2>/dev/null || echo gone') == "gone\n"

        asyncio.run(asyncio.wait_for(main(), self.patience))

    def test_two_boxes_share_nothing(self, tmp_path: Path) -> None:
        """What one box leaves in its workspace, HOME or TMPDIR is not seen in another one."""

        async def main() -> None:
            specs = [self.make_spec(tmp_path / name) for name in ("one", "two")]
            first, second = boxes = [self.box_class(spec) for spec in specs]
            try:
                for box in boxes:
                    await box.start()
                script = 'touch left-here "$HOME/left-here" "${TMPDIR:-/tmp}/left-here"'
                assert (await first.exec(["sh", "-c", script])).ok
                script = 'ls -A . "$HOME" "${TMPDIR:-/tmp}"'
                assert "left-here" in (await first.exec(["sh", "-c", script])).stdout
                assert "left-here" not in (await second.exec(["sh", "-c", script])).stdout
            finally:
                for box in boxes:
                    await box.stop()

        asyncio.run(main())

    def test_reap_leaves_others_alone(self, drive: Drive) -> None:
        """`reap` for a run that does not exist removes nothing, and this box goes on."""

        async def body(box: Box) -> None:
            assert await asyncio.to_thread(box.reap, {"ageval.run": "no-such-run"}) == []
            assert (await box.exec(["true"])).ok

        drive(body)
