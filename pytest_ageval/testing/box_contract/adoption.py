"""The box contract: a box whose owner was killed is found, taken over, ended, or removed."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ageval.box import HOME, WORKSPACE, BoxSpec, ProbeStatus, work_parent
from pytest_ageval.errors import BoxError
from pytest_ageval.testing.box_contract._owner import Owner
from pytest_ageval.testing.box_contract.base import TICK, Hooks, read, read_all, reason

#: What the owner of a box leaves in it.
LEAVE = (
    "sh", "-c",
    "mkdir 'sub dir' && echo kept > 'sub dir/żółć 漢字' && ln -s 'sub dir' link && chmod 750 'sub dir' && "
    'echo mine > "$HOME/note"',
)  # fmt: skip

#: Commands of the owner that go on when it was killed, where the kind lets them.
TICKING = (("sh", "-c", TICK, "sh", "ticks"),)

#: Seconds in which what ends with its owner has ended.
SETTLE_SECONDS = 15.0


class _Owners(Hooks):
    """Boxes that other processes hold."""

    @pytest.fixture
    def owned(self, tmp_path: Path) -> Iterator[BoxSpec]:
        """The specification of a box that other processes open, whose directory is where `reap` looks."""
        directory = work_parent() / f"contract-{tmp_path.parent.name}-{tmp_path.name}"
        spec = self.make_spec(tmp_path)
        labels = {**spec.labels, "ageval.run": f"{spec.labels['ageval.run']}-{tmp_path.name}"}
        spec = replace(spec, work_dir=directory / "attempt", labels=labels)
        try:
            yield spec
        finally:
            # A test that failed half-way leaves nothing either.
            self.box_class.reap(spec.labels)
            shutil.rmtree(directory, ignore_errors=True)

    def owner(self, spec: BoxSpec, **what: Any) -> Owner:
        """A process that holds a box; see `_owner.Order` for `what`."""
        return Owner(self.box_class, spec, patience=self.patience, **what)

    def killed(self, spec: BoxSpec, running: Sequence[Sequence[str]] = ()) -> dict[str, Any]:
        """The handle of a box with files, whose owner was killed."""
        with self.owner(spec, commands=[LEAVE], running=running) as owner:
            assert owner.handle, owner.answer
            return owner.handle

    def run(self, body: Callable[[], Awaitable[None]]) -> None:
        """Drive a coroutine function."""

        async def patiently() -> None:
            await asyncio.wait_for(body(), self.patience)

        asyncio.run(patiently())

    async def settled(self, spec: BoxSpec, handle: dict[str, Any], wanted: str) -> ProbeStatus:
        """What `probe` of a new box says, as soon as it is `wanted` or when time is up."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            status = await self.box_class(spec).probe(handle)
            if status.state == wanted or time.monotonic() > deadline:
                return status
            await asyncio.sleep(0.2)

    async def refuses(self, spec: BoxSpec, handle: dict[str, Any], title: str, *methods: str) -> None:
        """Each of `methods` of a new box raises a BoxError with this title for `handle`."""
        for method in methods:
            with pytest.raises(BoxError) as refused:
                await getattr(self.box_class(spec), method)(handle)
            assert (method, reason(refused)) == (method, title)

    async def is_gone(self, spec: BoxSpec, handle: dict[str, Any]) -> None:
        """Nothing of the box is left."""
        assert (await self.box_class(spec).probe(handle)).state == "absent"
        assert await asyncio.to_thread(self.box_class.leftovers, spec.labels) == []
        assert not spec.work_dir.exists()


class Leftovers(_Owners):
    """What was left behind is found by its labels; skipped for a kind with ``can_be_reaped = False``."""

    def test_what_a_killed_owner_left_is_found_and_removed(self, owned: BoxSpec) -> None:
        """`leftovers` shows a box of a killed process once, by its labels; `reap` removes it once."""
        if not self.can_be_reaped:
            pytest.skip(f"boxes of the kind {self.box_class.kind} leave nothing that could be found")
        handle = self.killed(owned, running=TICKING)
        other = {**owned.labels, "ageval.attempt": "another"}
        assert self.box_class.leftovers(other) == []
        (left,) = self.box_class.leftovers(owned.labels)
        assert left.kind == self.box_class.kind
        assert left.where
        assert {name: left.labels.get(name) for name in owned.labels} == dict(owned.labels)
        assert not left.alive_owner
        assert left.age_seconds is None or -5 < left.age_seconds < 600
        assert self.box_class.reap(other) == []
        (said,) = self.box_class.reap(owned.labels)
        assert "\n" not in said
        assert self.box_class.reap(owned.labels) == []
        if self.can_be_attached:
            self.run(lambda: self.is_gone(owned, handle))
        else:
            assert self.box_class.leftovers(owned.labels) == []

    def test_a_living_owner_is_spared(self, owned: BoxSpec) -> None:
        """`reap` of another process leaves a box alone whose owner lives; `leftovers` says so."""
        if not self.can_be_reaped:
            pytest.skip(f"boxes of the kind {self.box_class.kind} leave nothing that could be found")
        with self.owner(owned, commands=[LEAVE]) as owner:
            assert owner.handle, owner.answer
            found = self.box_class.leftovers(owned.labels)
            assert [left.alive_owner for left in found] in ([True], [])
            assert self.box_class.reap(owned.labels) == []
            owner.stop()
        assert self.box_class.leftovers(owned.labels) == []


class Adoption(_Owners):
    """probe, attach and discard; skipped for a kind with ``can_be_attached = False``."""

    @pytest.fixture
    def spec_of_owner(self, owned: BoxSpec) -> BoxSpec:
        """`owned`, for kinds whose boxes can be taken over."""
        if not self.can_be_attached:
            pytest.skip(f"boxes of the kind {self.box_class.kind} cannot be taken over")
        return owned

    def test_a_stopped_box_is_absent(self, spec_of_owner: BoxSpec) -> None:
        """After `stop`: absent, `attach` is refused with ``environment_attach_invalid``, `discard` is not."""
        spec = spec_of_owner

        async def body() -> None:
            box = self.box_class(spec)
            await box.start()
            handle = json.loads(json.dumps(box.handle()))
            await box.stop()
            await self.is_gone(spec, handle)
            await self.refuses(spec, handle, "environment_attach_invalid", "attach")
            for _ in range(2):
                await self.box_class(spec).discard(handle)

        self.run(body)

    def test_a_box_of_a_living_process_is_busy(self, spec_of_owner: BoxSpec) -> None:
        """While its owner lives, `attach` and `discard` are ``environment_attach_busy`` and harm nothing."""
        spec = spec_of_owner
        with self.owner(spec, commands=[LEAVE]) as owner:
            assert owner.handle, owner.answer

            async def body() -> None:
                status = await self.box_class(spec).probe(owner.handle)
                assert status.state == "busy"
                assert status.detail
                await self.refuses(spec, owner.handle, "environment_attach_busy", "attach", "discard")
                assert (await self.box_class(spec).probe(owner.handle)).state == "busy"

            self.run(body)
            owner.stop()
        self.run(lambda: self.is_gone(spec, owner.handle))

    def test_handles_of_others_are_refused(self, spec_of_owner: BoxSpec) -> None:
        """A handle of another kind, or none: ``environment_attach_invalid``; `probe` finds nothing."""
        spec = spec_of_owner
        handle = self.killed(spec)

        async def body() -> None:
            for wrong in ({**handle, "kind": "another-kind"}, {}):
                await self.refuses(spec, wrong, "environment_attach_invalid", "attach", "discard")
                assert (await self.box_class(spec).probe(wrong)).state == "absent"
            assert (await self.settled(spec, handle, "idle")).state == "idle"

        self.run(body)

    def test_a_box_of_a_killed_process_is_taken_over(self, spec_of_owner: BoxSpec, tmp_path: Path) -> None:
        """It is idle, its files are there, and it can do what a box can that was started."""
        spec = spec_of_owner
        handle = self.killed(spec)
        (tmp_path / "new").write_text("new\n")

        async def body() -> None:
            status = await self.settled(spec, handle, "idle")
            assert status.state == "idle", status
            box = self.box_class(spec)
            try:
                await box.attach(handle)
                assert await read(box, f"{WORKSPACE}/sub dir/żółć 漢字") == "kept\n"
                assert await read(box, f"{HOME}/note") == "mine\n"
                where = await box.exec(["sh", "-c", 'cat "$HOME/note"; cat "link/żółć 漢字"; pwd -P'])
                assert where.stdout.startswith("mine\nkept\n/")
                assert (await box.exec(["sleep", "100"], timeout=1)).timed_out
                await box.upload(tmp_path / "new", f"{WORKSPACE}/sub dir/new")
                assert await read(box, f"{WORKSPACE}/sub dir/new") == "new\n"
                await box.download(WORKSPACE, tmp_path / "back")
                assert (tmp_path / "back" / "link" / "żółć 漢字").read_text() == "kept\n"
                if "attach_stdio" in box.capabilities:
                    transport = await box.attach_stdio(["cat", "sub dir/new"])
                    assert await read_all(transport) == b"new\n"
                    await transport.terminate()
                assert json.loads(json.dumps(box.handle()))["kind"] == box.kind
                with pytest.raises(BoxError) as refused:
                    await box.attach(handle)
                assert reason(refused) == "environment_already_started"
                await box.quiesce()
            finally:
                await box.stop()
            await self.is_gone(spec, handle)

        self.run(body)

    def test_who_takes_a_box_over_owns_it(self, spec_of_owner: BoxSpec) -> None:
        """A box that another process took over is that one's: busy, spared by `reap`, idle when it dies."""
        spec = spec_of_owner
        handle = self.killed(spec)
        self.run(lambda: self._becomes_idle(spec, handle))
        with self.owner(spec, handle=handle, commands=[["sh", "-c", "echo second > second"]]) as second:
            assert second.handle, second.answer

            async def body() -> None:
                for known in (handle, second.handle):
                    assert (await self.box_class(spec).probe(known)).state == "busy"
                    await self.refuses(spec, known, "environment_attach_busy", "attach", "discard")

            self.run(body)
            if self.can_be_reaped:
                with Owner(self.box_class, spec, patience=self.patience, action="reap") as third:
                    assert third.answer == {"removed": []}
        self.run(lambda: self._ends_with_us(spec, second.handle))

    async def _becomes_idle(self, spec: BoxSpec, handle: dict[str, Any]) -> None:
        status = await self.settled(spec, handle, "idle")
        assert status.state == "idle", status

    async def _ends_with_us(self, spec: BoxSpec, handle: dict[str, Any]) -> None:
        await self._becomes_idle(spec, handle)
        box = self.box_class(spec)
        try:
            await box.attach(handle)
            assert await read(box, f"{WORKSPACE}/second") == "second\n"
            if self.can_be_reaped:
                # From another process: in this one, what nobody will stop counts as left over.
                await asyncio.to_thread(self._reap_elsewhere, spec)
            assert (await box.exec(["true"])).ok
        finally:
            await box.stop()
        await self.is_gone(spec, handle)

    def _reap_elsewhere(self, spec: BoxSpec) -> None:
        with Owner(self.box_class, spec, patience=self.patience, action="reap") as other:
            assert other.answer == {"removed": []}

    def test_commands_of_a_killed_process(self, spec_of_owner: BoxSpec) -> None:
        """A box in which a command of its killed owner still runs is busy, and `discard` ends it.

        A kind whose commands end with their owner says idle, and then nothing runs.
        """
        spec = spec_of_owner
        handle = self.killed(spec, running=TICKING)

        async def body() -> None:
            status = await self.settled(spec, handle, "idle")
            if status.state == "busy":
                assert status.detail
                await self.refuses(spec, handle, "environment_attach_busy", "attach")
            else:
                assert status.state == "idle"
                box = self.box_class(spec)
                await box.attach(handle)
                try:
                    script = "a=$(wc -c < ticks); sleep 0.5; test $a = $(wc -c < ticks)"
                    assert (await box.exec(["sh", "-c", script])).ok, "something still runs"
                finally:
                    await box.stop()
            await self.box_class(spec).discard(handle)
            await self.is_gone(spec, handle)

        self.run(body)

    def test_discard(self, spec_of_owner: BoxSpec) -> None:
        """A box of a killed process is removed without being taken over, by any process, more than once."""
        spec = spec_of_owner
        handle = self.killed(spec)

        async def body() -> None:
            box = self.box_class(spec)
            await box.discard(handle)
            await self.is_gone(spec, handle)
            await box.discard(handle)
            # The one that discarded holds no box.
            with pytest.raises(BoxError) as refused:
                await box.exec(["true"])
            assert reason(refused) == "environment_not_started"
            await box.stop()

        self.run(body)
