"""Task files as they are found in the wild, many at once: each broken one is one error, the others run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from plugin.conftest import EVALUATOR, DataSet

HEAD = "format: ageval.task/1\n"
#: Name of the task to what its task.yaml holds, and a part of the message.
BROKEN: dict[str, tuple[bytes, str]] = {
    "open": ((HEAD + "task_id: open\nlimits: {wall_time_seconds: 3\n").encode(), "open/task.yaml:4"),
    "twice": (
        (HEAD + "task_id: twice\nlimits:\n  wall_time_seconds: 60\n  wall_time_seconds: 3600\n").encode(),
        "'wall_time_seconds' is in this mapping twice: lines 4 and 5",
    ),
    "8": ((HEAD + "task_id: 8\n").encode(), "task_id must be text; found the number 8"),
    "utf16": ((HEAD + "task_id: utf16\n").encode("utf-16"), "must be UTF-8"),
    "latin": (HEAD.encode() + b"task_id: latin\ndescription: caf\xe9\n", "latin/task.yaml:3"),
    "tab": ((HEAD + "task_id: tab\nlimits:\n\twall_time_seconds: 3\n").encode(), "tab/task.yaml:4"),
    "documents": ((HEAD + "task_id: documents\n---\na: 1\n").encode(), "another document"),
    "function": ((HEAD + "task_id: function\nparameters: {x: !function u.f}\n").encode(), "!function"),
    "list": (b"[]\n", "must be a mapping, found a list"),
    "comment": (b"# nothing\n", "the document is empty"),
    "base60": ((HEAD + "task_id: base60\nlimits: {wall_time_seconds: 10:00}\n").encode(), "text '10:00'"),
    "quoted": ((HEAD + "task_id: quoted\nlimits: {wall_time_seconds: '60'}\n").encode(), "text '60'"),
    "boolean": ((HEAD + "task_id: boolean\nlimits: {wall_time_seconds: true}\n").encode(), "found true"),
}


@pytest.fixture
def demo(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> DataSet:
    monkeypatch.setenv("COLUMNS", "300")
    return DataSet(pytester, pytester.path / "datasets" / "demo")


def test_each_broken_task_file_is_one_located_error_and_nothing_of_it_is_executed(demo: DataSet) -> None:
    mark = demo.pytester.path / "executed"
    for name, (text, _) in BROKEN.items():
        task = demo.task(name, run=f"open({str(mark)!r}, 'w')\ndef run(ctx): pass\n")
        (task / "task.yaml").write_bytes(text)
    (demo.root / "tasks" / "compose.yaml").write_text("services: {}\n")
    demo.task("good")
    demo.task("08")
    (demo.task("marked") / "task.yaml").write_bytes(b"\xef\xbb\xbf" + (HEAD + "task_id: marked\n").encode())
    result = demo.pytest("datasets", "-n", "2", "--junitxml", "out.xml")
    result.assert_outcomes(passed=3, errors=len(BROKEN))
    errors = {
        str(case.get("name")): str(error.get("message"))
        for case in ElementTree.parse(demo.pytester.path / "out.xml").iter("testcase")
        for error in case.iter("error")
    }
    assert errors.keys() == BROKEN.keys()
    output = str(result.stdout)
    for name, (_, part) in BROKEN.items():
        assert f"{name}/task.yaml" in output
        assert part in output
    assert not mark.exists()


def test_values_that_look_like_something_else_reach_the_scripts_as_written(demo: DataSet) -> None:
    evaluator = """
        def evaluate(inputs):
            return {"status": "PASS", "metrics": {"seen": repr(inputs["parameters"])}}
    """
    written = {
        "expected": "no",
        "flag": "on",
        "octal": "010",
        "day": "2024-01-01",
        "hex": "0x1F",
        "time": "12:30",
        "power": "1e3",
        "infinite": ".inf",
        "grouped": "1_000",
    }
    lines = "".join(f"  {key}: {value}\n" for key, value in written.items())
    demo.task("no", evaluator=evaluator, more=f"parameters:\n{lines}tags: [yes, off, 2024-01-01, 1e3]\n")
    demo.pytest("datasets", "-m", "tag_1e3 and off").assert_outcomes(passed=1)
    (found,) = demo.results()
    assert found["metrics"] == {"seen": repr(written)}
    assert found["task_id"] == "no"


def test_a_task_with_a_name_of_the_greatest_length_runs(demo: DataSet) -> None:
    names = ["x" * 254 + "a", "x" * 254 + "b"]
    for name in names:
        demo.task(name)
    demo.pytest("datasets", "-n", "2", "--junitxml", "out.xml").assert_outcomes(passed=2)
    cases = ElementTree.parse(demo.pytester.path / "out.xml").iter("testcase")
    assert sorted(str(case.get("name")) for case in cases) == [f"{name}[default]" for name in names]
    assert sorted(str(found["task_id"]) for found in demo.results()) == names


def test_the_payload_of_a_task_is_never_imported_or_taken_for_tasks(demo: DataSet) -> None:
    mark = demo.pytester.path / "imported"
    for name in ("a", "b"):
        repo = demo.task(name) / "environment" / "repo"
        (repo / "tests").mkdir(parents=True)
        (repo / "task.yaml").write_text("on: push\njobs: {}\n")
        for file in ("tests/test_outputs.py", "tests/conftest.py", "conftest.py"):
            (repo / file).write_text(f"open({str(mark)!r}, 'w')\n")
    assert [line.rpartition("::")[2] for line in demo.collect("datasets")] == ["a[default]", "b[default]"]
    assert len(demo.collect()) == 2
    demo.pytest("datasets/demo/tasks/a").assert_outcomes(passed=1)
    assert not mark.exists()


@pytest.mark.parametrize("folder", ["a b %s {0} $HOME e\u0301", "-dash"])
def test_a_data_set_may_be_in_a_directory_with_an_odd_name(pytester: pytest.Pytester, folder: str) -> None:
    demo = DataSet(pytester, pytester.path / folder)
    demo.task("t", evaluator=EVALUATOR)
    demo.pytest(f"./{folder}").assert_outcomes(passed=1)
    (found,) = demo.results()
    assert Path(str(found["evidence_path"])).is_dir()
    assert json.loads((demo.attempts()[0] / "lock.json").read_text())


def test_a_data_set_behind_a_symbolic_link_runs_under_its_name(demo: DataSet) -> None:
    demo.task("t")
    (demo.pytester.path / "elsewhere").mkdir()
    link = demo.pytester.path / "elsewhere" / "link"
    link.symlink_to(demo.root)
    demo.pytest(str(link)).assert_outcomes(passed=1)
    demo.pytest(f"{link}/tasks/t").assert_outcomes(passed=1)
    assert len(demo.results()) == 2
