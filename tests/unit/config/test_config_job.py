"""The options of a run and the matrix that they span."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pytest_ageval.config import JobOptions, check_roles, plan_variants
from pytest_ageval.errors import ConfigError


def ids(**options: Any) -> list[str]:
    return [variant.id for variant in plan_variants(JobOptions(**options))]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["default"]),
        ({"boxes": ("local",)}, ["local"]),
        ({"agents": ("codex",)}, ["codex"]),
        ({"agents": ("codex",), "models": ("m",), "boxes": ("docker",)}, ["codex"]),
        ({"agents": ("codex", "pi")}, ["codex", "pi"]),
        ({"agents": ("codex",), "attempts": 2}, ["codex-1", "codex-2"]),
        ({"attempts": 2}, ["default-1", "default-2"]),
        ({"models": ("gpt-5", "zai/glm-5")}, ["gpt-5", "zai-glm-5"]),
        (
            {"agents": ("codex", "pi"), "boxes": ("local", "docker"), "attempts": 2},
            [
                "codex-local-1",
                "codex-local-2",
                "codex-docker-1",
                "codex-docker-2",
                "pi-local-1",
                "pi-local-2",
                "pi-docker-1",
                "pi-docker-2",
            ],
        ),
        ({"agents": ("solver=codex", "solver=pi", "judge=nop")}, ["codex", "pi"]),
        ({"agents": ("./agents/mine", "../mine/agent.yaml")}, ["mine", "mine.2"]),
        ({"agents": ("codex@1.0",)}, ["codex-1.0"]),
        ({"models": ("a/b", "a-b", "a b")}, ["a-b", "a-b.2", "a-b.3"]),
    ],
)
def test_ids_hold_what_varies(options: dict[str, Any], expected: list[str]) -> None:
    assert ids(**options) == expected


def test_ids_are_unique_and_safe() -> None:
    found = ids(models=tuple(f"m{'/' * i}x{'é' * 200}{i}" for i in range(5)), attempts=3)
    assert len(set(found)) == 15
    assert all(re.fullmatch(r"[A-Za-z0-9._-]{1,120}", name) for name in found)


def test_roles() -> None:
    (variant,) = plan_variants(JobOptions(agents=("judge=nop", "codex")))
    assert variant.agent_for("judge") == "nop"
    assert variant.agent_for("anyone") == "codex"
    (variant,) = plan_variants(JobOptions(agents=("judge=nop",)))
    assert variant.agent_for("anyone") is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"agents": ("codex", "codex")}, "--agent codex is given twice"),
        ({"agents": ("a=codex", "a=codex")}, "--agent a=codex is given twice"),
        ({"agents": ("a=",)}, "--agent takes NAME or ROLE=NAME"),
        ({"models": ("m", "m")}, "--model m is given twice"),
        ({"boxes": ("local", "local")}, "--box local is given twice"),
        ({"attempts": 0}, "--attempts must be at least 1"),
        ({"box_options": ("image",)}, "--box-option takes NAME=VALUE"),
        ({"box_options": ("a=1", "a=2")}, "--box-option :a is given twice"),
        ({"base_url": "https://user:hunter2@host/v1"}, "must not hold a user name or a password"),
        ({"base_url": "ftp://host"}, "http(s) URL"),
        ({"base_url": "${not a name}"}, "not a variable's name"),
        ({"sets": ("/parameters/x",)}, "POINTER=JSON"),
        ({"sets": ("parameters/x=1",)}, "POINTER=JSON"),
        ({"sets": ("/parameters/x=text",)}, "double quotes"),
        ({"sets": ("/parameters/x=NaN",)}, "must be JSON"),
        ({"sets": ("/parameters=1",)}, "these may be set"),
        ({"sets": ("/task_id=1",)}, "these may be set"),
        ({"sets": ("/limits/wall_time=1",)}, "did you mean 'wall_time_seconds'"),
        ({"sets": ("/evaluation/entrypoint=1",)}, "these may be set"),
        ({"sets": ("/agent_profiles/a/label=1",)}, "these may be set"),
        ({"sets": ("/agent_profiles/a/options/x/y=1",)}, "these may be set"),
        ({"sets": ("/limits/agent_invocations=1", "/limits/agent_invocations=1")}, "twice"),
    ],
)
def test_usage_errors(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_variants(JobOptions(**options))
    assert words in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_values_of_box_options_are_typed_as_yaml() -> None:
    job = JobOptions(box_options=("a=no", "b=2", "docker:c=true", "d=[x, 1]", "e=k=v", "f=010"))
    assert [option.value for option in job.parsed_box_options] == [
        "no", 2, True, ["x", 1], "k=v", "010",
    ]  # fmt: skip
    assert job.parsed_box_options[2].kind == "docker"


def test_the_command_line_wins_over_the_environment() -> None:
    job = JobOptions.gather(
        {"agents": ["pi"], "models": [], "efforts": None},
        {"AGEVAL_AGENT": "codex", "AGEVAL_MODEL": "a 'b c'", "AGEVAL_ATTEMPTS": "3"},
    )
    assert (job.agents, job.models, job.attempts) == (("pi",), ("a", "b c"), 3)
    assert [job.source(name) for name in ("agents", "models")] == ["cli", "env"]
    with pytest.raises(ConfigError, match="AGEVAL_ATTEMPTS"):
        JobOptions.gather({}, {"AGEVAL_ATTEMPTS": "many"})


def test_a_role_that_no_task_has_is_a_usage_error() -> None:
    check_roles(JobOptions(agents=("solver=pi",)), ["solver", "judge"])
    for options in (
        {"agents": ("solvr=pi",)},
        {"sets": ('/agent_profiles/solvr/executor="nop"',)},
    ):
        with pytest.raises(ConfigError, match="did you mean 'solver'"):
            check_roles(JobOptions(**options), ["solver", "judge"])
