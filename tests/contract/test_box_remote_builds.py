"""Templates and snapshots: what names them, that they are built once, and what is in them."""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jail
import pytest
from clouds import Cloud, opened, refusal, with_box

from ageval_boxes import _remote_recipe as recipes
from pytest_ageval.box import Box, ImageLayer
from pytest_ageval.errors import BoxError

pytestmark = pytest.mark.skipif(jail.unusable() is not None, reason=str(jail.unusable()))

DOCKERFILE = """
FROM debian:12-slim
ENV GREETING=hello
COPY environment/tool "/srv/tool"
COPY . /srv/all/
RUN echo made > /srv/made
"""


@pytest.fixture(scope="module", params=["e2b", "daytona"])
def cloud(request: pytest.FixtureRequest) -> Iterator[Cloud]:
    with opened(request.param) as found:
        yield found


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """A task with a Dockerfile that is like no other's, and with gold."""
    root = tmp_path / "task"
    files = {
        "environment/Dockerfile": f"{DOCKERFILE}# {tmp_path}\n",
        "environment/tool": "#!/bin/sh\necho tool one\n",
        "evaluation/gold.txt": "gold",
        "solution/solve.sh": "solved",
        "data/big.bin": "big",
        ".dockerignore": "data\n!evaluation\n",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "environment" / "tool").chmod(0o755)
    return root


def made(cloud: Cloud) -> list[str]:
    """The names of the builds so far."""
    return list(cloud.builds.started)


def out_of(cloud: Cloud, directory: Path, script: str, **more: Any) -> str:
    """What a script says in a box."""
    said = []

    async def body(box: Box) -> None:
        done = await box.exec(["sh", "-c", script])
        assert done.ok, done.stderr
        said.append(done.stdout)

    with_box(cloud.plain_box(directory, **more), body)
    return said[0]


def test_recipe_is_built_and_used(
    cloud: Cloud, tmp_path: Path, task: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first attempt builds, with gold left out and the steps logged; the second one does not."""
    before = made(cloud)
    with caplog.at_level(logging.INFO, "pytest_ageval.box"):
        said = out_of(
            cloud,
            tmp_path / "1",
            "/srv/tool; cat /srv/made; cd /srv/all; ls -A; ls -A environment",
            task_root=task,
        )
    assert said.split() == ["tool", "one", "made", ".dockerignore", "environment", "Dockerfile", "tool"]
    (name,) = made(cloud)[len(before) :]
    assert name.startswith("ageval-attempt")
    assert "is not there yet and is built now" in caplog.text
    assert "echo made" in caplog.text
    assert out_of(cloud, tmp_path / "2", "/srv/tool", task_root=task) == "tool one\n"
    assert made(cloud)[len(before) :] == [name]


def test_what_is_copied_names_it(cloud: Cloud, tmp_path: Path, task: Path) -> None:
    """A changed source of COPY builds anew, its first state again does not."""
    recipe = task / "environment" / "Dockerfile"
    recipe.write_text(f"FROM debian:12-slim\nCOPY environment/tool /srv/\n# {tmp_path}\n")
    before = made(cloud)
    for number, (text, mode) in enumerate([("one", 0o755), ("two", 0o755), ("one", 0o755), ("one", 0o644)]):
        (task / "environment" / "tool").write_text(text)
        (task / "environment" / "tool").chmod(mode)
        (task / "notes.txt").write_text(str(number))  # nobody copies it
        said = out_of(cloud, tmp_path / str(number), "cat /srv/tool; stat -c ' %a' /srv/tool", task_root=task)
        assert said == f"{text} {mode:o}\n"
    assert len(set(made(cloud)[len(before) :])) == len(made(cloud)[len(before) :]) == 3


def test_layers(cloud: Cloud, tmp_path: Path, task: Path) -> None:
    """Each has a context of its own, which COPY of the task does not see; only what changed is built."""
    for name in ("one", "two"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin" / "agent").write_text(f"{name} {tmp_path}")
    # An install of an agent has what no task's context has.
    (tmp_path / "one" / "node_modules" / "solution").mkdir(parents=True)
    (tmp_path / "one" / "node_modules" / "solution" / "main").write_text("")
    layers = (
        ImageLayer("one", dest="/srv/one", context=tmp_path / "one", key="1"),
        ImageLayer("two", "COPY bin/agent /srv/two\nRUN id -u > /srv/who", context=tmp_path / "two"),
        ImageLayer("three", "RUN echo three > /srv/three"),
    )
    before = made(cloud)
    script = (
        "[ -e /srv/one/node_modules/solution/main ] && cat /srv/one/bin/agent; echo; cat /srv/two; echo; "
    )
    script += "cat /srv/who /srv/three; ls /srv/all; id -u"
    said = out_of(cloud, tmp_path / "1", script, task_root=task, layers=layers)
    root = os.geteuid()
    # RUN of a layer is the superuser's; commands are those of whom the recipe leaves: E2B's own user.
    user = 1000 if cloud.kind == "e2b" and root == 0 else root
    texts = [f"one {tmp_path}", f"two {tmp_path}", root, "three", "environment", user]
    assert said.splitlines() == [str(text) for text in texts]
    count = len(made(cloud)) - len(before)
    assert count == (4 if cloud.kind == "e2b" else 1)
    # Its key stands for the content of the first, the bytes for that of the second.
    (tmp_path / "one" / "bin" / "agent").write_text("changed")
    out_of(cloud, tmp_path / "2", "true", task_root=task, layers=layers)
    assert len(made(cloud)) - len(before) == count
    (tmp_path / "two" / "bin" / "agent").write_text("changed")
    assert out_of(cloud, tmp_path / "3", "cat /srv/two", task_root=task, layers=layers) == "changed"
    assert len(made(cloud)) - len(before) == count + (2 if cloud.kind == "e2b" else 1)


def test_base_of_a_task_without_a_recipe(cloud: Cloud, tmp_path: Path) -> None:
    """With a layer there must be an image below it: our own base."""
    assert recipes.of_base().text.splitlines()[1] == "FROM debian:stable-slim"
    cloud_options = {"template_id": "base"} if cloud.kind == "e2b" else {"image": "debian:12-slim"}
    layer = ImageLayer("greet", f"RUN echo {tmp_path} > /srv/greet")
    said = out_of(cloud, tmp_path, "cat /srv/greet", options=cloud_options, layers=(layer,))
    assert said == f"{tmp_path}\n"


def test_snapshot_takes_no_layers(cloud: Cloud, tmp_path: Path) -> None:
    """Nothing can be put on a snapshot of Daytona: said of a directory, refused of instructions."""
    if cloud.kind == "e2b":
        pytest.skip("a template of E2B can begin with another one: see the test above")
    error = refusal(cloud.box(tmp_path / "1", layers=(ImageLayer("agent", "RUN true"),)))
    assert error.title == "environment_image_unresolved"
    assert "agent" in error.message
    box = cloud.box(tmp_path / "2", layers=(ImageLayer("install", dest="/srv/x", context=tmp_path),))

    async def body(box: Box) -> None:
        assert not (await box.exec(["test", "-e", "/srv/x"])).ok

    with_box(box, body)
    assert any("install" in warning for warning in box.warnings)  # type: ignore[attr-defined]


def test_build_fails(cloud: Cloud, tmp_path: Path, task: Path) -> None:
    """The vendor's words and the log are in the error; the mended recipe and a second try work."""
    recipe = task / "environment" / "Dockerfile"
    recipe.write_text(
        f"FROM debian:12-slim\nRUN echo so far so good; [ -e /srv/mended ] || exit 3\n# {tmp_path}\n"
    )

    def fails(number: int) -> None:
        box = cloud.plain_box(tmp_path / str(number), task_root=task)
        error = refusal(box)
        assert error.title == "environment_image_unresolved"
        assert "exit code 3" in error.message
        assert "so far so good" in (error.detail or "")

    before = made(cloud)
    fails(1)
    # E2B knows the name of a template that was never built: it is built again all the same.
    fails(2)
    assert len(made(cloud)) - len(before) == 2
    recipe.write_text(f"FROM debian:12-slim\nRUN touch /srv/mended\n# {tmp_path}\n")
    assert out_of(cloud, tmp_path / "3", "ls /srv", task_root=task) == "mended\n"


def test_build_turned_off(cloud: Cloud, tmp_path: Path, task: Path) -> None:
    """``build: false`` uses what is there and names what is missing, and the remedy."""
    before = made(cloud)
    box = cloud.plain_box(tmp_path / "1", options={"build": False}, task_root=task)
    error = refusal(box)
    assert error.title == "environment_image_unresolved"
    assert "leave build out" in error.message
    assert made(cloud) == before
    out_of(cloud, tmp_path / "2", "true", task_root=task)
    assert out_of(cloud, tmp_path / "3", "/srv/tool", options={"build": False}, task_root=task)


START = """
import asyncio, sys, pathlib
sys.path.insert(0, {support!r})
import pytest
from clouds import plain_store
from pytest_ageval.box import BoxSpec
from pytest_ageval.registry import Registry
kind, task, work = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
if kind == "daytona":
    plain_store(pytest.MonkeyPatch())
async def main():
    box = Registry().box(kind)(BoxSpec(kind=kind, attempt_id="a", task_id="t", work_dir=work, task_root=task))
    try:
        await box.start()
        print((await box.exec(["/srv/tool"])).stdout, flush=True)
    finally:
        await box.stop()
asyncio.run(main())
"""


def test_one_build_at_a_time(cloud: Cloud, tmp_path: Path, task: Path) -> None:
    """Of processes that need the same, one builds and the others wait. A killed builder is followed."""
    code = START.format(support=str(Path(jail.__file__).parent))
    before = made(cloud)
    cloud.builds.slow = 2.0

    def start(name: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", code, cloud.kind, str(task), str(tmp_path / name)]
        return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)

    try:
        killed = start("killed")
        deadline = time.monotonic() + 30
        while made(cloud) == before and time.monotonic() < deadline:
            time.sleep(0.05)
        killed.kill()
        killed.communicate()
        running = [start(str(number)) for number in range(3)]
        for process in running:
            out, _ = process.communicate(timeout=60)
            assert (process.returncode, out.split()) == (0, ["tool", "one"])
    finally:
        cloud.builds.slow = 0.0
    # E2B's builder does not say which build is on its way: what the killed one began is begun again.
    assert len(made(cloud)) - len(before) == (2 if cloud.kind == "e2b" else 1)


# -- recipes alone ---------------------------------------------------------------------------------


def test_sources_stay_in_their_context(tmp_path: Path) -> None:
    """What COPY names is taken from the context, whatever it names; other instructions are as they were."""
    text = """# syntax=docker/dockerfile:1
FROM debian:12 AS build
COPY /etc/passwd ../../etc/shadow /srv/
COPY --chmod=755 ["a b", "c", "/srv/"]
COPY --from=build /x /y
ADD https://example.org/x /srv/
ADD plain /srv/
COPY <<EOF /srv/here
COPY not this
EOF
RUN echo \\
  COPY neither this
"""
    assert recipes.under(text, "p").splitlines() == [
        "# syntax=docker/dockerfile:1",
        "FROM debian:12 AS build",
        "COPY p/etc/passwd p/etc/shadow /srv/",
        'COPY --chmod=755 ["p/a b", "p/c", "/srv/"]',
        "COPY --from=build /x /y",
        "ADD https://example.org/x /srv/",
        "COPY p/plain /srv/",
        "COPY <<EOF /srv/here",
        "COPY not this",
        "EOF",
        "RUN echo \\",
        "  COPY neither this",
    ]
    with pytest.raises(BoxError, match="ADD unpacks"):
        recipes.under("FROM x\nADD a.tar.gz /srv/\n", "p")
    with pytest.raises(BoxError, match="NONSENSE"):
        recipes.under("NONSENSE x\n", "p")


def test_base_in_a_recipe(tmp_path: Path) -> None:
    """No vendor knows our base by its name: its recipe takes its place, as a stage too."""
    (tmp_path / "environment").mkdir()
    recipe = tmp_path / "environment" / "Dockerfile"
    recipe.write_text("FROM ageval-attempt:base AS one\nRUN true\nFROM ageval-attempt:base\n")
    found = recipes.of_task(tmp_path)
    assert found is not None
    lines = found.text.splitlines()
    assert [line for line in lines if line.startswith("FROM")] == [
        "FROM debian:stable-slim AS one",
        "FROM debian:stable-slim",
    ]
    assert recipes.last_user("FROM x\nUSER a\nFROM y\n", "root") == "root"
    assert recipes.last_user("FROM x\nUSER a\n", "root") == "a"
