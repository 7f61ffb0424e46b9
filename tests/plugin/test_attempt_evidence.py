"""Gold, artifacts, and what is left of an attempt."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from textwrap import dedent

from pytest_ageval.testing.scripted_model import ScriptedModel, Text
from pytest_ageval.worker import view

from .attempt_kit import ASK, JUDGE, ONE, PROFILES, ROLES, facts, only

# -- gold and artifacts ----------------------------------------------------------------------------

LOOK = """
import subprocess
def run(ctx):
    found = subprocess.run(["find", "/", "-name", "expected-7f3a.json", "-not", "-path", "/proc/*"],
                           capture_output=True, text=True).stdout
    ctx.publish_json("reply", {"text": found})
"""


def test_gold_is_not_in_the_box_before_the_agent_has_stopped(demo):
    demo.pytester.makeconftest(
        """
        def look(attempt):
            done = attempt.box.exec(["sh", "-c", "ls /attempt; find / -name expected-7f3a.json 2>/dev/null"])
            attempt.fact("looked", {"text": done.stdout})

        def pytest_ageval_after_environment(attempt): look(attempt)
        def pytest_ageval_before_evaluate(attempt): look(attempt)
        """
    )
    task = demo.task("t")
    (task / "evaluation").mkdir()
    (task / "evaluation" / "expected-7f3a.json").write_text("{}")
    (task / "solution").mkdir()
    (task / "solution" / "expected-7f3a.json").write_text("{}")
    demo.pytest("datasets", "--box", "local", "--box-option", "isolation=bwrap").assert_outcomes(passed=1)
    before, after = (row["text"] for row in facts(demo)["looked"])
    assert "expected-7f3a" not in before + after
    assert "evaluation" not in before + after


def test_a_link_to_the_gold_is_not_followed(demo):
    task = demo.task(
        "t",
        evaluator="""
            import pathlib
            def evaluate(inputs):
                gold = pathlib.Path(inputs["evaluation_dir"], "gold.txt").read_text()
                places = [pathlib.Path(inputs["workspace_dir"], "answer.txt"),
                          pathlib.Path(inputs["artifacts"].get("answer", "/nowhere"))]
                same = any(p.is_file() and p.read_text() == gold for p in places)
                return {"status": "PASS" if same else "FAIL"}
        """,
        run="""
            import os, pathlib
            def run(ctx):
                gold = pathlib.Path(ctx.task_root, "evaluation", "gold.txt")
                os.symlink(gold, ctx.workspace_root / "answer.txt")
        """,
        more="artifacts: {publishable: [{id: answer, path: answer.txt}]}\n",
    )
    (task / "evaluation").mkdir()
    (task / "evaluation" / "gold.txt").write_text("secret answer")
    demo.pytest("datasets").assert_outcomes(failed=1)
    assert "links_to_hidden_files" in only(demo)["flags"]


def test_an_evaluator_cannot_change_the_data_set(demo):
    task = demo.task(
        "t",
        evaluator="""
            import pathlib
            def evaluate(inputs):
                gold = pathlib.Path(inputs["evaluation_dir"], "gold.txt")
                gold.chmod(0o644)
                gold.write_text("changed")
                return {"status": "PASS"}
        """,
    )
    (task / "evaluation").mkdir()
    (task / "evaluation" / "gold.txt").write_text("original")
    demo.pytest("datasets").assert_outcomes(passed=1)
    assert (task / "evaluation" / "gold.txt").read_text() == "original"


def test_artifacts_are_harvested_by_the_rules(demo):
    run = """
        def run(ctx):
            ws = ctx.workspace_root
            (ws / "report.md").write_text("r")
            (ws / "out" / "deep").mkdir(parents=True)
            (ws / "out" / "deep" / "a.pyc").write_text("x")
            (ws / "out" / "b.txt").write_text("b")
            (ws / "bin").write_bytes(bytes(range(256)))
    """
    more = """
        artifacts:
          publishable:
            - {id: rep, path: nested/report.md}
            - {id: tree, path: workspace/out, kind: tree, exclude: ["*.pyc"]}
            - {id: raw, path: bin}
            - {id: gone, path: gone.txt}
    """
    demo.task("t", run=run, more=dedent(more))
    demo.pytest("datasets").assert_outcomes(passed=1)
    (attempt,) = demo.attempts()
    found = attempt / "task-artifacts"
    assert (found / "rep.md").read_text() == "r"
    assert sorted(p.name for p in (found / "tree").rglob("*")) == ["b.txt", "deep"]
    assert (found / "raw.json").read_bytes() == bytes(range(256))
    assert facts(demo)["artifacts_harvested"] == [
        {"missing": ["gone"], "pulled": ["rep", "tree", "raw"], "skipped": []}
    ]


def test_an_artifact_of_another_kind_counts_as_missing(demo):
    run = """
        def run(ctx):
            (ctx.workspace_root / "b.txt").mkdir()
            (ctx.workspace_root / "tree").write_text("a file")
    """
    more = "artifacts: {publishable: [{id: b, path: b.txt}, {id: tree, path: tree, kind: tree}]}\n"
    demo.task("t", run=run, more=more)
    demo.pytest("datasets").assert_outcomes(passed=1)
    assert facts(demo)["artifacts_harvested"][0]["missing"] == ["b", "tree"]
    assert list((demo.attempts()[0] / "task-artifacts").iterdir()) == []


def test_an_agent_cannot_turn_a_fail_into_an_error_with_a_huge_artifact(demo):
    run = """
        def run(ctx):
            with open(ctx.workspace_root / "huge.bin", "wb") as file:
                file.truncate(100 * 2**30)
    """
    evaluator = "def evaluate(inputs):\n    return {'status': 'FAIL', 'score': 0.0}\n"
    demo.task("t", evaluator, run, more="artifacts: {publishable: [{id: huge, path: huge.bin}]}\n")
    demo.pytest("datasets").assert_outcomes(failed=1)
    assert "artifact_too_large" in only(demo)["flags"]


def test_a_place_for_evidence_that_cannot_be_written_names_the_remedy(demo):
    demo.task("t")
    (demo.pytester.path / "file").write_text("")
    result = demo.pytest("datasets", "--ageval-dir", "file")
    result.stdout.fnmatch_lines(["evidence_unwritable: *choose another place with --ageval-dir*"])


def test_evaluation_collect_and_scoring_exec(demo):
    evaluator = """
        async def evaluate(inputs):
            command = "cat new.txt; cat $AGEVAL_EVALUATION/g; exit 3"
            done = await inputs["scoring"].exec("main", ["sh", "-c", command])
            passed = (done.exit_code, done.stdout) == (3, "collectedgold")
            return {"status": "PASS" if passed else "FAIL", "metrics": {"seen": done.stdout}}
    """
    more = """
        evaluation:
          collect:
            - {command: "printf collected > new.txt"}
            - {path: /attempt/workspace/new.txt}
    """
    task = demo.task("t", evaluator=evaluator, more=dedent(more))
    (task / "evaluation").mkdir()
    (task / "evaluation" / "g").write_text("gold")
    demo.pytest("datasets").assert_outcomes(passed=1)
    (attempt,) = demo.attempts()
    assert (attempt / "verifier-collect" / "entries" / "1" / "new.txt").read_text() == "collected"
    manifest = json.loads((attempt / "verifier-collect" / "manifest.json").read_text())
    assert [row["index"] for row in manifest["entries"]] == [1]


# -- the end ---------------------------------------------------------------------------------------


def test_nothing_is_left_behind(demo, scratch):
    demo.task("good")
    demo.task("bad", run="def run(ctx): 1 / 0\n")
    demo.pytest("datasets").assert_outcomes(passed=1, errors=1)
    assert [p for p in scratch.rglob("*") if p.is_file()] == []


def test_keep_workspace_leaves_the_box(demo, scratch):
    demo.task("t")
    demo.pytest("datasets", "--keep-workspace").assert_outcomes(passed=1)
    (kept,) = scratch.rglob("answer.txt")
    assert kept.read_text() == "42"
    assert only(demo)["workspace"] == str(kept.parent)


def test_what_the_cleanup_found_is_in_the_summary(demo):
    demo.pytester.makeconftest(
        """
        def pytest_ageval_cleanup_report(attempt, value):
            return [*value, {"name": "mine", "detail": {"seen": len(value)}}]
        """
    )
    demo.task("t")
    demo.pytest("datasets").assert_outcomes(passed=1)
    assert facts(demo)["environment_stopped"] == [{"deleted": True}]
    assert facts(demo)["mine"] == [{"seen": 1}]
    (attempt,) = demo.attempts()
    timing = json.loads((attempt / "summary.json").read_text())["phase_timing"]
    assert [row["id"] for row in timing["phases"]][:4] == ["environment", "run", "evaluate", "record"]


def test_the_lock_is_in_the_evidence_and_its_digest_in_the_result(demo):
    demo.task("t")
    demo.pytest("datasets")
    (attempt,) = demo.attempts()
    lock = json.loads((attempt / "lock.json").read_text())
    assert lock["digest"] == only(demo)["digest"]
    assert lock["locked"]["limits"]["wall_time_seconds"] == 300


def test_human_notes_do_not_change_the_digest_and_all_else_does(demo):
    task = demo.task("t", more="description: one")
    digests = []

    def run():
        demo.pytest("datasets")
        digests.append(demo.results()[-1]["digest"] if len(demo.attempts()) == 1 else None)
        for attempt in demo.attempts():
            shutil.rmtree(attempt)

    file = task / "task.yaml"
    run()
    file.write_text(file.read_text().replace("description: one", "# a comment\ndescription: two"))
    run()
    file.write_text(file.read_text() + "\nlimits: {wall_time_seconds: 299}\n")
    run()
    (task / "evaluator.py").write_text((task / "evaluator.py").read_text() + "# changed\n")
    run()
    assert None not in digests
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_the_steps_are_logged_before_their_effect(demo, key):
    with ScriptedModel([Text("42")]) as model:
        demo.profiles(PROFILES.format(url=model.base_url, stall=0))
        demo.task("t", run=ASK, evaluator=JUDGE, roles=(ROLES,), more=ONE)
        demo.pytest("datasets").assert_outcomes(passed=1)
    (attempt,) = demo.attempts()
    rows = [json.loads(line) for line in (attempt / "activity.jsonl").read_bytes().split(b"\n")[:-1]]
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    steps = [(row["kind"], row["status"]) for row in rows]
    assert steps[:2] == [("attempt", "completed"), ("phase", "in_flight")]
    order = [
        ("attempt", "completed"),
        ("attempt", "completed"),  # once more, with the handle of the box
        ("session", "completed"),
        ("invoke", "in_flight"),
        ("model_turn", "in_flight"),
        ("model_turn", "completed"),
        ("invoke", "completed"),
    ]
    assert [step for step in steps if step[0] in {"attempt", "session", "invoke", "model_turn"}] == order
    handles = [row["payload"]["environment_handle"] for row in rows if row["kind"] == "attempt"]
    assert handles[0] is None
    assert handles[1]["kind"] == "local"


def test_every_process_runs_without_the_callers_environment(demo, monkeypatch):
    monkeypatch.setenv("CALLERS_SECRET", "must-not-travel")
    demo.task(
        "t",
        run="import os\ndef run(ctx):\n    ctx.publish_json('env', dict(os.environ))\n",
        more="artifacts: {publishable: [{id: env, path: env.json}]}\n",
    )
    demo.pytest("datasets").assert_outcomes(passed=1)
    seen = json.loads((demo.attempts()[0] / "task-artifacts" / "env.json").read_text())
    assert "CALLERS_SECRET" not in seen
    assert set(seen) <= {"PATH", "LANG", *(name for name in seen if name.startswith("AGEVAL_"))}
    assert Path(seen["AGEVAL_WORKSPACE"]).name == "workspace"
    assert os.environ["CALLERS_SECRET"] not in json.dumps(seen)


PRIES = """
def run(ctx):
    gold = ctx.task_root / "evaluation" / "gold.txt"
    ctx.publish_json("reply", {"text": "42" if gold.exists() else ""})
"""
MISSING = """
import json, pathlib
def evaluate(inputs):
    reply = json.loads(pathlib.Path(inputs["artifacts"]["reply"]).read_text())
    gold = pathlib.Path(inputs["evaluation_dir"], "gold.txt").read_text()
    return {"status": "PASS" if reply["text"] == gold else "FAIL"}
"""


def test_task_scripts_are_contained_unless_they_are_trusted(demo):
    task = demo.task("t", evaluator=MISSING, run=PRIES, more=ONE)
    (task / "evaluation").mkdir()
    (task / "evaluation" / "gold.txt").write_text("42")
    if view.unusable() is None:
        found = demo.pytest("datasets")
        found.assert_outcomes(failed=1)
        found.stdout.fnmatch_lines(["ageval: *; task scripts contained; run *"])
        assert "task_script_not_contained" not in facts(demo)
        shutil.rmtree(demo.root / ".ageval")
    found = demo.pytest("datasets", "--trust-tasks")
    found.assert_outcomes(passed=1)
    found.stdout.fnmatch_lines(["ageval: *; task scripts not contained (--trust-tasks); run *"])
    assert facts(demo)["task_script_not_contained"] == [{"reason": "trust_tasks"}] * 2


STARTED = """
import gc
def evaluate(inputs):
    return {"status": "PASS", "metrics": {"shared": int(gc.get_freeze_count() > 0)}}
"""


def test_task_scripts_are_forked_or_spawned(demo):
    """Objects that do not change are shared with the warm process by forked scripts alone."""
    demo.task("t", evaluator=STARTED)
    for arguments, shared in (((), 1), (("--ageval-script-start=spawn",), 0)):
        demo.pytest("datasets", *arguments).assert_outcomes(passed=1)
        (result,) = demo.results()
        assert result["metrics"]["shared"] == shared
        assert "task_script_not_forked" not in facts(demo)
        shutil.rmtree(demo.root / ".ageval")


def test_scripts_that_cannot_be_forked_are_spawned(demo):
    demo.pytester.makeconftest(
        """
        from pytest_ageval.worker import client
        broken = "assert found[-1] == 'spawn', 'no warm start here'"
        client._BOOT = client._BOOT.replace("main(*", f"{broken}\\nmain(*")
        """
    )
    demo.task("t", evaluator=STARTED)
    demo.pytest("datasets").assert_outcomes(passed=1)
    (result,) = demo.results()
    assert result["metrics"]["shared"] == 0
    told = facts(demo)["task_script_not_forked"]
    assert len(told) == 2
    assert all("no warm start here" in row["reason"] for row in told)
