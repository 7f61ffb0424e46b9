"""What docker boxes ask the engine for, and what they do not; what is made once for all of them."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.docker_engine import BASE, needs_docker, on_engine
from support.docker_pairs import pairs, requests
from support.engine_log import ENGINE, EngineLog, engine_log

from ageval_boxes.docker_box import DockerBox, _bridge
from ageval_boxes.docker_box._engine import connect
from pytest_ageval.box import WORKSPACE, BoxSpec
from pytest_ageval.errors import BoxError

pytestmark = [
    pytest.mark.docker,
    needs_docker,
    pytest.mark.skipif(not Path(ENGINE).exists(), reason="the engine is elsewhere"),
]

OPEN = ["POST /containers/create", "POST /containers/ID/start"]
EXEC = ["POST /containers/ID/exec", "POST /exec/ID/start", "GET /exec/ID/json"]
#: Whether it is there, whether its directory is, and the copy.
UPLOAD = ["HEAD /containers/ID/archive"] * 2 + ["PUT /containers/ID/archive"]
DOWNLOAD = ["GET /containers/ID/archive"]
CLOSE = ["DELETE /containers/ID"]
#: `/attempt` is made by a copy before the start, or, in an image with a layout of its own, by a command.
MADE_BY_COPY = [OPEN[0], "PUT /containers/ID/archive", OPEN[1]]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("shared", [*OPEN, *EXEC, *EXEC, *CLOSE]),
        ("copied", [*MADE_BY_COPY, *UPLOAD, *EXEC, *EXEC, *DOWNLOAD, *CLOSE]),
        ("image", [*OPEN, *EXEC, *UPLOAD, *EXEC, *EXEC, *DOWNLOAD, *CLOSE]),
    ],
)
def test_the_plain_path_asks_for_nothing_else(name: str, wanted: list[str]) -> None:
    """No pings, versions, images, networks or lists: an earlier box of this process has found them."""
    assert requests(name) == wanted


def test_a_box_takes_little_more_than_the_bare_calls() -> None:
    """Measured at 1.2; the limit leaves room for a machine with other work."""
    found = pairs("image", 5)
    assert statistics.median(mine / theirs for theirs, mine in found) < 2.0, found


# -- ending ----------------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLog]:
    with engine_log(tmp_path_factory.mktemp("e")) as running:
        monkeypatch.setenv("DOCKER_HOST", running.host)
        yield running


def make_box(work: Path, *, options: dict[str, Any] | None = None, **more: Any) -> DockerBox:
    labels = {"ageval.run": f"requests-{os.getpid()}"}
    return DockerBox(BoxSpec("docker", "a1", "t", work, options=options or {}, labels=labels, **more))


def test_removal_waits_for_no_grace(tmp_path: Path, log: EngineLog) -> None:
    """The engine's own stop gives a process that ignores TERM ten seconds."""
    stubborn = "trap '' TERM; echo up; while :; do sleep 1; done"
    box = make_box(tmp_path / "w")

    async def main() -> float:
        try:
            await box.start()
            process = await box.attach_stdio(["sh", "-c", stubborn])
            assert await process.read() == b"up\n"
        finally:
            log.requests.clear()
            begun = time.monotonic()
            await box.stop()
        return time.monotonic() - begun

    assert asyncio.run(main()) < 5
    (removal,) = [row for row in log.requests if not row.startswith("GET /exec") and "/exec/" not in row]
    assert removal.startswith("DELETE ")
    assert "force=True" in removal
    assert on_engine(f"ageval.box={box.handle()['id']}") == []


@pytest.mark.parametrize("memory", [None, 256], ids=["no-limit", "memory_mb"])
def test_an_idle_box_is_quiesced_with_one_question(
    tmp_path: Path, log: EngineLog, memory: int | None
) -> None:
    """The engine says that nothing runs; with a limit of memory a command also looks for what was ended."""
    box = make_box(tmp_path / "w", resources={} if memory is None else {"memory_mb": memory})

    async def main() -> None:
        try:
            await box.start()
            log.requests.clear()
            assert await box.quiesce() == []
            wanted = ["GET /containers/ID/top"] if memory is None else EXEC[:2]
            assert log.plain == wanted
            if memory is None:
                # Somebody does run: the engine's answer is not taken for a no.
                await box.exec(["sh", "-c", "sleep 4711 >/dev/null 2>&1 &"])
                (ended,) = await box.quiesce()
                assert "sleep 4711" in ended
        finally:
            await box.stop()

    asyncio.run(main())


# -- made once -------------------------------------------------------------------------------------


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The network of boxes has this name, which nobody else uses."""
    name = f"ageval-test-{os.getpid()}-{time.time_ns()}"
    monkeypatch.setattr(_bridge, "NAME", name)
    connect().memory.forget()
    yield name
    connect().memory.forget()
    subprocess.run(["docker", "network", "rm", name], capture_output=True)


def address(box: DockerBox) -> str:
    words = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
    argv = ["docker", "inspect", "-f", words, box.handle()["container"]]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


SERVE = "import http.server as h; print('up', flush=True); h.test(h.SimpleHTTPRequestHandler, port=8000)"
CONNECT = (
    "import socket, sys\n"
    "try: socket.create_connection((sys.argv[1], 8000), float(sys.argv[2]))\n"
    "except OSError as error: print(type(error).__name__)\n"
    "else: print('reached')\n"
)


def test_boxes_share_a_network_and_do_not_reach_each_other(tmp_path: Path, network: str) -> None:
    """The host reaches the server of the one box, the other box does not."""
    first, second = make_box(tmp_path / "1"), make_box(tmp_path / "2")

    async def main() -> None:
        try:
            await asyncio.gather(first.start(), second.start())
            server = await first.attach_stdio(["python3", "-c", SERVE])
            assert (await server.read()).startswith(b"up")
            here = address(first)
            assert here
            argv = [sys.executable, "-c", CONNECT, here, "20"]
            by_host = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True)
            by_itself = await first.exec(["python3", "-c", CONNECT, here, "20"])
            by_other = await second.exec(["python3", "-c", CONNECT, here, "3"])
            said = (by_host.stdout.strip(), by_itself.stdout.strip(), by_other.stdout.strip())
            assert said == ("reached", "reached", "TimeoutError")
        finally:
            await asyncio.gather(first.stop(), second.stop())

    asyncio.run(main())
    assert not first.warnings
    listed = subprocess.run(["docker", "network", "inspect", network], capture_output=True)
    assert listed.returncode == 0


def test_where_the_network_cannot_be_made_a_warning_says_so(tmp_path: Path, network: str) -> None:
    subprocess.run(["docker", "network", "create", network], capture_output=True, check=True)
    boxes = make_box(tmp_path / "1"), make_box(tmp_path / "2", options={"network": "none"})

    async def main() -> None:
        for box in boxes:
            try:
                await box.start()
            finally:
                await box.stop()

    asyncio.run(main())
    (warning,) = boxes[0].warnings
    assert "can reach each other" in warning
    assert network in warning
    assert not boxes[1].warnings


def test_what_somebody_removed_is_made_again(tmp_path: Path, network: str) -> None:
    """A network and an image that an earlier box of this process had."""
    root = tmp_path / "task"
    (root / "environment").mkdir(parents=True)
    (root / "environment" / "Dockerfile").write_text(f"FROM {BASE}\nENV MARK={time.time_ns()}\n")

    def once(name: str) -> str:
        box = make_box(tmp_path / name, task_root=root)

        async def main() -> str:
            try:
                await box.start()
                assert (await box.exec(["test", "-n", WORKSPACE])).ok
                argv = ["docker", "inspect", "-f", "{{.Config.Image}}", box.handle()["container"]]
                return (await asyncio.to_thread(subprocess.check_output, argv, text=True)).strip()
            finally:
                await box.stop()

        found = asyncio.run(main())
        assert on_engine(f"ageval.box={box.handle()['id']}") == []
        return found

    image = once("1")
    try:
        subprocess.run(["docker", "network", "rm", network], capture_output=True, check=True)
        assert once("2") == image
        subprocess.run(["docker", "rmi", image], capture_output=True, check=True)
        assert once("3") == image
    finally:
        subprocess.run(["docker", "rmi", "-f", image], capture_output=True)


def test_an_image_that_is_gone_for_good_is_refused(tmp_path: Path) -> None:
    name = f"ageval-test-gone:{os.getpid()}"
    subprocess.run(["docker", "tag", BASE, name], check=True)

    async def once(work: Path) -> None:
        box = make_box(work, options={"image": name})
        try:
            await box.start()
        finally:
            await box.stop()

    asyncio.run(once(tmp_path / "1"))
    subprocess.run(["docker", "rmi", name], capture_output=True, check=True)
    with pytest.raises(BoxError) as refused:
        asyncio.run(once(tmp_path / "2"))
    assert refused.value.title == "environment_image_unresolved"
    assert on_engine(f"ageval.run=requests-{os.getpid()}") == []


# -- a whole run -----------------------------------------------------------------------------------

FILES = {
    "ageval.yaml": 'format: ageval.dataset/1\ndataset_id: x/y\nversion: "1"\ntasks: {root: tasks}\n',
    "profiles.yaml": "format: ageval.profiles/1\nenvironment: docker\nagent_profiles: {}\n",
    "tasks/t/task.yaml": "format: ageval.task/1\ntask_id: t\ndescription: d\n"
    "artifacts: {publishable: [{id: reply, path: reply.json}]}\n",
    "tasks/t/run.py": "async def run(ctx):\n    ctx.publish_json('reply', 1)\n",
    "tasks/t/evaluator.py": "def evaluate(inputs):\n    return {'status': 'PASS'}\n",
}
CLI = '#!/bin/sh\necho "$0 $*" >> {called}\nexit 1\n'


def test_a_run_builds_once_and_starts_no_docker_program(tmp_path: Path) -> None:
    """Two sessions, the first in two processes: one build for all attempts, and the engine's API alone."""
    root, called = tmp_path / "d", tmp_path / "called"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    recipe = root / "tasks" / "t" / "environment" / "Dockerfile"
    recipe.parent.mkdir()
    mark = f"ageval.test={time.time_ns()}"
    recipe.write_text(f"FROM {BASE}\nLABEL {mark}\n")
    for name in ("docker", "docker-compose"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(CLI.format(called=called))
        program.chmod(0o755)
    command = [sys.executable, "-m", "pytest", str(root), "-q", "-p", "no:cacheprovider", "--attempts", "4"]
    try:
        with engine_log(tmp_path) as log:
            path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
            environment = {**os.environ, "PATH": path, "DOCKER_HOST": log.host}
            for more in (("-n", "2"), ("-n", "0")):
                done = subprocess.run(
                    [*command, *more], cwd=tmp_path, env=environment, capture_output=True, text=True
                )
                assert done.returncode == 0, done.stdout + done.stderr
                assert "4 passed" in done.stdout
            counts = Counter(log.plain)
    finally:
        listed = ["docker", "images", "-q", "--filter", f"label={mark}"]
        images = subprocess.run(listed, capture_output=True, text=True).stdout.split()
        subprocess.run(["docker", "rmi", "-f", *images], capture_output=True)
    assert len(images) == 1
    assert not called.exists()
    assert counts["POST /build"] == 1
    assert counts["POST /networks/create"] <= 1  # none where an earlier run has made it
    assert counts["POST /containers/create"] == counts["DELETE /containers/ID"] == 8
    assert not [row for row in counts if row.endswith(("/stop", "/kill", "/wait"))]
