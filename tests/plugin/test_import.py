"""Real jobs of Harbor 0.26.0 (its oracle and terminus-2 on tasks of ``datasets/harbor``) become attempts."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import atif
import harbor_shape
import pytest

from pytest_ageval import cli
from pytest_ageval.suite import read_suite, suites

JOBS = Path(__file__).parents[1] / "data" / "harbor-jobs"
SECRET = "sk-ant-api03-" + "Ab1_" * 24


class Place:
    """Jobs that a test may change, and the evidence that is made of them."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.jobs = root / "jobs"
        self.evidence = root / "evidence"
        shutil.copytree(JOBS, self.jobs)
        self._capsys = capsys

    def run(self, path: Path, *options: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        code = cli.main(["import", str(path), "--into", str(self.evidence), *options])
        found = self._capsys.readouterr()
        return code, found.out, found.err

    def trial(self, task: str) -> Path:
        (found,) = self.jobs.glob(f"*/{task}__*")
        return found

    def change(self, path: Path, change: Callable[[Any], None]) -> None:
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))

    def results(self) -> dict[str, dict[str, Any]]:
        """result.json and the directory of each attempt, by task."""
        found = {}
        for path in (self.evidence / "runs").glob("*/result.json"):
            result = json.loads(path.read_text())
            found[result["task_id"]] = {**result, "root": path.parent}
        return found


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Place:
    return Place(tmp_path, capsys)


def snapshot(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def facts(root: Path, name: str) -> list[Any]:
    rows = json.loads((root / "summary.json").read_text())["facts"]
    return [row["detail"] for row in rows if row["name"] == name]


def test_jobs_become_attempts_and_suite_runs(place: Place) -> None:
    code, out, err = place.run(place.jobs)
    assert (code, err) == (0, "")
    assert "4 of 4 trials of oracle imported (2 PASS, 1 FAIL, 1 ERROR)" in out
    assert "1 of 1 trials of terminus imported (1 PASS)" in out
    found = place.results()
    assert {name: (row["status"], row["score"]) for name, row in found.items()} == {
        "growing-list": ("PASS", 1.0),
        "key-value-service": ("PASS", 1.0),
        "no-reward": ("ERROR", None),
        "unsolved": ("FAIL", 0.0),
        "hello-file": ("PASS", 1.0),
    }
    error = found["no-reward"]["error"]
    assert (error["title"], error["phase"]) == ("RewardFileNotFoundError", "evaluate")
    asked = found["hello-file"]
    assert (asked["agent"], asked["model"], asked["kind"]) == ("terminus-2", "openai/scripted", "docker")
    usage = asked["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["cached_tokens"]) == (3000, 150, 600)
    assert asked["timing"].keys() == {"environment", "run", "evaluate"}
    assert asked["timing"]["run"] == 2565.0
    assert asked["flags"] == ["imported"]
    (told,) = facts(asked["root"], "imported")
    assert json.loads((asked["root"] / "lock.json").read_text())["eval_digest"] == ""
    assert (told["from"], told["job"], told["path"]) == ("harbor", "terminus", str(place.trial("hello-file")))

    records = {read_suite(root).header.note: read_suite(root) for root in suites(place.evidence)}
    oracle = records["imported from the Harbor job oracle"]
    assert oracle.header.dataset_id == "harbor"
    rows = {row.task_id: row for row in oracle.rows}
    assert rows.keys() == {"growing-list", "key-value-service", "no-reward", "unsolved"}
    assert rows["unsolved"].source == "imported"
    assert rows["unsolved"].of == json.loads((place.trial("unsolved") / "result.json").read_text())["id"]
    assert (place.evidence / str(rows["unsolved"].attempt_dir) / "result.json").is_file()
    assert rows["growing-list"].timing["evaluate"] > 0


def test_trajectory_and_its_way_back(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.run(place.jobs)
    root = place.results()["hello-file"]["root"]
    assert cli.main(["export", str(root), "--format", "atif"]) == 0
    document = atif.read(capsys.readouterr().out)
    given = json.loads((place.trial("hello-file") / "agent" / "trajectory.json").read_text())
    assert [step.source for step in document.steps] == [step["source"] for step in given["steps"]]
    assert [step.message for step in document.steps] == [step["message"] for step in given["steps"]]
    assert document.steps[1].tool_calls is not None
    assert document.steps[1].tool_calls[0].arguments == given["steps"][1]["tool_calls"][0]["arguments"]
    assert document.agent.name == "terminus-2"
    assert document.agent.version == "2.0.0"
    assert document.final_metrics is not None
    assert document.final_metrics.total_prompt_tokens == 3000


def test_nothing_is_lost(place: Place) -> None:
    """Each file of a trial is in the attempt: in its place, or as it was."""
    place.run(place.jobs)
    for task, row in place.results().items():
        trial, kept = place.trial(task), list(snapshot(row["root"]).values())
        for name, content in snapshot(trial).items():
            if not name.endswith("artifacts/manifest.json"):
                assert content in kept, f"{task}: {name}"
    served = place.results()["key-value-service"]["root"]
    assert json.loads((served / "task-artifacts/main/data/final.json").read_text())
    (entry,) = [
        row
        for row in json.loads((served / "task-artifacts/main/manifest.json").read_text())["entries"]
        if row["service"] == "store"
    ]
    assert (entry["source"], entry["destination"], entry["status"]) == (
        "/data/final.json", "data/final.json", "ok",
    )  # fmt: skip
    steps = place.results()["growing-list"]["root"]
    assert sorted(path.name for path in (steps / "task-artifacts").iterdir()) == ["first", "second"]
    reward = json.loads((steps / "evaluation" / "reward.json").read_text())["steps"]
    assert [(row["step_name"], row["rewards"]) for row in reward] == [
        ("first", {"reward": 1.0}), ("second", {"reward": 1.0}),
    ]  # fmt: skip


def test_a_second_import_changes_nothing(place: Place) -> None:
    place.run(place.jobs)
    before = snapshot(place.evidence)
    code, out, err = place.run(place.jobs)
    assert code == 0
    assert err.count("has been imported already; it stays as it is") == 5
    assert "0 of 4 trials of oracle imported;" in out
    assert snapshot(place.evidence) == before


def test_trials_that_came_later_are_added(place: Place) -> None:
    late = place.trial("unsolved")
    late.rename(place.jobs / "late")
    place.run(place.jobs / "oracle")
    (place.jobs / "late").rename(late)
    code, out, _ = place.run(place.jobs / "oracle")
    assert (code, out.split(";")[0]) == (0, "1 of 4 trials of oracle imported (1 FAIL)")
    (suite,) = suites(place.evidence)
    assert len(read_suite(suite).rows) == 4
    assert not read_suite(suite).history


def test_a_single_trial_is_part_of_its_job(place: Place) -> None:
    code, out, _ = place.run(place.trial("unsolved"))
    assert (code, out.split(";")[0]) == (0, "1 of 1 trials of oracle imported (1 FAIL)")
    place.run(place.jobs / "oracle")
    (suite,) = suites(place.evidence)
    assert len(read_suite(suite).rows) == 4


def test_what_a_killed_import_left_is_done_anew(place: Place) -> None:
    place.run(place.trial("unsolved"))
    root = place.results()["unsolved"]["root"]
    (root / "result.json").unlink()
    (root / "imported" / "half").write_text("x")
    shutil.rmtree(place.evidence / "suite-runs")
    code, out, _ = place.run(place.trial("unsolved"))
    assert (code, "1 of 1" in out) == (0, True)
    assert not (root / "imported" / "half").exists()
    assert (root / "result.json").is_file()


def test_threshold_and_names(place: Place) -> None:
    place.change(place.trial("unsolved") / "result.json", lambda d: d["verifier_result"].update(
        rewards={"style": 0.5, "tests": 0.8}
    ))  # fmt: skip
    options = ("--reward-key", "tests", "--pass-threshold", "0.8", "--dataset-id", "my/set")
    place.run(place.trial("unsolved"), *options)
    found = place.results()["unsolved"]
    assert (found["status"], found["score"], found["dataset_id"]) == ("PASS", 0.8, "my/set")
    assert found["metrics"] == {"style": 0.5, "tests": 0.8}
    code, _, err = place.run(place.trial("unsolved"), "--pass-threshold", "2")
    assert (code, "--pass-threshold takes a number above 0, at most 1, found 2" in err) == (2, True)


def test_the_task_is_found_where_it_is(place: Place, tmp_path: Path) -> None:
    tasks = tmp_path / "mine"
    (tasks / "unsolved").mkdir(parents=True)
    (tasks / "unsolved" / "task.toml").write_text("")
    place.run(place.trial("unsolved"), "--tasks", str(tasks))
    lock = json.loads((place.results()["unsolved"]["root"] / "lock.json").read_text())
    assert lock["imported"]["task_root"] == str(tasks / "unsolved")


def test_trials_without_a_result_and_broken_ones_are_named(place: Place) -> None:
    (place.trial("unsolved") / "result.json").unlink()
    (place.trial("no-reward") / "result.json").write_text('{"trial_name": "no')
    place.change(place.trial("growing-list") / "result.json", lambda d: d["agent_info"].update(name=3))
    code, out, err = place.run(place.jobs / "oracle")
    assert code == 2
    assert f"{place.trial('unsolved')} has no result.json: it did not end; it is left out" in err
    assert "invalid_trial: this is no JSON document" in err
    assert f"({place.trial('no-reward')}/result.json)" in err
    assert "invalid_trial: Expected `str`, got `int` - at `$.agent_info.name`" in err
    assert out.startswith("1 of 1 trials of oracle imported (1 PASS)")


def test_a_path_without_trials_is_refused(place: Place, tmp_path: Path) -> None:
    for path, words in (
        (tmp_path / "nothing", "is not a directory"),
        (place.trial("unsolved") / "verifier", "no trial"),
    ):
        code, _, err = place.run(path)
        assert (code, err.startswith("no_trial: ")) == (2, True)
        assert words in err
    assert not place.evidence.exists()


def test_a_trial_is_not_trusted(place: Place, tmp_path: Path) -> None:
    """Links that lead out, pipes, names of steps that climb, secrets."""
    (tmp_path / "host.txt").write_text("of the host")
    trial = place.trial("unsolved")
    (trial / "artifacts" / "out").symlink_to(tmp_path / "host.txt")
    (trial / "artifacts" / "in").symlink_to("manifest.json")
    (trial / "more").symlink_to(tmp_path)
    (trial / "agent" / "log.txt").write_text(f"key {SECRET}\n")
    (trial / "notes.txt").write_text(f"key {SECRET}\n")
    (trial / "verifier" / "test-stdout.txt").write_text(f"key {SECRET}\n")
    os.mkfifo(trial / "agent" / "pipe")
    code, _, _ = place.run(trial)
    assert code == 0
    root = place.results()["unsolved"]["root"]
    assert not any(SECRET.encode() in content for content in snapshot(place.evidence).values())
    assert not any(b"of the host" in content for content in snapshot(place.evidence).values())
    assert not [path for path in root.rglob("*") if path.is_symlink() and not path.exists()]
    (left,) = facts(root, "files_left_out")
    assert "agent/pipe" in left["files"]
    place.change(
        place.trial("growing-list") / "result.json",
        lambda d: d["step_results"][0].update(step_name="../../../climbed"),
    )
    code, _, err = place.run(place.trial("growing-list"))
    assert (code, "the name of a step is not one of a directory" in err) == (2, True)
    assert not list(tmp_path.rglob("climbed"))
    shutil.rmtree(place.trial("hello-file") / "agent")
    (place.trial("hello-file") / "agent").symlink_to(tmp_path)
    code, _, err = place.run(place.trial("hello-file"))
    assert (code, f"invalid_trial: this is a symbolic link ({place.trial('hello-file')}/agent)" in err) == (
        2,
        True,
    )


def test_a_trajectory_that_cannot_be_read_stops_nothing(place: Place) -> None:
    path = place.trial("hello-file") / "agent" / "trajectory.json"
    path.write_text('{"schema_version": "ATIF-v9", "steps": []}')
    code, _, _ = place.run(place.trial("hello-file"))
    assert code == 0
    found = place.results()["hello-file"]
    assert found["status"] == "PASS"
    assert facts(found["root"], "trajectory_not_read") == [
        {"why": "schema_version is 'ATIF-v9', not ATIF-v1"}
    ]
    (row,) = (found["root"] / "trajectory.jsonl").read_text().splitlines()
    assert json.loads(row)["type"] == "terminal"
    assert (found["root"] / "task-artifacts/main/agent-logs/trajectory.json").read_text() == path.read_text()


def test_subagents_are_sessions_of_their_own(place: Place) -> None:
    path = place.trial("hello-file") / "agent" / "trajectory.json"
    inner = {
        "schema_version": "ATIF-v1.8",
        "trajectory_id": "inner",
        "agent": {"name": "helper", "version": "1"},
        "steps": [{"step_id": 1, "source": "user", "message": "help"}],
    }
    place.change(path, lambda d: d.update(subagent_trajectories=[inner]))
    place.run(place.trial("hello-file"))
    found = place.results()["hello-file"]
    rows = [json.loads(line) for line in (found["root"] / "trajectory.jsonl").read_text().splitlines()]
    assert [row["content"] for row in rows if row["turn_index"] == 2 and row["type"] == "turn"] == ["help"]
    assert found["usage"]["prompt_tokens"] == 3000, "its tokens are part of the agent's"


def test_repeated_trials_are_numbered(place: Place) -> None:
    again = place.jobs / "oracle" / "unsolved__again00"
    shutil.copytree(place.trial("unsolved"), again)
    place.change(again / "result.json", lambda d: d.update(
        id="00000000-0000-4000-8000-000000000001", started_at="2099-01-01T00:00:00Z", trial_name=again.name
    ))  # fmt: skip
    place.run(place.jobs / "oracle")
    (suite,) = suites(place.evidence)
    found = read_suite(suite)
    assert found.header.n_attempts == 2
    assert sorted((row.attempt, row.slot) for row in found.rows if row.task_id == "unsolved") == [
        (1, "oracle/unsolved__raeKadg"),
        (2, "oracle/unsolved__again00"),
    ]


def test_imported_trials_are_exported_as_trials_again(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps have directories of their own; what Harbor said comes back."""
    place.run(place.jobs)
    again = tmp_path / "again"
    assert cli.main(["export", str(place.evidence), "--format", "harbor", "--out", str(again)]) == 0
    assert sum(harbor_shape.check_job(job) for job in again.iterdir()) == 5
    if "AGEVAL_HARBOR_PYTHON" in os.environ:
        assert harbor_shape.validate_with_harbor(again) == 5
    (steps,) = again.glob("*/growing-list__*")
    assert sorted(path.relative_to(steps).as_posix() for path in steps.rglob("reward.txt")) == [
        "steps/first/verifier/reward.txt",
        "steps/second/verifier/reward.txt",
    ]
    for task, row in place.results().items():
        given = json.loads((place.trial(task) / "result.json").read_text())
        (path,) = again.glob(f"*/{task}__*/result.json")
        found = json.loads(path.read_text())
        for name in ("id", "task_name", "source", "task_checksum", "verifier_result", "agent_info"):
            assert found[name] == given[name], (task, name)
        kinds = [
            info and info["exception_type"] for info in (found["exception_info"], given["exception_info"])
        ]
        assert kinds[0] == kinds[1]
        assert row["root"].name == f"attempt_{found['id'].replace('-', '')}"
    code, _, err = place.run(again)
    assert (code, err.count("has been imported already")) == (0, 5)
