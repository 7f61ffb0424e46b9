"""``--matrix``: combinations, rows that are added or left out, ids, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from config_helpers import DataSet

from pytest_ageval.config import JobOptions, load_dataset, load_task, plan_variants
from pytest_ageval.config.variant_check import check_cells
from pytest_ageval.errors import ConfigError

HEAD = "format: ageval.matrix/1\n"


def ids(*matrix: str, **options: Any) -> list[str]:
    return [variant.id for variant in plan_variants(JobOptions(matrix=matrix, **options))]


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "matrix.yaml"
    path.write_text(HEAD + text)
    return str(path)


@pytest.mark.parametrize(
    ("matrix", "options", "expected"),
    [
        (["/parameters/seed=[1,2]"], {}, ["seed_1", "seed_2"]),
        (["/parameters/seed=[7]"], {"agents": ("codex",)}, ["codex"]),
        (
            ["/parameters/seed=[1,2]"],
            {"agents": ("codex", "pi"), "efforts": ("low",)},
            ["codex-seed_1", "codex-seed_2", "pi-seed_1", "pi-seed_2"],
        ),
        ([], {"agents": ("codex",), "efforts": ("low", "high")}, ["low", "high"]),
        (
            ['/effort=["low","high"]', '/agent=["codex","judge=pi","judge=nop"]'],
            {"attempts": 2},
            [
                f"{agent}-{effort}-{n}"
                for agent in ("pi", "nop")
                for effort in ("low", "high")
                for n in (1, 2)
            ],
        ),
        (["/parameters/t=[0.5,1,true,null]"], {}, ["t_0.5", "t_1", "t_true", "t_null"]),
        (["/parameters/a~1b/c=[1,2]"], {}, ["c_1", "c_2"]),
        (["/limits/wall_time_seconds=[10,20]"], {}, ["wall_time_seconds_10", "wall_time_seconds_20"]),
        (['/parameters/x=["a b","a-b"]'], {}, ["x_a-b", "x_a-b.2"]),
        (['/parameters/x=[1,"1"]'], {}, ["x_1", "x_1.2"]),
    ],
)
def test_ids(matrix: list[str], options: dict[str, Any], expected: list[str]) -> None:
    assert ids(*matrix, **options) == expected


def test_long_and_odd_values_still_have_short_unique_ids() -> None:
    values = ["é" * 99 + "1", "é " * 99 + "2", {"a": [1]}, {"a": [2]}, "\ud800"]
    found = ids(f"/parameters/prompt={json.dumps(values)}")
    assert len(set(found)) == 5
    assert all(re.fullmatch(r"[A-Za-z0-9._-]{1,60}", name) for name in found)


def test_a_file_with_rows_that_are_added_and_left_out(tmp_path: Path) -> None:
    """As GitHub Actions does it: leave out, then add to what a row fits, or make a cell of its own."""
    file = written(
        tmp_path,
        """
agent: [codex, pi]
effort: [low, high]
box: [local]
parameters: {seed: [1, 2]}
exclude:
  - {agent: pi, effort: high}
  - {agent: codex, effort: low, parameters: {seed: 2}}
include:
  - {agent: codex, model: gpt-x}
  - {agent: claude-code, effort: high, parameters: {seed: 9}}
""",
    )
    found = plan_variants(JobOptions(matrix=(file,)))
    rows = [(v.agent, v.effort, v.model, v.box, v.settings) for v in found]
    assert rows == [
        ("codex", "low", "gpt-x", "local", {"seed": 1}),
        ("codex", "high", "gpt-x", "local", {"seed": 1}),
        ("codex", "high", "gpt-x", "local", {"seed": 2}),
        ("pi", "low", None, "local", {"seed": 1}),
        ("pi", "low", None, "local", {"seed": 2}),
        ("claude-code", "high", None, None, {"seed": 9}),
    ]
    assert found[0].id == "codex-gpt-x-low-local-seed_1"
    assert found[-1].id == "claude-code-high-seed_9"
    file = written(tmp_path, "agent: [codex]\nmodel: [m]\ninclude: [{agent: oracle}]")
    found = plan_variants(JobOptions(matrix=(file,), boxes=("docker",)))
    assert [(v.agent, v.model, v.box) for v in found] == [
        ("codex", "m", "docker"),
        ("oracle", None, "docker"),
    ]


def test_a_file_and_options_span_one_matrix(tmp_path: Path) -> None:
    file = written(tmp_path, "parameters: {seed: [1, 2]}\nset: {/limits/agent_invocations: [1]}\n")
    found = plan_variants(JobOptions(matrix=(file, '/effort=["low"]'), agents=("codex", "pi")))
    assert [v.id for v in found] == ["codex-seed_1", "codex-seed_2", "pi-seed_1", "pi-seed_2"]
    assert found[0].settings == {"seed": 1, "limits.agent_invocations": 1}
    assert {v.effort for v in found} == {"low"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("agent: [codex, codex]", 'agent has "codex" twice'),
        ("parameters: {seed: [1, 1]}", "/parameters/seed has 1 twice"),
        ("parameters: {seed: []}", "seed"),
        ("effort: high", "/effort"),
        ("agnet: [codex]", "did you mean 'agent'"),
        ("agent: [codex]\nexclude: [{agent: pi}]", "/exclude/0 excludes nothing: no combination has"),
        ("agent: [codex]\nexclude: [{model: x}]", "/exclude/0 excludes nothing: model is no axis"),
        ("agent: [codex]\nexclude: [{agent: codex}]", "exclude leaves no combination"),
        ("agent: [codex]\ninclude: [{}]", "the row is empty"),
        ("set: {/task_id: [1]}", "cannot be set"),
        ("set: {limits: [1]}", "no pointer"),
        ("parameters: {a: [%s], b: [%s]}" % ((", ".join(map(str, range(101))),) * 2), "10201 combinations"),
    ],
)
def test_a_file_that_cannot_be_meant(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ids(written(tmp_path, text))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("matrix", "options", "words"),
    [
        ("/parameters/seed=1", {}, "takes FILE or POINTER=[VALUE, ...]"),
        ("/parameters/seed=[]", {}, "takes FILE or POINTER"),
        ("/parameters/seed=[NaN]", {}, "takes FILE or POINTER"),
        ("/agent=[1]", {}, "takes texts"),
        ("/evaluation/entrypoint=[1]", {}, "these may be set"),
        ("missing.yaml", {}, "there is no file missing.yaml"),
        ('/effort=["low"]', {"efforts": ("high",)}, "both give effort"),
        ('/agent=["pi"]', {"agents": ("codex",)}, "both give agent"),
        ('/agent=["a=pi"]', {"agents": ("a=codex",)}, "both give agent:a"),
        ("/parameters/seed=[1]", {"sets": ("/parameters/seed=2",)}, "both give /parameters/seed"),
    ],
)
def test_usage_errors(matrix: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ids(matrix, **options)
    assert words in str(caught.value)


PROFILES = "agent_profiles: {'*': {executor: parrot, model: {id: m}}}\nenvironment: room\n"


def test_a_cell_is_in_the_lock_with_its_source(ds: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARROT_KEY", "k")
    ds.task("agent_profiles: [{id: solver}]\nparameters: {seed: 0, deep: {er: 1}}\n")
    ds.profiles(PROFILES)
    locks = ds.locks(
        matrix=("/parameters/seed=[1,2]", '/effort=["low","high"]', "/parameters/deep/er=[5]"),
    )
    found = [(k.parameters["seed"], k.bindings["solver"].model.reasoning_effort) for k in locks]
    assert found == [(1, "low"), (2, "low"), (1, "high"), (2, "high")]
    assert {lock.parameters["deep"]["er"] for lock in locks} == {5}
    assert len({lock.digest for lock in locks}) == 4
    sources = {row.pointer: row.source for row in locks[0].resolution}
    assert sources["/parameters/seed"] == "cli"
    assert sources["/agent_profiles/solver/model/reasoning/effort"] == "cli"


def check(ds: DataSet, *matrix: str, **options: Any) -> None:
    job = JobOptions(matrix=matrix, **options)
    task = load_task(ds.root / "tasks" / "t")
    sample = (load_dataset(ds.root), task)
    check_cells(plan_variants(job), job, ds.registry, [sample], set(task.parameters))


def test_a_bad_cell_is_named(ds: DataSet) -> None:
    ds.task("agent_profiles: [{id: solver}]\nparameters: {seed: 0}\n")
    ds.profiles(PROFILES)
    check(ds, "/parameters/seed=[1,2]", '/effort=["low"]')
    with pytest.raises(ConfigError, match=r"no task declares a parameter 'sed'.*\n.*did you mean 'seed'"):
        check(ds, "/parameters/sed=[1,2]")
    with pytest.raises(ConfigError) as caught:
        check(ds, '/effort=["low"]', agents=("tenant", "oracle"))
    assert "in the cell 'tenant' of the matrix (agent tenant, effort low)" in str(caught.value)
    assert "has no reasoning effort" in str(caught.value)
    with pytest.raises(ConfigError, match="in the cell 'oracle-low'"):
        check(ds, efforts=("low", "high"), agents=("oracle", "nop"))
    check(ds, agents=("oracle",), efforts=("low",))  # no matrix: each task says it
