"""Evaluators and code under test that misbehave: one verdict or one ERROR each, in strict files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from plugin.conftest import DataSet

PASS = 'return {"status": "PASS", "score": 1.0}'
#: Name of the task to the body of its evaluate().
JUDGED = {
    "second-verdict-by-fork": (
        f"import os\n    if os.fork() == 0: {PASS}\n    os.wait()\n"
        '    return {"status": "FAIL", "score": 0.0}'
    ),
    "leaving-fork": (
        "import os, sys\n    if os.fork() == 0: sys.exit(0)\n    os.wait()\n"
        '    return {"status": "FAIL", "score": 0.0}'
    ),
    "verdict-at-exit": (
        'import atexit, os\n    atexit.register(lambda: (print(\'{"status": "PASS"}\'), os._exit(0)))\n'
        '    return {"status": "FAIL", "score": 0.0}'
    ),
    "printed-scores": (
        'print(\'{"status": "PASS", "score": 1}\\nscore: 1.0\')\n    return {"status": "FAIL", "score": 0.0}'
    ),
    "flood": (
        "import sys\n    for stream in (sys.stdout, sys.stderr) * 3: stream.write('x' * 5_000_000)"
        f"\n    {PASS}"
    ),
    "daemon": f'import subprocess\n    subprocess.Popen(["setsid", "sleep", "4242"])\n    {PASS}',
    "closed-streams": f"import sys\n    sys.stdout.close(); sys.stderr.close()\n    {PASS}",
    "workspace-removed": (
        f'import shutil\n    shutil.rmtree(inputs["workspace_dir"], ignore_errors=True)\n    {PASS}'
    ),
    "half-characters": (
        'return {"status": "FAIL", "score": 0.0, "metrics": {"t\\ud83d": "x\\ud83d"},'
        ' "checks": [{"id": "a\\udcff", "status": "fail"}]}'
    ),
    "number-in-check": (
        'return {"status": "PASS", "score": 1.0,'
        ' "checks": [{"id": "x", "status": "pass", "v": float("inf")}]}'
    ),
}
BROKEN = {
    "too-large-a-number": "return {'status': 'PASS', 'score': 1e999}",
    "text-as-score": "return {'status': 'PASS', 'score': '1.0'}",
    "third-status": "return {'status': 'manual', 'score': None}",
    "hidden-nan": "return {'status': 'PASS', 'metrics': {'a': {'b': [float('nan')]}}}",
    "ring": "x = {}; x['a'] = x\n    return {'status': 'PASS', 'metrics': x}",
    "generator": "yield {'status': 'PASS'}",
    "interrupt": "raise KeyboardInterrupt",
    "long-message": "raise ValueError('m' * 5_000_000)",
    "half-character": "raise ValueError('bad \\ud83d end')",
    "closed-descriptors": f"import os\n    os.closerange(0, 100)\n    {PASS}",
    "killed-parent": f"import os, time\n    os.kill(os.getppid(), 9); time.sleep(5)\n    {PASS}",
}


@pytest.fixture
def demo(pytester: pytest.Pytester) -> DataSet:
    return DataSet(pytester, pytester.path / "datasets" / "demo")


def refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def strict(attempt: Path) -> None:
    """Every JSON file of the attempt is UTF-8 and JSON, without NaN and the like."""
    for file in attempt.rglob("*.json*"):
        text = file.read_bytes()
        for line in text.split(b"\n") if file.suffix == ".jsonl" else [text]:
            if line:
                json.loads(line.decode("utf-8"), parse_constant=refuse)


def test_only_what_the_evaluator_returns_is_a_verdict(demo: DataSet) -> None:
    for name, body in JUDGED.items():
        demo.task(name, evaluator=f"def evaluate(inputs):\n    {body}\n")
    demo.pytest("datasets", "-n", "2").assert_outcomes(passed=5, failed=5)
    for found in demo.results():
        expected = ("FAIL", 0.0) if '"FAIL"' in JUDGED[str(found["task_id"])] else ("PASS", 1.0)
        assert (found["status"], found["score"]) == expected, found["task_id"]
    for attempt in demo.attempts():
        strict(attempt)
        assert sum(file.stat().st_size for file in (attempt / "logs").iterdir()) < 3 * 2**20


def test_what_is_no_verdict_is_one_error_each_and_reports_stay_small_and_well_formed(demo: DataSet) -> None:
    for name, body in BROKEN.items():
        demo.task(name, evaluator=f"def evaluate(inputs):\n    {body}\n")
    demo.task("zz-after-all-of-them")
    result = demo.pytest("datasets", "-n", "2", "--junitxml", "out.xml")
    result.assert_outcomes(passed=1, errors=len(BROKEN))
    result.stdout.no_fnmatch_line("*INTERNALERROR*")
    for found in demo.results():
        if found["task_id"] in BROKEN:
            assert (found["status"], found["score"]) == ("ERROR", None)
            assert len(str(found["error"])) < 100_000
    for attempt in demo.attempts():
        strict(attempt)
    report = demo.pytester.path / "out.xml"
    assert report.stat().st_size < 128 * 1024
    assert len(list(ElementTree.parse(report).iter("testcase"))) == len(BROKEN) + 1


def test_modules_in_the_workspace_do_not_replace_those_of_the_evaluator(demo: DataSet) -> None:
    task = demo.task(
        "t",
        evaluator="""
            import json, statistics
            from lib.check import ok
            def evaluate(inputs):
                import colorsys, fractions
                return {"status": "PASS" if ok() else "FAIL"}
        """,
        run="""
            def run(ctx):
                for name in ("json", "statistics", "colorsys", "fractions", "evaluator", "sitecustomize"):
                    (ctx.workspace_root / f"{name}.py").write_text("raise SystemExit(0)")
                (ctx.workspace_root / "lib").mkdir()
                (ctx.workspace_root / "lib" / "__init__.py").write_text("")
                (ctx.workspace_root / "lib" / "check.py").write_text("def ok(): return False")
        """,
    )
    (task / "lib").mkdir()
    (task / "lib" / "check.py").write_text("def ok():\n    return True\n")
    demo.pytest("datasets").assert_outcomes(passed=1)


def test_gold_that_the_agent_put_in_its_place_is_not_what_is_compared_with(demo: DataSet) -> None:
    task = demo.task(
        "t",
        run="""
            async def run(ctx):
                await ctx.agent.session("solver").invoke("go")
        """,
        evaluator="""
            from pathlib import Path
            async def evaluate(inputs):
                command = ["sh", "-c", "ls $AGEVAL_EVALUATION; cat $AGEVAL_EVALUATION/gold.txt"]
                seen = (await inputs["scoring"].exec("main", command)).stdout
                host = Path(inputs["evaluation_dir"], "gold.txt").read_text()
                return {"status": "PASS" if (seen, host) == ("gold.txt\\ntrue", "true") else "FAIL"}
        """,
        roles=("solver",),
    )
    (task / "evaluation").mkdir()
    (task / "evaluation" / "gold.txt").write_text("true")
    (task / "solution").mkdir()
    (task / "solution" / "solve.sh").write_text(
        "mkdir -p $AGEVAL_EVALUATION; cd $AGEVAL_EVALUATION || exit 0\n"
        "echo mine > gold.txt; echo mine > more.txt; chmod 500 . || true\n"
    )
    demo.pytest("datasets", "--agent", "oracle").assert_outcomes(passed=1)
