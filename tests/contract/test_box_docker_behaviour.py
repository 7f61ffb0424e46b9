"""What the docker box promises beyond the contract: limits, labels, leftovers, images, services."""

import asyncio
import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from support.docker_engine import BASE, needs_docker, on_engine

from ageval_boxes.docker_box import DockerBox
from pytest_ageval.box import WORKSPACE, BoxSpec, ImageLayer, work_parent
from pytest_ageval.errors import BoxError

pytestmark = [pytest.mark.docker, needs_docker]

COMPOSE = (
    shutil.which("docker-compose")
    or not subprocess.run(["docker", "compose", "version"], capture_output=True).returncode
    if shutil.which("docker")
    else None
)


def make_box(work: Path, *, options: dict[str, Any] | None = None, **more: Any) -> DockerBox:
    labels = {"ageval.run": f"behaviour-{os.getpid()}", "ageval.attempt": work.parent.name}
    return DockerBox(BoxSpec("docker", "a1", "t", work, options=options or {}, labels=labels, **more))


def drive(box: DockerBox, body: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        try:
            await box.start()
            await body()
        finally:
            await box.stop()

    asyncio.run(main())


def docker(*words: str) -> None:
    subprocess.run(["docker", *words], capture_output=True, check=True)


def inspect(name: str) -> dict[str, Any]:
    done = subprocess.run(["docker", "inspect", name], capture_output=True, text=True, check=True)
    (found,) = json.loads(done.stdout)
    return found


def task(root: Path, **files: str) -> Path:
    """A task directory with these files; ``__`` in a name is a slash."""
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_yaml", ".yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


# -- privileges and limits -------------------------------------------------------------------------


def test_the_user_is_not_root_and_cannot_become_root(tmp_path: Path) -> None:
    box = make_box(tmp_path / "w")

    async def body() -> None:
        assert (await box.exec(["id", "-u"])).stdout == "10001\n"
        status = (await box.exec(["cat", "/proc/self/status"])).stdout
        assert "NoNewPrivs:\t1" in status
        assert "CapEff:\t0000000000000000" in status
        # What keeps the container open cannot be ended from inside.
        await box.exec(["sh", "-c", "kill -9 -1; kill -9 1 7"])
        assert (await box.exec(["true"])).ok
        assert (await box.exec(["id", "-u"], user="root")).stdout == "0\n"
        assert (await box.exec(["test", "-e", "/var/run/docker.sock"], user="root")).exit_code == 1

    drive(box, body)


def test_limits_are_enforced(tmp_path: Path) -> None:
    box = make_box(tmp_path / "w", resources={"cpus": 0.5, "memory_mb": 64, "pids": 40})

    async def body() -> None:
        limits = inspect(box.handle()["container"])["HostConfig"]
        assert (limits["NanoCpus"], limits["Memory"], limits["PidsLimit"]) == (500_000_000, 64 << 20, 40)
        forks = "i=0; while [ $i -lt 100 ]; do sleep 30 & i=$((i+1)); done"
        done = await box.exec(["sh", "-c", forks], timeout=20)
        assert "fork" in done.stderr.lower()
        # Although there was no room for another process, all of them are found and ended.
        assert len([name for name in await box.quiesce() if "sleep 30" in name]) > 20
        assert inspect(box.handle()["container"])["HostConfig"]["PidsLimit"] == 40

    drive(box, body)


def test_a_command_that_ran_out_of_memory_is_told_from_one_that_was_killed(tmp_path: Path) -> None:
    box = make_box(tmp_path / "w", resources={"memory_mb": 64})

    async def body() -> None:
        assert (await box.exec(["sh", "-c", "kill -9 $$"])).exit_code == 137
        with pytest.raises(BoxError) as refused:
            await box.exec(["python3", "-c", "x = bytearray(200 << 20); x[:] = b'1' * len(x)"])
        assert refused.value.title == "environment_oom_killed"
        # It happened once; the next SIGKILL has nothing to do with it.
        assert (await box.exec(["sh", "-c", "kill -9 $$"])).exit_code == 137

    drive(box, body)


def test_a_child_that_ran_out_of_memory_is_a_warning(tmp_path: Path) -> None:
    box = make_box(tmp_path / "w", resources={"memory_mb": 64})

    async def body() -> None:
        script = "python3 -c 'x = b\"1\" * (200 << 20)'; exit 0"
        assert (await box.exec(["sh", "-c", script])).ok
        await box.quiesce()
        assert any("memory" in warning for warning in box.warnings)

    drive(box, body)


def test_no_network(tmp_path: Path) -> None:
    box = make_box(tmp_path / "w", options={"network": "none"})

    async def body() -> None:
        assert (await box.exec(["ls", "/sys/class/net"])).stdout.split() == ["lo"]

    drive(box, body)


@pytest.mark.parametrize(
    "options",
    [{"network": "host"}, {"network": "container:x"}, {"user": "x; y"}, {"python_version": "3"}],
    ids=lambda options: next(iter(options)) + "=" + next(iter(options.values())),
)
def test_options_that_cannot_be(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        make_box(tmp_path / "w", options=options)


def test_gpus_are_checked_before_anything_starts(tmp_path: Path) -> None:
    box = make_box(tmp_path / "w", resources={"gpus": 1})
    with pytest.raises(BoxError) as refused:
        asyncio.run(box.preflight())
    assert refused.value.title == "environment_gpu_unavailable"


def test_what_cannot_be_enforced_is_said(tmp_path: Path) -> None:
    box = make_box(tmp_path / "w", resources={"storage_mb": 10, "gpu_types": ["h100"], "memory_mb": 64})

    async def body() -> None:
        assert box.warnings == ["docker boxes do not enforce gpu_types, storage_mb"]

    drive(box, body)


# -- what it leaves --------------------------------------------------------------------------------


def test_everything_carries_the_labels(tmp_path: Path) -> None:
    box = make_box(tmp_path / "w")

    async def body() -> None:
        labels = inspect(box.handle()["container"])["Config"]["Labels"]
        assert box.spec.labels.items() <= labels.items()
        assert labels["ageval.box"] == box.handle()["id"]

    drive(box, body)
    assert on_engine(f"ageval.box={box.handle()['id']}") == []


OPEN = """
import asyncio, os, sys
from pathlib import Path
from ageval_boxes.docker_box import DockerBox
from pytest_ageval.box import BoxSpec, work_parent

async def main():
    work = work_parent() / sys.argv[1] / "box"
    box = DockerBox(BoxSpec("docker", "a1", "t", work, labels={"ageval.run": sys.argv[1]}))
    await box.start()
    print("ready", flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


def test_leftovers_of_a_killed_process_are_removed_and_others_spared(tmp_path: Path) -> None:
    run = f"killed-{os.getpid()}"
    with subprocess.Popen([sys.executable, "-c", OPEN, run], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            assert DockerBox.reap({"ageval.run": run}) == []
            assert len(on_engine(f"ageval.run={run}")) == 1
        finally:
            process.send_signal(signal.SIGKILL)
    removed = DockerBox.reap({"ageval.run": run})
    (said,) = removed
    assert "container ageval-" in said
    assert f"directory {work_parent() / run}" in said
    assert on_engine(f"ageval.run={run}") == []
    assert not (work_parent() / run).exists()
    assert DockerBox.reap({"ageval.run": run}) == []


def test_a_container_that_someone_removed(tmp_path: Path) -> None:
    box = make_box(tmp_path / "w")

    async def body() -> None:
        await asyncio.to_thread(docker, "rm", "-f", box.handle()["container"])
        with pytest.raises(BoxError) as refused:
            await box.exec(["true"])
        assert refused.value.title == "environment_gone"
        assert "No such container" in refused.value.message
        assert await box.quiesce() == []

    drive(box, body)


@pytest.mark.parametrize("end", ["rm", "kill"])
def test_an_attached_process_ends_with_its_container(tmp_path: Path, end: str) -> None:
    box = make_box(tmp_path / "w")

    async def body() -> None:
        transport = await box.attach_stdio(["cat"])
        await transport.write(b"up")
        assert await transport.read() == b"up"
        words = ["rm", "-f"] if end == "rm" else ["kill"]
        await asyncio.to_thread(docker, *words, box.handle()["container"])
        begun = time.monotonic()
        assert await asyncio.wait_for(transport.read(), 10) == b""
        assert await transport.wait(10) not in (None, 0)
        assert time.monotonic() - begun < 5
        await transport.terminate()

    drive(box, body)


def test_orphans_are_reaped(tmp_path: Path) -> None:
    box = make_box(tmp_path / "w")

    async def body() -> None:
        await box.exec(["sh", "-c", "for i in 1 2 3 4 5; do (sleep 0.1 &) ; done"])
        await asyncio.sleep(0.5)
        assert "Z" not in (await box.exec(["ps", "-eo", "stat"])).stdout

    drive(box, body)


def test_a_server_stays_when_the_task_keeps_its_background(tmp_path: Path) -> None:
    box = make_box(tmp_path / "w", options={"background": "keep"})

    async def body() -> None:
        serve = "nohup sh -c 'while :; do date +%N > beat; sleep 0.1; done' > /dev/null 2>&1 &"
        agent = await box.attach_stdio(["sh", "-c", f"({serve}); sleep 1000 & cat"])
        await asyncio.sleep(0.5)
        await agent.terminate(grace=0.2)
        assert not any("beat" in name for name in await box.quiesce())
        assert "sleep 1000" not in (await box.exec(["ps", "-ef"])).stdout
        before = (await box.exec(["cat", "beat"])).stdout
        await asyncio.sleep(0.4)
        assert (await box.exec(["cat", "beat"])).stdout != before

    drive(box, body)


@pytest.mark.parametrize("delay", [0.02, 0.1, 0.15, 0.2, 0.3])
@pytest.mark.parametrize("options", [{}, {"egress": "llm"}], ids=["plain", "egress"])
def test_a_start_that_is_cancelled_leaves_nothing(
    tmp_path: Path, delay: float, options: dict[str, Any]
) -> None:
    box = make_box(tmp_path / "w", options=options)

    async def main() -> None:
        starting = asyncio.ensure_future(box.start())
        await asyncio.wait({starting}, timeout=delay)
        starting.cancel()
        await asyncio.wait({starting})
        await box.stop()

    asyncio.run(main())
    time.sleep(0.5)
    assert on_engine(f"ageval.box={box.handle()['id']}") == []
    assert not (tmp_path / "w").exists()


# -- whose files they are --------------------------------------------------------------------------

AS_USER = """
import asyncio, os, sys
from pathlib import Path
from ageval_boxes.docker_box import DockerBox
from pytest_ageval.box import BoxSpec, WORKSPACE

async def main(work, options):
    box = DockerBox(BoxSpec("docker", "a1", "t", work, options=options))
    try:
        await box.start()
        done = await box.exec(["sh", "-c", "umask 077; mkdir d; echo 1 > d/reward; id -u"])
        assert done.ok, done.stderr
        await box.download(WORKSPACE + "/d", work.parent / ("out-" + done.stdout.strip()))
        print(done.stdout.strip(), box.host_path(WORKSPACE) is not None)
    finally:
        await box.stop()
    assert not work.exists()

for options in ({}, {"user": "root"}):
    asyncio.run(main(Path(sys.argv[1]) / "work", options))
assert (Path(sys.argv[1]) / "out-0" / "reward").read_text() == "1\\n"
"""


def python_for_others() -> str | None:
    """An interpreter that another user may start: ours can lie in our home directory."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    for program in (sys.executable, f"/usr/bin/python{version}", f"/usr/local/bin/python{version}"):
        words = [program, "-c", "import msgspec, docker"]
        try:
            done = subprocess.run(words, user=4321, group=4321, cwd="/", env=environment, capture_output=True)
        except OSError:
            continue
        if done.returncode == 0:
            return program
    return None


@pytest.mark.skipif(os.geteuid() != 0, reason="changes the user")
def test_a_user_who_is_not_root_gets_files_of_root_too(tmp_path: Path) -> None:
    """As an ordinary user: the box's user is the same one, files are shared; root's files are copied."""
    python = python_for_others()
    if python is None:
        pytest.skip("no interpreter that another user may start")
    directory = Path("/var/tmp") / f"ageval-user-{os.getpid()}"
    directory.mkdir()
    try:
        os.chown(directory, 4321, 4321)
        group = os.stat("/var/run/docker.sock").st_gid
        environment = {**os.environ, "HOME": str(directory), "XDG_CACHE_HOME": str(directory / "cache")}
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        done = subprocess.run(
            [python, "-c", AS_USER, str(directory)],
            user=4321, group=4321, extra_groups=[group], env=environment, cwd="/",
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == ["4321 True", "0 False"]
    finally:
        shutil.rmtree(directory)


ELSEWHERE = """
import asyncio, sys
from pathlib import Path
from ageval_boxes.docker_box import DockerBox
from pytest_ageval.box import BoxSpec, WORKSPACE

async def main(root):
    box = DockerBox(BoxSpec("docker", "a1", "t", root / "work"))
    (root / "file").write_text("up")
    try:
        await box.start()
        await box.upload(root / "file", WORKSPACE + "/file")
        print((await box.exec(["cat", "file"])).stdout, box.host_path(WORKSPACE), box.expose)
    finally:
        await box.stop()

asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a mount namespace")
def test_an_engine_that_does_not_see_our_files_gets_copies(tmp_path: Path) -> None:
    """As where we run in a container into which the engine's socket was mounted."""
    inside = f'mount -t tmpfs tmpfs "{tmp_path}" && exec "$0" -c "$1" "{tmp_path}"'
    words = ["unshare", "-m", "sh", "-c", inside, sys.executable, ELSEWHERE]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("up None None\n", 0), done.stderr


def test_what_the_task_script_writes_the_agent_can_change(tmp_path: Path) -> None:
    box = make_box(tmp_path / "w")

    async def body() -> None:
        workspace = box.host_path(WORKSPACE)
        assert workspace is not None
        (workspace / "notes").mkdir()
        (workspace / "notes" / "plan").write_text("from run.py\n")
        agent = await box.attach_stdio(["sh", "-c", "echo mine >> notes/plan && echo done"])
        assert await agent.read() == b"done\n"
        await agent.terminate()

    drive(box, body)


# -- images ----------------------------------------------------------------------------------------


def image_of(box: DockerBox) -> str:
    return str(inspect(box.handle()["container"])["Config"]["Image"])


def test_a_recipe_is_built_once_and_again_when_a_source_changes(tmp_path: Path) -> None:
    mark = f"{os.getpid()}-{time.time_ns()}"
    recipe = f"FROM {BASE}\nCOPY environment/greeting /greeting\nRUN test ! -e /evaluation\n"
    root = task(tmp_path / "task", environment__Dockerfile=recipe, environment__greeting=f"hello {mark}\n",
                evaluation__gold="GOLD", data__unrelated="1")  # fmt: skip
    images = []

    def once() -> None:
        box = make_box(tmp_path / f"w{len(images)}", task_root=root)

        async def body() -> None:
            images.append(image_of(box))
            greeting = await box.exec(["cat", "/greeting"])
            assert greeting.stdout == (root / "environment" / "greeting").read_text()

        drive(box, body)

    try:
        once()
        once()
        created = inspect(images[0])["Created"]
        assert images[0] == images[1]
        assert inspect(images[1])["Created"] == created
        # Gold is no part of a build.
        (root / "evaluation" / "gold").write_text("OTHER")
        once()
        assert images[2] == images[0]
        (root / "environment" / "greeting").write_text(f"goodbye {mark}\n")
        once()
        assert images[3] != images[0]
    finally:
        subprocess.run(["docker", "rmi", "-f", *set(images)], capture_output=True)


BUILD = """
import asyncio, sys
from pathlib import Path
from ageval_boxes.docker_box._engine import connect
from ageval_boxes.docker_box._images import resolve
root = Path(sys.argv[1])
print(asyncio.run(resolve(connect(), image=None, recipe=root / "environment" / "Dockerfile", context=root,
                          platform=None, python_version=None, labels={})))
"""


def test_one_process_builds_and_the_others_wait(tmp_path: Path) -> None:
    """Four processes that build would leave four images with this digest."""
    recipe = f"FROM {BASE}\nARG NOW={time.time_ns()}\nRUN sleep 1; date +%s%N > /when\n"
    root = task(tmp_path / "task", environment__Dockerfile=recipe)
    running = [
        subprocess.Popen([sys.executable, "-c", BUILD, str(root)], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    tags = {process.communicate()[0].strip() for process in running}
    try:
        assert [process.returncode for process in running] == [0] * 4
        (tag,) = tags
        digest = inspect(tag)["Config"]["Labels"]["ageval.image"]
        words = ["docker", "images", "-aq", "--no-trunc", "--filter", f"label=ageval.image={digest}"]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        assert len(set(done.stdout.split())) == 1
    finally:
        subprocess.run(["docker", "rmi", "-f", *tags], capture_output=True)


def refused(box: DockerBox) -> BoxError:
    with pytest.raises(BoxError) as found:
        drive(box, lambda: asyncio.sleep(0))
    return found.value


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ({"recipe": "from debian"}, "may have no FROM"),
        ({}, "neither a recipe nor a dest"),
        ({"dest": "/opt/x"}, "needs a context"),
        ({"dest": "/opt/x", "context": Path("/none")}, "is no directory"),
        ({"dest": "/opt/x", "context": Path("/opt"), "recipe": "RUN true"}, "can have no recipe"),
        ({"dest": "opt/../x", "context": Path("/opt")}, "is not an absolute path"),
        ({"dest": "/attempt/workspace", "context": Path("/opt")}, "belongs to the attempt"),
    ],
)
def test_a_layer_that_cannot_be(tmp_path: Path, layer: dict[str, Any], words: str) -> None:
    error = refused(make_box(tmp_path / "w", layers=[ImageLayer("kit", **layer)]))
    assert error.title == "environment_layer_invalid"
    assert words in error.message


def test_a_key_stands_for_the_content_of_a_layer(tmp_path: Path) -> None:
    """And a Dockerfile of the context is a file like any other; links and modes are kept."""
    kit = task(tmp_path / "kit", Dockerfile="mine", word="one")
    (kit / "run").write_text("#!/bin/sh\ncat /opt/kit/word\n")
    (kit / "run").chmod(0o755)
    (kit / "link").symlink_to("run")
    key = f"{os.getpid()}-{time.time_ns()}"
    images = []

    def once(**more: Any) -> str:
        layer = ImageLayer("kit", "COPY . /opt/kit", context=kit, **more)
        box = make_box(tmp_path / f"w{len(images)}", layers=[layer])
        said = []

        async def body() -> None:
            images.append(image_of(box))
            said.append((await box.exec(["/opt/kit/link"])).stdout)
            assert (await box.exec(["cat", "/opt/kit/Dockerfile"])).stdout == "mine"

        drive(box, body)
        return said[0]

    try:
        assert once(key=key) == "one"
        (kit / "word").write_text("two")
        assert once(key=key) == "one"
        assert once(key=f"{key}-2") == "two"
        assert images[0] == images[1] != images[2]
    finally:
        subprocess.run(["docker", "rmi", "-f", *set(images)], capture_output=True)


def test_an_image_that_does_not_exist(tmp_path: Path) -> None:
    options = {"image": "localhost:9/none:latest", "platform": "linux/arm64"}
    error = refused(make_box(tmp_path / "w", options=options))
    assert error.title == "environment_image_unresolved"
    assert "localhost:9/none:latest for linux/arm64" in error.message
    assert not (tmp_path / "w").exists()


def test_a_recipe_that_fails_says_why(tmp_path: Path) -> None:
    root = task(tmp_path / "task", environment__Dockerfile=f"FROM {BASE}\nRUN echo first words; exit 3\n")
    error = refused(make_box(tmp_path / "w", task_root=root))
    assert error.title == "environment_image_unresolved"
    assert "returned a non-zero code: 3" in error.message
    assert error.detail is not None
    assert "first words" in error.detail


def test_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    error = refused(make_box(tmp_path / "w"))
    assert error.title == "environment_daemon_unreachable"
    assert "no.sock" in error.message
    assert DockerBox.reap({"ageval.run": "x"}) == []


#: Passes everything on to the engine, until it is killed.
FORWARD = """
import asyncio, sys

async def pipe(reader, writer):
    while data := await reader.read(1 << 16):
        writer.write(data)
    writer.write_eof()

async def serve(reader, writer):
    back, there = await asyncio.open_unix_connection("/var/run/docker.sock")
    await asyncio.gather(pipe(reader, there), pipe(back, writer), return_exceptions=True)

async def main():
    async with await asyncio.start_unix_server(serve, sys.argv[1]) as server:
        await server.serve_forever()

asyncio.run(main())
"""

#: What a box meets whose engine goes away, as JSON. In a process of its own, since the SDK then leaves
#: sockets to the collector.
LOSE = """
import asyncio, json, os, subprocess, sys, time
from pathlib import Path
from ageval_boxes.docker_box import DockerBox
from pytest_ageval.box import BoxSpec
from pytest_ageval.errors import BoxError

async def title(method):
    try:
        await asyncio.wait_for(method, 20)
    except BoxError as error:
        return [error.title, os.environ["DOCKER_HOST"] in error.message]
    return ["nothing"]

async def main(forward, work, labels):
    path = work.with_name("d.sock")
    engine = subprocess.Popen([sys.executable, "-c", forward, str(path)])
    os.environ["DOCKER_HOST"] = f"unix://{path}"
    try:
        while not path.exists():
            time.sleep(0.05)
        box = DockerBox(BoxSpec("docker", "a1", "t", work, labels=labels))
        await box.start()
        running = asyncio.ensure_future(box.exec(["sleep", "100"]))
        transport = await box.attach_stdio(["cat"])
        await transport.write(b"up")
        assert await transport.read() == b"up"
    finally:
        engine.kill()
        engine.wait()
    found = [await title(running)]
    assert await asyncio.wait_for(transport.read(), 10) == b""
    found += [await title(method) for method in (box.exec(["true"]), box.quiesce(), box.stop())]
    print(json.dumps(found))

asyncio.run(main(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])))
"""


@pytest.mark.skipif(not Path("/var/run/docker.sock").exists(), reason="the engine is elsewhere")
def test_an_engine_that_goes_away_in_the_middle(tmp_path: Path) -> None:
    """What runs ends with a title of its own, not as a command that failed; what is left is found."""
    labels = {"ageval.run": f"lost-{os.getpid()}"}
    words = [sys.executable, "-c", LOSE, FORWARD, str(tmp_path / "w"), json.dumps(labels)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [["environment_daemon_unreachable", True]] * 4
    assert len(on_engine(f"ageval.run={labels['ageval.run']}")) == 1
    assert len(DockerBox.reap(labels)) == 1
    assert on_engine(f"ageval.run={labels['ageval.run']}") == []
    assert not (tmp_path / "w").exists()


def test_words_of_the_engine_have_titles() -> None:
    from docker.errors import APIError

    from ageval_boxes.docker_box._engine import failure

    for words, title in {
        "could not find an available, non-overlapping IPv4 address pool among the defaults to assign to the "
        "network": "environment_networks_used_up",
        "all predefined address pools have been fully subnetted": "environment_networks_used_up",
        "write /var/lib/docker/x: no space left on device": "environment_disk_full",
        "pull access denied for x": "environment_image_unresolved",
        'could not select device driver "" with capabilities: [[gpu]]': "environment_gpu_unavailable",
        "something else": "environment_start_failed",
    }.items():
        found = failure(APIError("500", explanation=words))
        assert (found.title, found.message) == (title, words)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_a_disk_that_is_full(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=True)
    try:
        box = make_box(disk / "w")
        (tmp_path / "big").write_bytes(b"x" * (2 << 20))

        async def body() -> None:
            with pytest.raises(BoxError) as error:
                await box.upload(tmp_path / "big", f"{WORKSPACE}/big")
            assert error.value.title == "environment_disk_full"
            assert "No space left on device" in error.value.message

        drive(box, body)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


# -- the way out ------------------------------------------------------------------------------------


class Site:
    """An HTTP server of this machine that containers reach: on all its addresses."""

    def __init__(self) -> None:
        handler = type("Handler", (http.server.BaseHTTPRequestHandler,), {"do_GET": self._get})
        handler.log_message = lambda *_words: None  # type: ignore[method-assign]
        self._server = http.server.ThreadingHTTPServer(("0.0.0.0", 0), handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever)

    @staticmethod
    def _get(request: Any) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "6")
        request.end_headers()
        request.wfile.write(b"served")

    def __enter__(self) -> "Site":
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def bridge_address() -> str:
    words = ["docker", "network", "inspect", "bridge", "-f", "{{(index .IPAM.Config 0).Gateway}}"]
    return subprocess.run(words, capture_output=True, text=True).stdout.strip() or "172.17.0.1"


def test_only_what_is_allowed_can_be_reached(tmp_path: Path) -> None:
    """By the proxy: the provider. Past it: nothing, neither a name nor an address nor this machine."""
    address = bridge_address()
    with Site() as provider, Site() as other:
        url = f"http://{address}:{provider.port}/v1"
        box = make_box(tmp_path / "w", options={"egress": "llm"}, model_urls=[url])

        async def curl(*words: str) -> tuple[int, str]:
            done = await box.exec(["curl", "-sS", "-m", "3", *words])
            return done.exit_code, done.stdout

        async def body() -> None:
            assert await curl(url) == (0, "served")
            assert await curl("-p", url) == (0, "served")  # a tunnel, as for https
            code, said = await curl(f"http://{address}:{other.port}/")
            assert (code, "is not on the list" in said) == (0, True)
            assert (await curl("-p", f"http://{address}:{other.port}/"))[0] != 0
            past = ("--noproxy", "*")
            assert (await curl(*past, url))[0] != 0
            found = inspect(box.handle()["container"])["NetworkSettings"]["Networks"]
            (network,) = found.values()
            for gateway in {address, network["Gateway"] or "169.254.1.1"}:
                assert (await curl(*past, f"http://{gateway}:{other.port}/"))[0] != 0
            lookup = "import socket; socket.setdefaulttimeout(3); socket.gethostbyname('example.org')"
            assert not (await box.exec(["python3", "-c", lookup], timeout=30)).ok

        drive(box, body)
    assert on_engine(f"ageval.box={box.handle()['id']}") == []


@pytest.mark.parametrize(
    "options",
    [{"egress_allow": ["a.example"]}, {"egress": "llm", "network": "none"},
     {"egress": "llm", "egress_allow": ["http://a.example/x"]}],
)  # fmt: skip
def test_a_way_out_that_cannot_be(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="egress"):
        make_box(tmp_path / "w", options=options)


# -- compose services ------------------------------------------------------------------------------

SERVICES = textwrap.dedent(
    f"""
    services:
      main: {{image: "not-used:1", depends_on: [web]}}
      web:
        image: {BASE}
        container_name: fixed_name
        ports: ["18080:8000"]
        init: true
        command: [sh, -c, "cd /srv; echo served > f; sleep 1.5; exec python3 -m http.server 8000"]
        healthcheck:
          test: ["CMD", "python3", "-c", "import urllib.request as u; u.urlopen('http://localhost:8000/f')"]
          interval: 1s
          retries: 20
        volumes: ["kept:/kept"]
    volumes:
      kept: {{}}
    """
)
with_compose = pytest.mark.skipif(not COMPOSE, reason="no Compose CLI")


@with_compose
def test_services_are_healthy_reached_by_name_and_removed(tmp_path: Path) -> None:
    """Two attempts at once, although the file fixes a name and a port."""
    root = task(tmp_path / "task", environment__compose_yaml=SERVICES)
    boxes = [make_box(tmp_path / name, task_root=root) for name in ("w1", "w2")]
    fetch = "import urllib.request as u; print(u.urlopen('http://web:8000/f').read().decode(), end='')"

    async def one(box: DockerBox) -> None:
        assert (await box.exec(["python3", "-c", fetch])).stdout == "served\n"
        inside = await box.exec(["cat", "/srv/f"], service="web")
        assert inside.stdout == "served\n"
        slow = await box.exec(["sh", "-c", "sleep 100 & sleep 100"], service="web", timeout=1)
        assert slow.timed_out
        assert "sleep 100" not in (await box.exec(["ps", "-ef"], service="web")).stdout
        (tmp_path / "up").write_text("up")
        await box.upload(tmp_path / "up", "/srv/new/up", service="web")
        await box.download("/srv/new", tmp_path / box.handle()["id"], service="web")
        assert (tmp_path / box.handle()["id"] / "up").read_text() == "up"
        with pytest.raises(BoxError) as error:
            await box.exec(["true"], service="nothing")
        assert error.value.title == "environment_service_missing"
        found = on_engine(f"ageval.box={box.handle()['id']}")
        assert sorted(line.split()[0] for line in found) == ["network", "ps", "ps", "volume"]

    async def main() -> None:
        try:
            await asyncio.gather(*(box.start() for box in boxes))
            await asyncio.gather(*(one(box) for box in boxes))
        finally:
            await asyncio.gather(*(box.stop() for box in boxes))

    asyncio.run(main())
    for box in boxes:
        assert on_engine(f"ageval.box={box.handle()['id']}") == []


@with_compose
def test_a_service_that_is_not_well(tmp_path: Path) -> None:
    unwell = SERVICES.replace("localhost:8000/f", "localhost:8000/no").replace("retries: 20", "retries: 2")
    root = task(tmp_path / "task", environment__compose_yaml=unwell)
    box = make_box(tmp_path / "w", task_root=root)
    error = refused(box)
    assert error.title == "environment_compose_failed"
    assert "web is unhealthy" in error.message
    assert "404" in error.message
    assert on_engine(f"ageval.box={box.handle()['id']}") == []


@with_compose
def test_a_service_whose_check_never_passes_says_why_when_time_is_up(tmp_path: Path) -> None:
    """Its retries would last longer than anyone waits."""
    slow = SERVICES.replace("localhost:8000/f", "localhost:8000/no").replace("retries: 20", "retries: 999")
    root = task(tmp_path / "task", environment__compose_yaml=slow)
    box = make_box(tmp_path / "w", task_root=root)

    async def main() -> None:
        starting = asyncio.ensure_future(box.start())
        try:
            # At least one check has ended; then patience does.
            while box._compose is None or "404" not in box._compose.waiting.get("web", ""):
                assert not starting.done()
                await asyncio.sleep(0.1)
            starting.cancel()
            await asyncio.wait({starting})
        finally:
            await box.stop()

    asyncio.run(asyncio.wait_for(main(), 60))
    (warning,) = box.warnings
    assert "the service web was not healthy yet" in warning
    assert "404" in warning
    assert on_engine(f"ageval.box={box.handle()['id']}") == []


@with_compose
@pytest.mark.parametrize(
    "setting",
    ["privileged: true", "network_mode: host", "pid: host", "volumes: ['/etc:/host']",
     "volumes: ['/var/run/docker.sock:/var/run/docker.sock']", "cap_add: [SYS_ADMIN]"],
)  # fmt: skip
def test_a_service_may_not_have_this_machine(tmp_path: Path, setting: str) -> None:
    text = f"services:\n  web:\n    image: {BASE}\n    {setting}\n"
    root = task(tmp_path / "task", environment__compose_yaml=text)
    error = refused(make_box(tmp_path / "w", task_root=root))
    assert error.title == "environment_compose_failed"
    assert "may not" in error.message


@with_compose
def test_the_network_of_a_service_can_be_shared(tmp_path: Path) -> None:
    root = task(tmp_path / "task", environment__compose_yaml=SERVICES)
    box = make_box(tmp_path / "w", task_root=root, options={"network": "service:web"})
    fetch = "import urllib.request as u; print(u.urlopen('http://localhost:8000/f').read().decode(), end='')"

    async def body() -> None:
        assert (await box.exec(["python3", "-c", fetch])).stdout == "served\n"

    drive(box, body)


@with_compose
def test_a_compose_file_of_main_alone_opens_no_way_out(tmp_path: Path) -> None:
    root = task(tmp_path / "task", environment__compose_yaml="services:\n  main:\n    environment: {A: b}\n")
    box = make_box(tmp_path / "w", task_root=root, options={"network": "none"})

    async def body() -> None:
        assert (await box.exec(["ls", "/sys/class/net"])).stdout.split() == ["lo"]

    drive(box, body)
