"""Image layers of a plugin and of an agent: built once, rebuilt when they change, never per attempt."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.docker_engine import BASE, needs_docker

pytestmark = [pytest.mark.docker, needs_docker]

SUPPORT = Path(__file__).parents[1] / "support"

CONFTEST = """
from pathlib import Path
from pytest_ageval.box import ImageLayer

HERE = Path(__file__).parent

def pytest_ageval_image_layers(attempt):
    return [LAYER]
"""
WITH_DEST = 'ImageLayer("kit", context=HERE / "kit", dest="/opt/kit")'
WITH_RECIPE = (
    'ImageLayer("kit", "COPY . /opt/kit\\nRUN test ! -w /etc/shadow || echo root > /opt/as", HERE / "kit")'
)

# An agent that speaks the protocol, started from the layer.
PROFILES = """
format: ageval.profiles/1
environment: docker
agent_profiles:
  solver:
    executor: acp
    options: {command: [python3, /opt/kit/raw_agent.py, hello]}
"""
RUN = """
async def run(ctx):
    reply = await ctx.agent.session("solver").invoke("work")
    ctx.publish_json("reply", reply["text"])
"""
EVALUATOR = """
import json, pathlib
async def evaluate(inputs):
    look = "cat /opt/kit/word; touch /opt/kit/new"
    done = await inputs["scoring"].exec("main", ["sh", "-c", look])
    said = json.loads(pathlib.Path(inputs["artifacts"]["reply"]).read_text())
    passed = said == "hello, 4" and done.exit_code != 0
    return {"status": "PASS" if passed else "FAIL", "checks": [
        {"id": "word", "passed": passed, "evidence": done.stdout + said}]}
"""


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    root = tmp_path / "d"
    texts = {
        "ageval.yaml": 'format: ageval.dataset/1\ndataset_id: x/y\nversion: "1"\ntasks: {root: tasks}\n',
        "profiles.yaml": PROFILES,
        "tasks/t/task.yaml": "format: ageval.task/1\ntask_id: t\ndescription: d\n"
        "agent_profiles: [{id: solver}]\nartifacts: {publishable: [{id: reply, path: reply.json}]}\n",
        "tasks/t/run.py": RUN,
        "tasks/t/evaluator.py": EVALUATOR,
        "kit/word": f"one {tmp_path}\n",
    }
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for script in (SUPPORT / "acp_agents").glob("*.py"):
        (root / "kit" / script.name).write_bytes(script.read_bytes())
    return root


@pytest.fixture
def built() -> Iterator[list[str]]:
    """Images to remove."""
    found: list[str] = []
    yield found
    if found:
        subprocess.run(["docker", "rmi", "-f", *found], capture_output=True)


def run(root: Path, box: str, *arguments: str) -> tuple[list[str], list[str]]:
    """The images that the run built, and what each attempt's evaluator found."""
    evidence = root.parent / f"evidence-{len(list(root.parent.iterdir()))}"
    words = [sys.executable, "-m", "pytest", str(root), "-p", "copying_box", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*words, "--box", box, "--ageval-dir", str(evidence), *arguments],
        cwd=root.parent,
        env={**os.environ, "PYTHONPATH": str(SUPPORT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said, run_ids = [], set()
    for attempt in (evidence / "runs").iterdir():
        verdict = json.loads((attempt / "evaluation" / "private" / "verdict.json").read_text())
        said.append(verdict["checks"][0]["evidence"])
        rows = [json.loads(line) for line in (attempt / "activity.jsonl").read_text().splitlines()]
        run_ids |= {row["payload"]["run_id"] for row in rows if row["kind"] == "attempt"}
    (run_id,) = run_ids
    query = ["docker", "images", "-q", "--no-trunc", "--filter", f"label=ageval.run={run_id}"]
    images = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()
    return images, said


@pytest.mark.parametrize(
    ("box", "layer"), [("docker", WITH_RECIPE), ("copying", WITH_DEST)], ids=["recipe", "copied"]
)
def test_a_layer_of_a_conftest_is_built_once(dataset: Path, built: list[str], box: str, layer: str) -> None:
    (dataset / "conftest.py").write_text(CONFTEST.replace("LAYER", layer))
    word = (dataset / "kit" / "word").read_text()

    images, said = run(dataset, box, "--attempts", "2")
    built += images
    assert said == [f"{word}hello, 4"] * 2
    assert len(images) == 1

    (dataset / "kit" / "word").write_text(f"two {dataset}\n")
    changed, said = run(dataset, box, "--attempts", "2")
    built += changed
    assert said == [f"two {dataset}\nhello, 4"] * 2
    assert len(changed) == 1


def test_a_plugin_in_a_directory_brings_a_layer(dataset: Path, built: list[str]) -> None:
    """Its Dockerfile begins as those of the format do; its directory is what COPY sees."""
    plugin = dataset.parent / "plugin"
    (dataset / "kit").rename(plugin)
    (plugin / "src" / "kitten").mkdir(parents=True)
    (plugin / "src" / "kitten" / "__init__.py").write_text(
        "async def same(ctx, value, inner):\n    return value\n"
    )
    (plugin / "Dockerfile.kit").write_text("ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nCOPY . /opt/kit\n")
    (plugin / "plugin.yaml").write_text(
        "format: ageval.plugin/1\nplugin_id: kit\nversion: 0.1.0\ndescription: d\n"
        "slots: {chain: [{id: before_agent_invoke, entry: 'kitten:same'}]}\n"
        "config: {image_layers: Dockerfile.kit}\n"
    )
    (dataset / "profiles.yaml").write_text(f"{PROFILES}    extensions: [{{plugin: kit}}]\n")
    images, said = run(dataset, "docker", "--ageval-plugins", str(plugin))
    built += images
    assert said == [f"{(plugin / 'word').read_text()}hello, 4"]
    assert len(images) == 1


def test_where_files_are_shared_a_directory_is_shown_and_nothing_is_built(dataset: Path) -> None:
    (dataset / "conftest.py").write_text(CONFTEST.replace("LAYER", WITH_DEST))
    images, said = run(dataset, "docker")
    assert (images, said) == ([], [f"{(dataset / 'kit' / 'word').read_text()}hello, 4"])


JUDGING = """
async def evaluate(inputs):
    reply = await inputs["agent"].session("judge").invoke("well done?")
    passed = reply["text"] == "hello, 10"
    return {"status": "PASS" if passed else "FAIL", "checks": [
        {"id": "word", "passed": passed, "evidence": reply["text"]}]}
"""


def test_a_judge_finds_its_agent_in_the_scoring_box(dataset: Path, built: list[str]) -> None:
    """The box is made from another image, on which the layers lie as well."""
    # Only the kind docker has scoring boxes.
    copies = "from ageval_boxes.docker_box import DockerBox\nfrom copying_box import choose_user_and_copy\n"
    copies += "DockerBox._choose_user = choose_user_and_copy\n"
    (dataset / "conftest.py").write_text(copies + CONFTEST.replace("LAYER", WITH_DEST))
    profiles = PROFILES.replace("  solver:", "  solver: {executor: nop}\n  judge:")
    (dataset / "profiles.yaml").write_text(f"{profiles}evaluate_host: {{isolated: true}}\n")
    task = dataset / "tasks" / "t"
    text = (task / "task.yaml").read_text().replace("{id: solver}]", "{id: solver}, {id: judge}]")
    (task / "task.yaml").write_text(text)
    (task / "evaluator.py").write_text(JUDGING)
    (task / "environment").mkdir()
    (task / "environment" / "evaluate.Dockerfile").write_text(f"FROM {BASE}\nRUN echo {dataset} > /judge\n")
    images, said = run(dataset, "docker")
    built += images
    assert said == ["hello, 10"]
    assert len(images) == 3  # the judge's own, and the layer on either


def test_a_layer_that_fails_says_which(dataset: Path) -> None:
    layer = 'ImageLayer("kit", "RUN echo first; exit 3")'
    (dataset / "conftest.py").write_text(CONFTEST.replace("LAYER", layer))
    with pytest.raises(
        AssertionError, match="environment_image_unresolved: the image layer kit: building"
    ) as no:
        run(dataset, "docker")
    assert "returned a non-zero code: 3" in str(no.value)


def test_a_kind_that_makes_no_images_is_not_asked(dataset: Path) -> None:
    asked = "from pathlib import Path\ndef pytest_ageval_image_layers(attempt):\n    Path('asked').touch()\n"
    (dataset / "conftest.py").write_text(asked)
    with pytest.raises(AssertionError):
        run(dataset, "local")  # there is no agent at /opt/kit
    assert not (dataset.parent / "asked").exists()
