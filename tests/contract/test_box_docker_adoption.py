"""Docker boxes of killed processes: taken over, found, shown and removed by the command line."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.docker_engine import needs_docker, on_engine

from ageval_boxes.docker_box import DockerBox
from pytest_ageval.box import WORKSPACE, BoxSpec, work_parent
from pytest_ageval.errors import BoxError

pytestmark = [pytest.mark.docker, needs_docker]

HOLD = """
import asyncio, json, sys
from pathlib import Path
from ageval_boxes.docker_box import DockerBox
from pytest_ageval.box import BoxSpec

async def main(work, run, options, handle, command):
    labels = {"ageval.run": run, "ageval.worker": "main", "ageval.attempt": f"attempt-of-{run}"}
    box = DockerBox(BoxSpec("docker", "a1", "t", Path(work), labels=labels, options=options))
    await (box.attach(handle) if handle else box.start())
    if command:
        done = await box.exec(command)
        assert done.ok, done.stderr
    print(json.dumps(box.handle()), flush=True)
    await asyncio.sleep(1000)

asyncio.run(main(**json.loads(sys.argv[1])))
"""


class Killed:
    """Boxes that processes hold until they are killed; what is left of them is removed at the end."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._runs: list[str] = []

    def work(self, run: str) -> Path:
        return work_parent() / f"{self.name}-{run}" / "box"

    def run(self, run: str) -> str:
        return f"{self.name}-{run}"

    def hold(
        self, run: str, *, handle: Mapping[str, Any] | None = None, command: Any = None, **options: Any
    ) -> tuple[dict[str, Any], subprocess.Popen[str]]:
        self._runs.append(self.run(run))
        order = {"work": str(self.work(run)), "run": self.run(run), "options": options, "handle": handle}
        words = [sys.executable, "-c", HOLD, json.dumps({**order, "command": command})]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        with process.stdout:
            return json.loads(process.stdout.readline()), process

    def box(self, run: str, *, handle: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        """The handle of a box whose owner was killed."""
        found, process = self.hold(run, handle=handle, **more)
        end(process)
        return found

    def close(self) -> None:
        for run in self._runs:
            DockerBox.reap({"ageval.run": run})


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Killed]:
    found = Killed(f"{tmp_path.parent.name}-{tmp_path.name}")
    yield found
    found.close()


def new_box(work: Path, **options: Any) -> DockerBox:
    return DockerBox(BoxSpec("docker", "a2", "t", work, options=options, labels={"ageval.run": "unused"}))


def reap_elsewhere(run: str) -> list[str]:
    code = "import json, sys; from ageval_boxes.docker_box import DockerBox as B; "
    code += "print(json.dumps(B.reap({'ageval.run': sys.argv[1]})))"
    done = subprocess.run([sys.executable, "-c", code, run], capture_output=True, text=True, check=True)
    found: list[str] = json.loads(done.stdout)
    return found


def taken_over(box: DockerBox, handle: Mapping[str, Any], body: Callable[[], Any]) -> None:
    async def main() -> None:
        try:
            await box.attach(handle)
            await body()
        finally:
            await box.stop()

    asyncio.run(main())


def test_whoever_took_it_over_is_its_owner_by_both_runs_labels(killed: Killed) -> None:
    """Labels cannot be changed: the box is spared, and found when the second owner dies, by old and new."""
    first = killed.box("first", command=["sh", "-c", "echo one > file"])
    second, process = killed.hold("second", handle=first, command=["cat", "file"])
    try:
        assert second["id"] == first["id"]
        assert second["work_dir"] == str(killed.work("first"))
        assert not killed.work("second").exists()
        for run in ("first", "second"):
            assert reap_elsewhere(killed.run(run)) == []
            (left,) = DockerBox.leftovers({"ageval.run": killed.run(run)})
            assert left.alive_owner
            assert left.labels["ageval.run"] == killed.run("second")
    finally:
        end(process)
    assert [row.alive_owner for row in DockerBox.leftovers({"ageval.run": killed.run("first")})] == [False]
    (said,) = reap_elsewhere(killed.run("second"))
    assert f"attempt-of-{killed.run('second')}: container ageval-{first['id']}, directory" in said
    assert on_engine(f"ageval.box={first['id']}") == []
    assert not killed.work("first").exists()


def test_a_server_that_the_task_keeps_outlives_its_owner(killed: Killed, tmp_path: Path) -> None:
    """With ``background: keep`` it runs in an idle box; otherwise it is a reason to refuse."""
    serve = "nohup sh -c 'while :; do date +%N > beat; sleep 0.1; done' > /dev/null 2>&1 &"
    handle = killed.box("first", command=["sh", "-c", serve])
    strict = new_box(tmp_path / "w")
    status = asyncio.run(strict.probe(handle))
    assert status.state == "busy"
    assert "beat" in status.detail
    box = new_box(tmp_path / "w", background="keep")

    async def body() -> None:
        before = (await box.exec(["cat", "beat"])).stdout
        await asyncio.sleep(0.4)
        assert (await box.exec(["cat", "beat"])).stdout != before

    assert asyncio.run(new_box(tmp_path / "w", background="keep").probe(handle)).state == "idle"
    taken_over(box, handle, body)
    assert on_engine(f"ageval.box={handle['id']}") == []


def test_a_container_that_has_stopped_is_started_again(killed: Killed, tmp_path: Path) -> None:
    """As after a new start of the engine; with the network without a way out, and its proxy."""
    handle = killed.box("first", command=["sh", "-c", "echo one > file"], egress="llm")
    names = [line.split()[1] for line in on_engine(f"ageval.box={handle['id']}") if line.startswith("ps ")]
    assert len(names) == 2
    subprocess.run(["docker", "kill", *names], capture_output=True, check=True)
    box = new_box(tmp_path / "w", egress="llm")
    status = asyncio.run(box.probe(handle))
    assert (status.state, status.detail) == ("idle", "its container does not run")

    async def body() -> None:
        assert (await box.exec(["cat", f"{WORKSPACE}/file"])).stdout == "one\n"
        # Nowhere but to the proxy, which answers that the host is not on the list.
        said = await box.exec(["curl", "-sS", "-m", "5", "http://example.invalid/"])
        assert "is not on the list" in said.stdout

    taken_over(box, handle, body)
    assert on_engine(f"ageval.box={handle['id']}") == []
    assert not killed.work("first").exists()


def test_a_handle_without_its_box(killed: Killed, tmp_path: Path) -> None:
    """Neither another box's directory nor a container that is not this box's is touched."""
    handle = killed.box("first")
    other = killed.box("second")

    async def body() -> None:
        wrong = {**handle, "container": other["container"]}
        assert (await new_box(tmp_path / "w").probe(wrong)).state == "absent"
        with pytest.raises(BoxError, match="environment_attach_invalid"):
            await new_box(tmp_path / "w").attach({**handle, "work_dir": other["work_dir"]})
        with pytest.raises(BoxError, match="environment_attach_invalid"):
            await new_box(tmp_path / "w").attach({**handle, "id": "../x"})
        await new_box(tmp_path / "w").discard({**handle, "work_dir": other["work_dir"]})

    asyncio.run(body())
    assert on_engine(f"ageval.box={handle['id']}") == []
    assert killed.work("second").exists()
    assert len(on_engine(f"ageval.box={other['id']}")) == 1


# -- the command line ------------------------------------------------------------------------------


def cli(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest_ageval.cli", *words],
        capture_output=True, text=True, env={**os.environ, **env},
    )  # fmt: skip


def test_clean_shows_and_removes_what_is_old_enough(killed: Killed) -> None:
    handle = killed.box("first", egress="llm")
    run = ["--run", killed.run("first")]
    parts = f"container ageval-{handle['id']}"
    shown = cli("clean", "--dry-run", *run)
    assert shown.returncode == 0, shown.stderr
    (line,) = [line for line in shown.stdout.splitlines() if line.startswith("would remove")]
    for word in ("docker box of attempt-of-", parts, f"network ageval-{handle['id']}", "directory /"):
        assert word in line
    assert "1 left-over box would be removed" in shown.stdout
    assert "nothing was left behind" in cli("clean", "--older-than", "1h", *run).stdout
    time.sleep(1)
    removed = cli("clean", "--older-than", "1s", *run)
    assert "1 left-over box removed" in removed.stdout
    assert on_engine(f"ageval.box={handle['id']}") == []
    assert not killed.work("first").exists()


def test_doctor_says_whether_an_engine_answers(tmp_path: Path) -> None:
    good = [json.loads(line) for line in cli("doctor", "--json", "--box", "docker").stdout.splitlines()]
    (row,) = [row for row in good if (row["area"], row["name"]) == ("box", "docker")]
    assert (row["state"], row["asked"]) == ("ok", True)
    host = f"unix://{tmp_path}/no.sock"
    done = cli("doctor", "--json", "--strict", "--box", "docker", DOCKER_HOST=host)
    assert done.returncode == 1
    (row,) = [
        row
        for row in map(json.loads, done.stdout.splitlines())
        if (row["area"], row["name"]) == ("box", "docker")
    ]
    assert row["state"] == "missing"
    assert host in row["detail"]
    assert "DOCKER_HOST" in row["remedy"]


def test_clean_goes_on_without_an_engine(tmp_path: Path) -> None:
    done = cli("clean", "--dry-run", "--run", "no-such-run", DOCKER_HOST=f"unix://{tmp_path}/no.sock")
    assert done.returncode == 0
    assert "docker: not looked at: no Docker engine" in done.stderr
