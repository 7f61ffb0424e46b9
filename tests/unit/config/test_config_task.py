"""task.yaml: what is accepted and how a refusal reads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from config_helpers import DataSet

from pytest_ageval.config import Artifact, Collect, EvaluationInput, Limits, ScoringBox, load_task
from pytest_ageval.errors import ConfigError


def refusal(path: Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_task(path)
    return caught.value


def test_the_smallest_task_has_the_defaults(ds: DataSet) -> None:
    task = load_task(ds.task())
    assert task.limits == Limits(300, 600, 600, 1, 1)
    assert (task.roles, task.artifacts, task.parameters) == ((), (), {})
    assert task.evaluation.entrypoint == "evaluator:evaluate"
    assert task.references() == {
        "run_entrypoint": "run:run",
        "run_module_file": "run.py",
        "evaluation_entrypoint": "evaluator:evaluate",
        "evaluation_module_file": "evaluator.py",
    }


def test_a_full_task(ds: DataSet) -> None:
    ds.write("tasks/t/environment/evaluate/strict/Dockerfile", "FROM x\n")
    path = ds.task("""\
        description: Count the words.
        tags: [text, "1.10", no]
        parameters: {seed: 1, words: [no, 010, 1.5], nested: {on: true}}
        agent_profiles: [{id: solver}, {id: judge, description: reads}]
        requires: {environment: [exec, compose]}
        limits: {wall_time_seconds: 360.0, agent_invocations: 0}
        artifacts:
          publishable:
          - {id: out, path: ./out.json}
          - {id: site, path: site, kind: tree, exclude: ["*.map"]}
        evaluation:
          inputs: [{artifact: out, target: artifacts/out.json}, {package_path: evaluation/gold}]
          environments:
            strict: {dockerfile: environment/evaluate/strict/Dockerfile, context: environment}
          collect: [{command: ls, timeout_sec: 5}, {path: /var/log/x/, exclude: [a]}]
        provenance:
          kind: port
          upstream: {url: "https://example.org", commit: "0123456"}
        """)
    ds.write("tasks/t/environment/setup.sh", "")
    ds.write("tasks/t/data/seed.txt", "")
    task = load_task(path)
    assert task.tags == ("text", "1.10", "no")
    assert task.parameters == {"seed": 1, "words": ["no", "010", 1.5], "nested": {"on": True}}
    assert task.roles == ("solver", "judge")
    assert task.requires == {"exec", "compose"}
    assert (task.limits.wall_time_seconds, task.limits.agent_invocations) == (360, 0)
    assert task.artifacts == (
        Artifact("out", "out.json"),
        Artifact("site", "site", "tree", ("*.map",)),
    )
    assert task.evaluation.inputs == (
        EvaluationInput("out", None, "artifacts/out.json"),
        EvaluationInput(None, "evaluation/gold"),
    )
    assert task.evaluation.environments == {
        "strict": ScoringBox("environment/evaluate/strict/Dockerfile", None, "environment")
    }
    assert task.evaluation.collect == (
        Collect(command="ls", timeout_sec=5),
        Collect(path="/var/log/x", exclude=("a",)),
    )
    assert {"environment_setup", "seed_dir"} <= task.references().keys()


@pytest.mark.parametrize(
    ("more", "code", "pointer", "words"),
    [
        ("limits: {wall_time_second: 1}", "invalid_schema", "/limits/wall_time_second",
         "did you mean 'wall_time_seconds'"),
        ("limits: {tokens: 1}", "invalid_schema", "/limits/tokens", "known here: agent_concurrency"),
        *(
            (f"limits: {{wall_time_seconds: {value}}}", "invalid_schema",
             "/limits/wall_time_seconds", found)
            for value, found in (
                ("'360'", "found the text '360'"),
                ("1e3", "found the text '1e3'"),
                ("10:00", "found the text '10:00'"),
                ("true", "must be an integer; found true"),
                ("-1", "must be an integer >= 0; found the number -1"),
                ("1.5", "must be an integer; found the number 1.5"),
                (".inf", "found the text '.inf'"),
                ("null", "must be an integer; found nothing"),
                ("99999999999", "must be an integer <= 1000000000"),
            )
        ),
        ("limits: {agent_concurrency: 0}", "invalid_schema", "/limits/agent_concurrency", ">= 1"),
        ("limits: 5", "invalid_schema", "/limits", "limits must be a mapping; found the number 5"),
        ("desciption: x", "invalid_schema", "/desciption", "did you mean 'description'"),
        ("harness: x", "invalid_schema", "/harness", "run.py"),
        ("environment: docker", "invalid_schema", "/environment", "--box"),
        ("tags: [1.10]", "invalid_schema", "/tags/0", "put it in quotes"),
        ("description: 5", "invalid_schema", "/description", "description must be text"),
        ("parameters: [1]", "invalid_schema", "/parameters", "must be a mapping; found a list"),
        ("agent_profiles: [{id: a}, {id: a}]", "invalid_schema", "/agent_profiles/1/id", "twice"),
        ("agent_profiles: [{id: a, model: {id: m}}]", "invalid_schema", "/agent_profiles/0/model",
         "belongs in profiles.yaml"),
        ("agent_profiles: [{id: a b}]", "invalid_schema", "/agent_profiles/0/id", "matching"),
        ("parameters: {active_profile: solvr}\nagent_profiles: [{id: solver}]", "unknown_profile",
         "/parameters/active_profile", "did you mean 'solver'"),
        ("requires: {environment: [gpu]}", "unsupported_capability", "/requires/environment/0",
         "known: attach_stdio"),
        ("requires: {box: [exec]}", "invalid_schema", "/requires/box", "known here: environment"),
        ("artifacts: {publishable: [{id: a, path: x}, {id: a, path: y}]}", "invalid_schema",
         "/artifacts/publishable/1/id", "declared twice, in rows 0 and 1"),
        ("artifacts: {publishable: [{id: a, path: /etc/passwd}]}", "path_outside_package",
         "/artifacts/publishable/0/path", "'/etc/passwd'"),
        ("artifacts: {publishable: [{id: a, path: a/../../x}]}", "path_outside_package",
         "/artifacts/publishable/0/path", "stays inside"),
        ("artifacts: {publishable: [{id: a/b, path: x}]}", "invalid_schema",
         "/artifacts/publishable/0/id", "file name"),
        ("artifacts: {publishable: [{id: a, path: x, exclude: [y]}]}", "invalid_schema",
         "/artifacts/publishable/0/exclude", "kind: tree"),
        ("artifacts: {publishable: [{id: a, path: x, kind: dir}]}", "invalid_schema",
         "/artifacts/publishable/0/kind", "one of file, tree; found the text 'dir'"),
        ("evaluation: {inputs: [{artifact: zz}]}", "missing_reference",
         "/evaluation/inputs/0/artifact", "'zz' is not declared"),
        ("evaluation: {entrypoint: evaluate}", "invalid_schema", "/evaluation/entrypoint",
         "matching"),
        ("evaluation: {environments: {Big: {docker_image: x}}}", "invalid_schema",
         "/evaluation/environments/Big", "the name 'Big' must be text matching"),
        ("evaluation: {environments: {a: {docker_image: x}, b: {dockerfil: x}}}", "invalid_schema",
         "/evaluation/environments/b/dockerfil", "did you mean 'dockerfile'"),
        ("evaluation: {environments: {a: {}}}", "invalid_schema", "/evaluation/environments/a",
         "needs dockerfile or docker_image"),
        ("evaluation: {environments: {a: {dockerfile: environment/x}}}", "missing_reference",
         "/evaluation/environments/a/dockerfile", "not there"),
        ("evaluation: {environments: {a: {dockerfile: evaluation/x}}}", "invalid_schema",
         "/evaluation/environments/a/dockerfile", "must not lie under evaluation/"),
        ("evaluation: {collect: [{service: db}]}", "invalid_schema", "/evaluation/collect/0",
         "needs path or command"),
        ("evaluation: {collect: [{path: var/log}]}", "invalid_schema",
         "/evaluation/collect/0/path", "absolute"),
        ("evaluation: {collect: [{command: x, timeout_sec: 0}]}", "invalid_schema",
         "/evaluation/collect/0/timeout_sec", "> 0"),
        ("provenance: {kind: copy}", "invalid_schema", "/provenance/kind", "one of original, port"),
        ("provenance: {kind: port}", "invalid_schema", "/provenance", "upstream.url is required"),
    ],
)  # fmt: skip
def test_refused(more: str, code: str, pointer: str, words: str, ds: DataSet) -> None:
    error = refusal(ds.task(more + "\n"))
    assert words in str(error)
    assert (error.code, error.pointer) == (code, pointer)
    assert error.file == "tasks/t/task.yaml"
    assert error.line is not None
    assert error.line >= 3


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ("ageval.task/2", "must be 'ageval.task/1', found 'ageval.task/2'"),
        ("ageval.dataset/1", "wrong place"),
    ],
)
def test_another_format(other: str, words: str, ds: DataSet) -> None:
    path = ds.task()
    path.write_text(path.read_text().replace("ageval.task/1", other))
    error = refusal(path)
    assert (error.code, error.pointer, error.line) == ("invalid_format", "/format", 1)
    assert words in str(error)


@pytest.mark.parametrize("script", ["run.py", "evaluator.py"])
def test_a_missing_script(script: str, ds: DataSet) -> None:
    path = ds.task()
    load_task(path)  # also when task.yaml itself is known already
    (path.parent / script).unlink()
    error = refusal(path)
    assert error.code == "missing_reference"
    assert script in error.message


def test_an_entrypoint_elsewhere_must_be_there(ds: DataSet) -> None:
    path = ds.task("evaluation: {entrypoint: 'checks.grade:main'}\n")
    assert "checks/grade.py is missing" in refusal(path).message
    ds.write("tasks/t/checks/grade.py", "")
    assert load_task(path).references()["evaluation_module_file"] == "checks/grade.py"


@pytest.mark.parametrize(
    "written",
    ['"a\\0b"', '"a\\nb"', '"\\e[31mred"', '"a\\u202Eb"', '".."', '"a::b[c]"', "''", "'   '", "a/b"],
)
def test_ids_that_no_directory_may_have(written: str, ds: DataSet) -> None:
    path = ds.task()
    path.write_text(path.read_text().replace("task_id: t", f"task_id: {written}"))
    error = refusal(path)
    assert (error.code, error.pointer) == ("invalid_schema", "/task_id")
    assert "an id is the directory's name" in str(error)
    assert str(error).isprintable() or "\n" in str(error)
    assert "\x1b" not in str(error)


@pytest.mark.parametrize("name", ["010", "08", "1.10", "no", "2024-01-01", "with space", "x" * 255])
def test_ids_keep_their_text(name: str, ds: DataSet) -> None:
    path = ds.task(name=name)
    if name == "1.10":  # YAML has a number there, and says so
        assert "put it in quotes" in str(refusal(path))
        path.write_text(path.read_text().replace("1.10", "'1.10'"))
    assert load_task(path).task_id == name


def test_the_id_is_the_directory(ds: DataSet) -> None:
    path = ds.task(name="a")
    path.write_text(path.read_text().replace("task_id: a", "task_id: b"))
    assert refusal(path).code == "unknown_task"


def test_composed_and_decomposed_names_are_one_id(ds: DataSet) -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    path = ds.task(name=decomposed)
    assert load_task(path).task_id == composed
    ds.task(name=composed)
    error = refusal(ds.root / "tasks" / composed / "task.yaml")
    assert error.code == "duplicate_task"
    assert "\\xc3\\xa9" in error.message
    assert "e\\xcc\\x81" in error.message


def test_a_directory_name_that_is_not_text(ds: DataSet) -> None:
    path = ds.task()
    bad = Path(os.fsdecode(os.fsencode(path.parent.parent) + b"/\xff\xfe"))
    path.parent.rename(bad)
    error = refusal(bad / "task.yaml")
    assert error.code == "unknown_task"
    str(error).encode("utf-8")  # can be written into any report
    assert error.file == "tasks/\\xff\\xfe/task.yaml"


def test_a_task_is_parsed_again_only_when_its_file_changes(ds: DataSet) -> None:
    path = ds.task()
    first = load_task(path)
    assert load_task(path.parent) is first
    os.utime(path, ns=(1, 1))
    assert load_task(path) is not first


def test_what_other_readers_read_otherwise_is_noted(ds: DataSet) -> None:
    """A data set that was written for YAML 1.1 may mean a boolean by ``no``: `if "no":` is true."""
    path = ds.task("""\
        description: no
        tags: [no]
        parameters:
          strict: no
          quoted: "no"
          plain: nothing
          list: [1, 010, {deep: 1_000}]
        """)
    notes = load_task(path).notes
    assert [note.partition(" is the text")[0] for note in notes] == [
        "tasks/t/task.yaml:6: no",
        "tasks/t/task.yaml:9: 010",
        "tasks/t/task.yaml:9: 1_000",
    ]


def test_extra_files_are_no_concern(ds: DataSet) -> None:
    path = ds.task()
    for name in ("notes.txt", "conftest.py", "tests/test_x.py", "environment/repo/task.yaml"):
        ds.write(f"tasks/t/{name}", "not: [valid")
    assert load_task(path).task_id == "t"
