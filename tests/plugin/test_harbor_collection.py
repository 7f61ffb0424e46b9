"""Harbor tasks as items: nested folders, a manifest above them, names, variables that are missing."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest


@pytest.fixture
def tasks(pytester: pytest.Pytester) -> Path:
    """Two tasks in folders of a data set that has a manifest."""
    root = pytester.path / "set"
    for path, name in (("easy/one", "acme/first"), ("hard/deep/two", "acme/second")):
        task = root / path
        for file, text in (
            ("task.toml", f'[task]\nname = "{name}"\nkeywords = ["{name[5:]}"]\n'),
            ("instruction.md", "Do it.\n"),
            ("environment/Dockerfile", "FROM ageval-attempt:base\n"),
            ("tests/test.sh", "echo 1 > /logs/verifier/reward.txt\n"),
            ("tests/test_inner.py", "def test_of_the_task(): pass\n"),
        ):
            (task / file).parent.mkdir(parents=True, exist_ok=True)
            (task / file).write_text(text)
    (root / "dataset.toml").write_text(
        '[dataset]\nname = "acme/Tasks"\nversion = "3"\n[[tasks]]\nname = "acme/first"\ndigest = "sha256:0"\n'
    )
    return root


def test_nested_folders_and_a_manifest(pytester: pytest.Pytester, tasks: Path) -> None:
    found = pytester.runpytest("--collect-only", "-q", "set", "--agent=nop")
    found.stdout.fnmatch_lines(["*easy/one*::one*", "*hard/deep/two*::two*"])
    assert not found.stdout.str().count("test_of_the_task")
    one = pytester.runpytest("--collect-only", "-q", "set/hard", "--agent=nop", "-m", "second")
    one.assert_outcomes()
    one.stdout.fnmatch_lines(["*two*"])
    assert "one" not in one.stdout.str().partition("collected")[0]


def test_name_and_data_set_are_properties(
    pytester: pytest.Pytester, tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    pytester.runpytest("set", "--agent=nop", "--junitxml=out.xml")
    found = {}
    for case in ET.parse(pytester.path / "out.xml").iter("testcase"):
        rows = {row.get("name"): row.get("value") for row in case.iter("property")}
        found[rows["ageval.task"]] = (rows["ageval.task_name"], rows["ageval.dataset"], rows["ageval.status"])
    assert found == {
        "one": ("acme/first", "acme/tasks", "ERROR"),
        "two": ("acme/second", "acme/tasks", "ERROR"),
    }


def test_all_missing_variables_are_told_at_once(
    pytester: pytest.Pytester, tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    file = tasks / "easy" / "one" / "task.toml"
    file.write_text(
        file.read_text() + '[environment.env]\nA = "${ONE_VARIABLE}"\nB = "${SET:-by default}"\n'
        '[verifier.env]\nKEY = "${TWO_VARIABLE}"\nURL = "${ONE_VARIABLE}"\n'
        '[solution.env]\nS = "${THREE_VARIABLE}"\n'
    )
    rows = '{T: "${FOUR_VARIABLE?needed}", U: "$$A ${CPUS} ${X:-1}"}'
    compose = f"services: {{side: {{image: x, environment: {rows}}}}}\n"
    (file.parent / "environment" / "docker-compose.yaml").write_text(compose)
    told = "ONE_VARIABLE (environment.env.A, verifier.env.URL); TWO_VARIABLE (verifier.env.KEY); "
    nop = pytester.runpytest("set/easy", "--agent=nop")
    nop.assert_outcomes(errors=1)
    nop.stdout.fnmatch_lines([f"*unset_variable*{told}FOUR_VARIABLE (the compose file)*"])
    oracle = pytester.runpytest("set/easy", "--agent=oracle")
    oracle.stdout.fnmatch_lines(
        [f"*{told}THREE_VARIABLE (solution.env.S); FOUR_VARIABLE (the compose file)*"]
    )
    (pytester.path / ".env").write_text("".join(f"{name}_VARIABLE=1\n" for name in ("ONE", "TWO", "FOUR")))
    settled = pytester.runpytest("set/easy", "--agent=nop")
    assert "unset_variable" not in settled.stdout.str()
