"""Sandboxes of other processes: looked at, taken over, ended, found by their labels, and spared."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jail
import pytest
from clouds import RUN, Cloud, opened, refusal, with_box

from pytest_ageval.box import HOME, WORKSPACE, Box, ProbeStatus
from pytest_ageval.errors import BoxError
from pytest_ageval.registry import Registry

pytestmark = pytest.mark.skipif(jail.unusable() is not None, reason=str(jail.unusable()))

OPEN = """
import asyncio, json, os, pathlib, sys
from pytest_ageval.box import BoxSpec
from pytest_ageval.registry import Registry
kind, given, handle, script, work = sys.argv[1], *map(json.loads, sys.argv[2:5]), pathlib.Path(sys.argv[5])
spec = BoxSpec(kind=kind, attempt_id="a", task_id="t", work_dir=work, **given)
async def main():
    box = Registry().box(kind)(spec)
    await (box.attach(handle) if handle else box.start())
    running = asyncio.ensure_future(box.exec(["sh", "-c", script]))
    if "hang" in script:
        while not (await box.exec(["test", "-e", "hang"])).ok:
            pass
    else:
        assert (await running).ok
    print(json.dumps(box.handle()), flush=True)
    sys.stdin.readline()
    os._exit(9)
asyncio.run(main())
"""


@pytest.fixture(scope="module", params=["e2b", "daytona"])
def cloud(request: pytest.FixtureRequest) -> Iterator[Cloud]:
    with opened(request.param) as found:
        yield found


class Other:
    """A process that opens a box, or takes one over, and dies without closing it when it is told to."""

    def __init__(
        self, cloud: Cloud, work: Path, script: str = "true", handle: Any = None, **given: Any
    ) -> None:
        given = {"options": cloud.options, "labels": {"ageval.run": RUN}, **given}
        words = [cloud.kind, *map(json.dumps, (given, handle, script)), str(work)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", OPEN, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "it did not get that far"
        self.handle: dict[str, Any] = json.loads(line)

    def die(self) -> dict[str, Any]:
        """Kill it."""
        self.process.kill()
        self.process.communicate()
        return self.handle


def looked_at(cloud: Cloud, directory: Path, handle: Mapping[str, Any]) -> ProbeStatus:
    """What a box that was not started says of `handle`."""
    return asyncio.run(cloud.box(directory).probe(handle))


def test_taken_over(cloud: Cloud, tmp_path: Path) -> None:
    """Files and what was left running are there; labels and time are ours; `stop` deletes it."""
    script = "echo kept > file; echo $HOME > ~/home; (while :; do echo . >> ticks; sleep 0.1; done) & exit 0"
    other = Other(cloud, tmp_path / "other", script, labels={"ageval.run": "earlier"})
    assert looked_at(cloud, tmp_path / "p", other.handle).state == "busy"
    other.die()
    assert looked_at(cloud, tmp_path / "p", other.handle).state == "idle"

    async def main() -> None:
        box = cloud.box(tmp_path / "mine", options={"timeout_seconds": 2})
        try:
            await box.attach(other.handle)
            assert (await box.exec(["sh", "-c", "cat file ~/home"])).stdout == f"kept\n{HOME}\n"
            before = int((await box.exec(["sh", "-c", "wc -l < ticks"])).stdout)
            # Longer than the sandbox would live: its time is extended.
            assert (await box.exec(["sh", "-c", "sleep 4; echo done"])).stdout == "done\n"
            assert int((await box.exec(["sh", "-c", "wc -l < ticks"])).stdout) > before
            (tmp_path / "up").write_text("up")
            await box.upload(tmp_path / "up", f"{WORKSPACE}/up")
            assert box.handle()["sandbox_id"] == other.handle["sandbox_id"]
            assert (await box.probe(box.handle())).state == "busy"
            found = await asyncio.to_thread(box.leftovers, {"ageval.run": RUN})
            assert [left.where for left in found] == [f"sandbox {other.handle['sandbox_id']}"]
            assert await asyncio.to_thread(box.leftovers, {"ageval.run": "earlier"}) == []
            assert any("sh" in line for line in await box.quiesce())
        finally:
            await box.stop()

    asyncio.run(asyncio.wait_for(main(), 60))
    assert cloud.server.sandboxes == {}
    assert looked_at(cloud, tmp_path / "p", other.handle).state == "absent"


def test_a_command_still_runs(cloud: Cloud, tmp_path: Path) -> None:
    """Its owner is dead, but not its command: it is not taken over, and can be discarded."""
    handle = Other(cloud, tmp_path / "other", "touch hang; exec sleep 1000").die()
    status = looked_at(cloud, tmp_path / "p", handle)
    assert (status.state, status.detail) == ("busy", "1 commands of it still run")

    async def main() -> None:
        box = cloud.box(tmp_path / "mine")
        with pytest.raises(BoxError) as refused:
            await box.attach(handle)
        assert refused.value.title == "environment_attach_busy"
        await box.stop()
        assert len(cloud.server.sandboxes) == 1, "it was not ours"
        await box.discard(handle)
        await box.discard(handle)

    asyncio.run(main())
    assert cloud.server.sandboxes == {}


def test_owner_lives(cloud: Cloud, tmp_path: Path) -> None:
    """Nobody takes over or discards what a living process owns, this process included."""

    async def body(box: Box) -> None:
        another = cloud.box(tmp_path / "another")
        for use in (another.attach, another.discard):
            with pytest.raises(BoxError) as refused:
                await use(box.handle())
            assert refused.value.title == "environment_attach_busy"
        await another.stop()
        assert (await box.exec(["true"])).ok

    with_box(cloud.box(tmp_path / "one"), body)


@pytest.mark.parametrize(
    "wrong", [{"kind": "docker"}, {"sandbox_id": "i0000000000000000000"}, {"id": "other"}, {"sandbox_id": ""}]
)
def test_handle_of_nothing(cloud: Cloud, tmp_path: Path, wrong: dict[str, str]) -> None:
    """Of another kind, of a sandbox that is gone, of another box: absent, and not taken over."""

    async def body(box: Box) -> None:
        handle = {**box.handle(), **wrong}
        another = cloud.box(tmp_path / "another")
        assert (await another.probe(handle)).state == "absent"
        with pytest.raises(BoxError) as refused:
            await another.attach(handle)
        assert refused.value.title == "environment_attach_invalid"
        await another.stop()

    with_box(cloud.box(tmp_path / "one"), body)


def test_sandbox_of_another_machine(cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether its owner lives cannot be known: it counts as owned, and is never removed."""
    from ageval_boxes import _remote_owner

    async def body(box: Box) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(_remote_owner.socket, "gethostname", lambda: "elsewhere")
            status = await cloud.box(tmp_path / "another").probe(box.handle())
            assert status.state == "busy"
            assert "another machine" in status.detail
            (left,) = await asyncio.to_thread(box.leftovers, {"ageval.run": RUN})
            assert left.alive_owner
            assert await asyncio.to_thread(box.reap, {"ageval.run": RUN}) == []
        assert (await box.exec(["true"])).ok

    with_box(cloud.box(tmp_path / "one"), body)


def test_leftovers(cloud: Cloud, tmp_path: Path) -> None:
    """What a dead process left has its labels, its age, and no owner; others' sandboxes are not listed."""
    labels = {"ageval.run": "left", "ageval.attempt": "attempt_7", "ageval.worker": "gw0"}
    other = Other(cloud, tmp_path / "other", labels=labels)
    cls = Registry().box(cloud.kind)
    (alive,) = cls.leftovers({"ageval.run": "left"})
    assert (alive.alive_owner, alive.labels) == (True, labels)
    assert cls.reap({"ageval.run": "left"}) == []
    other.die()
    (left,) = cls.leftovers({"ageval.attempt": "attempt_7"})
    assert (left.kind, left.alive_owner, left.labels) == (cloud.kind, False, labels)
    assert left.age_seconds is not None
    assert 0 <= left.age_seconds < 60
    assert cls.leftovers({"ageval.run": "no-such-run"}) == []
    (line,) = cls.reap({})
    assert "attempt_7" in line
    assert other.handle["sandbox_id"] in line
    assert cloud.server.sandboxes == {}


def test_sandboxes_of_others_are_not_ours(cloud: Cloud, tmp_path: Path) -> None:
    """One of the account without our labels is neither listed nor removed, by no labels either."""
    code = (
        "import asyncio\nfrom e2b import AsyncSandbox\n"
        "async def main():\n    print((await AsyncSandbox.create('base', metadata={'x': 'y'})).sandbox_id)\n"
        if cloud.kind == "e2b"
        else "import asyncio\nfrom daytona import AsyncDaytona\nasync def main():\n"
        "    async with AsyncDaytona() as client:\n        print((await client.create()).id)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{code}asyncio.run(main())"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    cls = Registry().box(cloud.kind)
    try:
        assert cls.leftovers({}) == []
        assert cls.reap({}) == []
        assert len(cloud.server.sandboxes) == 1
    finally:
        cloud.server.kill(done.stdout.strip())


def test_reap_spares_what_was_taken_over(cloud: Cloud, tmp_path: Path) -> None:
    """Its first owner is dead, but who took it over lives: a third process removes nothing."""
    first = Other(cloud, tmp_path / "first", labels={"ageval.run": "first"})
    handle = first.die()
    second = Other(cloud, tmp_path / "second", handle=handle, labels={"ageval.run": "second"})
    cls = Registry().box(cloud.kind)
    for labels in ({}, {"ageval.run": "first"}, {"ageval.run": "second"}):
        assert cls.reap(labels) == []
    assert looked_at(cloud, tmp_path / "p", handle).state == "busy"
    second.die()
    (left,) = cls.leftovers({"ageval.run": "second"})
    assert not left.alive_owner
    assert len(cls.reap({"ageval.run": "second"})) == 1
    assert cloud.server.sandboxes == {}


def test_only_one_takes_it_over(cloud: Cloud, tmp_path: Path) -> None:
    """Of two that try at once one succeeds; the other one hears that it is owned."""
    handle = Other(cloud, tmp_path / "other").die()

    async def main() -> None:
        boxes = [cloud.box(tmp_path / name) for name in ("one", "two")]
        done = await asyncio.gather(*(box.attach(handle) for box in boxes), return_exceptions=True)
        try:
            (error,) = [found for found in done if found is not None]
            assert isinstance(error, BoxError)
            assert error.title == "environment_attach_busy"
        finally:
            for box in boxes:
                await box.stop()

    asyncio.run(main())
    assert cloud.server.sandboxes == {}


def test_stopped_sandbox(cloud: Cloud, tmp_path: Path) -> None:
    """One of Daytona that is not ephemeral is stopped when nobody uses it, and goes on when taken over."""
    if cloud.kind == "e2b":
        pytest.skip("E2B deletes what is not used")
    options = {**cloud.options, "ephemeral": False, "timeout_seconds": 2}
    handle = Other(cloud, tmp_path / "other", "echo kept > file", options=options).die()
    deadline = time.monotonic() + 20
    while looked_at(cloud, tmp_path / "p", handle).detail.count("stopped") == 0:
        assert time.monotonic() < deadline
        time.sleep(0.5)

    async def main() -> None:
        box = cloud.box(tmp_path / "mine", options={"timeout_seconds": 2})
        try:
            await box.attach(handle)
            assert (await box.exec(["cat", "file"])).stdout == "kept\n"
        finally:
            await box.stop()

    asyncio.run(main())
    assert cloud.server.sandboxes == {}


# -- before anything is opened ---------------------------------------------------------------------


def test_check(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing to say where all is there; else why, and in the second line what to do."""
    cls = Registry().box(cloud.kind)
    assert cls.check(cloud.options) is None
    why, remedy = (cls.check({"timeout_seconds": 0}) or "").split("\n")
    assert why == "timeout_seconds must be at least 1"
    assert "boxes.md" in remedy
    assert "no_such_option" in (cls.check({"no_such_option": 1}) or "")
    with monkeypatch.context() as patch:
        patch.delenv(cloud.key_name)
        why, remedy = (cls.check({}) or "").split("\n")
        assert (why, remedy.split("=")[0]) == (f"{cloud.key_name} is not set", f"export {cloud.key_name}")
        assert cls.leftovers({}) == []
    monkeypatch.setitem(sys.modules, cloud.kind, None)
    why, remedy = (cls.check({}) or "").split("\n")
    assert "not installed" in why
    assert remedy == f"pip install 'pytest-ageval[{cloud.kind}]'"


def test_images_without_a_fixed_tag(cloud: Cloud, tmp_path: Path) -> None:
    """Daytona would take them for what they were when it first saw them."""
    if cloud.kind == "e2b":
        pytest.skip("E2B takes no image")
    for image in ("debian", "debian:latest", "registry.example.org:5000/debian"):
        error = refusal(cloud.plain_box(tmp_path / image.replace("/", "-"), options={"image": image}))
        assert error.title == "environment_preflight_failed"
        assert "fixed tag" in error.message


def test_labels_of_the_run_are_at_the_vendor(cloud: Cloud, tmp_path: Path) -> None:
    """Run, attempt and worker are in what the vendor keeps, beside metadata that options add."""
    labels = {"ageval.run": RUN, "ageval.attempt": "a1", "ageval.worker": "gw1"}
    options = {"metadata": {"team": "t"}} if cloud.kind == "e2b" else {}

    async def body(box: Box) -> None:
        sandbox = cloud.server.sandboxes[box.handle()["sandbox_id"]]
        kept = sandbox.metadata if cloud.kind == "e2b" else sandbox.body["labels"]
        assert labels.items() <= kept.items()
        assert kept["ageval.owner"].split("/")[2] == str(os.getpid())
        assert options.get("metadata", {}).items() <= kept.items()

    with_box(cloud.box(tmp_path, options=options, labels=labels), body)
