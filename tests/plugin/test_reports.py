"""JUnit XML, HTML and the data on reports: complete, small, the same under pytest-xdist."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ET
from enum import Enum, IntEnum
from html import unescape
from pathlib import Path
from textwrap import dedent

import pytest

from pytest_ageval.report import html
from pytest_ageval.report.item import tail
from pytest_ageval.report.numbers import (
    cost,
    count,
    effective_size,
    interval,
    seconds,
    total,
    wilson,
)
from pytest_ageval.report.plain import ENTRIES, plain
from pytest_ageval.report.terminal import table

from .conftest import CRASHING, EVALUATOR, FAILING, DataSet
from .test_fixtures import INVOKING

WORKERS = pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])


# -- JUnit XML -------------------------------------------------------------------------------------


def cases(demo: DataSet) -> dict[str, ET.Element]:
    tree = ET.parse(demo.pytester.path / "out.xml")
    return {case.attrib["name"]: case for case in tree.iter("testcase")}


def properties(case: ET.Element) -> dict[str, str]:
    found = [(row.attrib["name"], row.attrib["value"]) for row in case.iter("property")]
    assert len(found) == len(dict(found)), "a property is there twice"
    return dict(found)


@WORKERS
def test_junit_tells_failures_from_errors_and_has_properties(demo: DataSet, workers: tuple[str, ...]) -> None:
    demo.task("passes", roles=("solver",))
    demo.task("fails", FAILING, roles=("solver",))
    demo.task("judge", CRASHING, roles=("solver",))
    demo.task("broken", more="limitz: {}\n")
    args = ("--junitxml=out.xml", "--agent", "nop", "--box", "local")
    demo.pytest(*args, "-W", "error", *workers)
    found = cases(demo)
    kinds = {name: [child.tag for child in case] for name, case in found.items()}
    assert kinds == {
        "passes[nop]": ["properties"],
        "fails[nop]": ["properties", "failure"],
        "judge[nop]": ["properties", "error"],
        "broken": ["properties", "error"],
    }
    assert properties(found["passes[nop]"])["ageval.status"] == "PASS"
    fails = properties(found["fails[nop]"])
    assert fails["ageval.status"] == "FAIL"
    assert fails["ageval.score"] == "0.4"
    assert fails["ageval.metrics.lines"] == "3"
    assert fails["ageval.checks"] == "tests: fail; lint: pass"
    assert fails["ageval.agent"] == "nop"
    assert fails["ageval.box"] == "local"
    assert fails["ageval.sources./environment"] == "cli"
    assert fails["ageval.digest"].startswith("sha256:")
    assert float(fails["ageval.timing.evaluate"]) > 0
    assert Path(fails["ageval.attempt_dir"], "result.json").is_file()
    judge = properties(found["judge[nop]"])
    assert (judge["ageval.status"], judge["ageval.error.phase"]) == ("ERROR", "evaluate")
    assert properties(found["broken"])["ageval.error.title"] == "invalid_schema"


def test_junit_stays_small(demo: DataSet) -> None:
    demo.task(
        "loud",
        """
        def evaluate(inputs):
            print("x" * 1_000_000)
            raise RuntimeError("y" * 5_000_000)
        """,
        run="def run(ctx):\n    print('z' * 20_000_000)\n",
    )
    demo.task(
        "wide",
        """
        def evaluate(inputs):
            checks = [{"id": f"c{n}", "status": "fail", "message": "m" * 10_000} for n in range(500)]
            metrics = {f"k{n}": "v" * 10_000 for n in range(500)}
            return {"status": "FAIL", "checks": checks, "metrics": metrics}
        """,
    )
    demo.pytest("--junitxml=out.xml", "-o", "junit_logging=all")
    for case in cases(demo).values():
        assert len(ET.tostring(case)) < 256 * 1024
        (trouble,) = (child for child in case if child.tag in ("failure", "error"))
        assert len(trouble.attrib["message"]) < 2000


@WORKERS
def test_text_that_is_not_unicode_reaches_every_report(demo: DataSet, workers: tuple[str, ...]) -> None:
    demo.task(
        "odd",
        r"""
        def evaluate(inputs):
            text = "half \ud83d and \x00 and \x1b[31m"
            checks = [{"id": text, "status": "fail", "message": text}]
            return {"status": "FAIL", "score": 0.5, "metrics": {text: text}, "checks": checks}
        """,
    )
    result = demo.pytest("--junitxml=out.xml", "--html=out.html", *workers)
    result.assert_outcomes(failed=1)
    assert properties(cases(demo)["odd[default]"])["ageval.status"] == "FAIL"
    (demo.pytester.path / "out.html").read_text("utf-8")


# -- HTML ------------------------------------------------------------------------------------------


def html_rows(demo: DataSet) -> list[dict[str, object]]:
    page = (demo.pytester.path / "out.html").read_text("utf-8")
    blob = re.search(r'data-jsonblob="([^"]*)"', page)
    assert blob is not None
    tests = json.loads(unescape(blob.group(1)))["tests"]
    return [row for rows in tests.values() for row in rows]


@WORKERS
def test_html_has_columns_and_a_trajectory(demo: DataSet, workers: tuple[str, ...]) -> None:
    demo.task("talks", run=INVOKING.replace("say it", "say <b>it</b>"), roles=("solver",))
    demo.task("fails", FAILING, roles=("solver",))
    demo.task("judge", CRASHING, roles=("solver",))
    demo.pytester.makepyfile(test_code="def test_code(): pass")
    demo.pytest("--html=out.html", "--self-contained-html", "--agent", "nop", *workers)
    page = (demo.pytester.path / "out.html").read_text("utf-8")
    assert 'data-column-type="agscore">Score' in page
    rows = {str(row["testId"]).rpartition("::")[2]: row for row in html_rows(demo)}
    named = {name: row for name, row in rows.items() if "[" in name or "test_code" in name}
    results = sorted(str(row["result"]) for row in html_rows(demo))
    assert results == ["Error", "Failed", "Passed", "Passed"]
    cells = " ".join(str(cell) for row in rows.values() for cell in row["resultsTableRow"])  # type: ignore[attr-defined]
    assert '<td class="col-agscore">0.40</td>' in cells
    assert '<td class="col-agent">nop / local</td>' in cells
    extras = json.dumps([row["extras"] for row in rows.values()], ensure_ascii=False)
    assert "Turn 1 · solver · prompt" in extras
    assert "say &lt;b&gt;it&lt;/b&gt;" in extras
    assert named
    summary = page.partition("additional-summary summary")[2].partition("results-table")[0]
    assert [cell in summary for cell in (">pass rate [95 %]</th>", ">nop / local</td>", ">2/3</td>")] == [
        True
    ] * 3


@WORKERS
def test_html_links_to_the_evidence(demo: DataSet, workers: tuple[str, ...]) -> None:
    demo.task("foo")
    demo.pytest("--html=out.html", *workers)
    (attempt,) = demo.attempts()
    (row,) = html_rows(demo)
    link = f"{attempt.relative_to(demo.pytester.path)}/"
    assert f'href="{link}"' in str(row["resultsTableRow"])
    # From a page in another directory there is no way that would survive a move.
    page = demo.pytester.path / "pages" / "out.html"
    assert html.link(attempt, str(page)) == f"{attempt.as_uri()}/"


def trajectory_page(path: Path, *rows: dict[str, object]) -> str:
    file = path / "trajectory.jsonl"
    common = {"turn_index": 2, "profile_id": "solver"}
    file.write_text("".join(json.dumps({**common, **row}) + "\n" for row in rows))
    return html.trajectory(file)


def test_a_tool_call_is_shown_with_command_and_output(tmp_path: Path) -> None:
    command = "python3 - <<EOF\nprint('<done>')\nEOF"
    args = {"call_id": "call_7", "command": ["/bin/bash", "-lc", command]}
    found = trajectory_page(
        tmp_path,
        {"type": "tool_call", "tool_call_id": "call_7", "function_name": "execute", "args": args},
        {"type": "observation", "tool_call_id": "call_7", "status": "completed", "content": "<done>"},
    )
    shown, _, folded = found.partition("<details>")
    words = unescape(re.sub("<[^>]*>", "\n", shown)).split("\n")
    assert "Turn 2 · solver · tool execute: python3 - <<EOF print('<done>') EOF -> ok" in words
    assert command in unescape(shown)
    assert words.count("<done>") == 1
    assert "call_7" not in shown
    assert "call_7" in folded
    assert "<done>" not in found


def test_what_says_nothing_is_folded_and_an_error_is_not(tmp_path: Path) -> None:
    quiet = trajectory_page(
        tmp_path,
        {"type": "unknown", "raw": {"sessionUpdate": "plan"}},
        {"type": "terminal", "ok": True, "stop_reason": "end_turn", "error": None},
    )
    assert re.findall("<h4[^>]*>", quiet) == []
    assert "Turn 2 · solver · end: end_turn</summary>" in quiet
    failed = trajectory_page(tmp_path, {"type": "terminal", "ok": False, "error": "HTTPError:429"})
    assert "Turn 2 · solver · error: HTTPError:429</h4>" in failed


def test_a_long_trajectory_ends_with_a_whole_element(tmp_path: Path) -> None:
    turns = [{"type": "turn", "role": "assistant", "content": "<" * 3000} for _ in range(200)]
    found = trajectory_page(tmp_path, *turns)
    assert len(found) < html.WHOLE + 1000
    assert found.count("<section>") == found.count("</section>") > 5
    assert found.endswith("[... the rest is in the file ...]</p>")


def test_html_of_other_projects_is_as_ever(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_one(): pass")
    pytester.runpytest_subprocess("--html=out.html")
    page = (pytester.path / "out.html").read_text("utf-8")
    assert "agscore" not in page
    assert "col-ag" not in page


# -- the terminal ----------------------------------------------------------------------------------


def test_the_last_lines_of_the_evaluator_are_shown(demo: DataSet) -> None:
    demo.task(
        "judge",
        """
        def evaluate(inputs):
            print("looked at 3 files")
            return {"status": "FAIL", "score": 0.0}
        """,
    )
    result = demo.pytest()
    result.stdout.fnmatch_lines(["*ageval evaluator*", "looked at 3 files"])


def test_without_pytest_html_and_xdist(demo: DataSet) -> None:
    demo.task("foo")
    demo.pytest("-p", "no:html", "-p", "no:xdist", "-W", "error").assert_outcomes(passed=1)


def test_groups_of_the_table() -> None:
    rows = [
        {"dataset": "d", "agent": "codex", "box": "local", "status": "PASS", "score": 1.0},
        {"dataset": "d", "agent": "codex", "box": "docker", "status": "FAIL", "score": 0.5},
        {
            "dataset": "d",
            "agent": "pi",
            "model": "m",
            "box": "local",
            "status": "PASS",
            "usage": {"prompt_tokens": 1000, "completion_tokens": 234, "cost_usd": 0.5},
            "timing": {"run": 61_000.0, "evaluate": 500},
        },
    ]
    lines = table(rows)
    assert [line.split()[1:4] for line in lines[1:]] == [
        ["codex", "/", "docker"],
        ["codex", "/", "local"],
        ["pi", "/", "m"],
    ]
    assert lines[3].split()[-3:] == ["1.2k", "$0.50", "1m02s"]
    # No score was given, so there is no mean; nothing is known of the other's tokens.
    assert lines[1].split()[-3:] == ["-", "-", "-"]


# -- figures and plain data ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    # Reference values: statsmodels.stats.proportion.proportion_confint(method="wilson").
    [(0, 10, 0.0, 0.2775328), (5, 10, 0.2365931, 0.7634069), (10, 10, 0.7224672, 1.0)],
)
def test_wilson_interval(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson(successes, trials) == pytest.approx((low, high), abs=1e-6)


def test_interval_without_trials_says_nothing() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    assert interval(0, []) == (0.0, 1.0)


def test_attempts_at_one_task_are_not_worth_as_many_tasks() -> None:
    assert interval(21, [3] * 7) == pytest.approx(interval(7, [1] * 7))
    assert interval(20, [3] * 7)[0] < interval(21, [3] * 7)[0]
    assert interval(6, [1] * 7) == wilson(6, 7)
    # One task tells little of others, however often it is tried.
    assert effective_size([20]) == 1
    # An uneven sample is worth less than an even one: (10 + 1 + 1)^2 / (100 + 1 + 1).
    assert effective_size([10, 1, 1, 0]) == pytest.approx(144 / 102)


def test_the_table_counts_tasks_for_its_interval() -> None:
    one = {"dataset": "d", "agent": "pi", "status": "PASS", "score": 1.0}
    rows = [{**one, "task": f"t{task}"} for task in range(7) for _ in range(3)]
    assert "21/21  100.0% [64.6%, 100.0%]" in table(rows)[1]


def test_how_figures_are_written() -> None:
    assert [count(v) for v in (None, 0, 999, 12_345, 4_500_000)] == ["-", "0", "999", "12.3k", "4.5M"]
    assert [seconds(v) for v in (None, 0.44, 125, 3725)] == ["-", "0.4s", "2m05s", "1h02m"]
    assert [cost(v) for v in (None, 0.0123, 12.3)] == ["-", "$0.0123", "$12.30"]
    assert [cost(v) for v in (0, 0.0001, 0.00002, 3e-9)] == ["$0.0000", "$0.0001", "$0.00002", "$0.000000003"]


def test_unknown_is_not_zero() -> None:
    assert total([None, None]) is None
    assert total([None, 2, True, 0.5]) == 2.5


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Text(str):
    __slots__ = ()


def exact_types(value: object) -> bool:
    if isinstance(value, dict):
        return all(type(k) is str and exact_types(v) for k, v in value.items())
    if isinstance(value, list):
        return all(map(exact_types, value))
    return type(value) in (type(None), bool, int, float, str)


def test_only_plain_types_travel() -> None:
    value = {
        Text("a"): Text("b"),
        "path": Path("/x"),
        "enum": Colour.RED,
        "level": Level.HIGH,
        "nan": math.nan,
        "inf": -math.inf,
        "set": {2, 1},
        "half": "\ud83d",
        3: (1, 2.5, True, None),
    }
    found = plain(value)
    assert exact_types(found)
    json.dumps(found, allow_nan=False).encode("utf-8")
    assert found["set"] == [1, 2]
    assert found["half"] == "?"
    assert found["3"] == [1, 2.5, True, None]


def test_what_travels_is_bounded() -> None:
    deep: list[object] = []
    deep.append(deep)
    found = plain({"long": "x" * 10_000, "many": list(range(1000)), "deep": deep})
    assert len(found["long"]) < 3000
    assert "8000 characters cut" in found["long"]
    assert len(found["many"]) == ENTRIES
    assert len(json.dumps(found)) < 10_000


def test_a_tail_begins_with_a_whole_line() -> None:
    text = "".join(f"line {number} é\n" for number in range(1000))
    found = tail(text, 200)
    assert len(found.encode()) < 300
    assert found.splitlines()[1].startswith("line ")
    assert found.endswith("line 999 é\n")
    assert tail("short") == "short"


def test_the_reports_of_an_attempt_are_plain_and_named(demo: DataSet) -> None:
    demo.task("fails", FAILING)
    demo.task("passes", EVALUATOR)
    (demo.pytester.path / "conftest.py").write_text(
        dedent(
            """
            import json

            def pytest_runtest_logreport(report):
                if hasattr(report, "ageval"):
                    print("REPORT", report.when, json.dumps(report.ageval, allow_nan=False))
            """
        )
    )
    result = demo.pytest("-s")
    found = [line.partition("REPORT ")[2].split(" ", 1) for line in result.outlines if "REPORT " in line]
    assert [when for when, _ in found] == ["call", "call"]
    fails, passes = (json.loads(data) for _, data in found)
    assert (fails["status"], passes["status"]) == ("FAIL", "PASS")
    assert fails["failed_checks"] == ["tests"]
    assert {"dataset", "task", "agent", "model", "box", "attempt", "digest"} <= fails.keys()
    assert fails["sources"]["/environment"] == "profiles.yaml"


SECRET = "pk-live-2f9c81d7a6b54e03"


@WORKERS
def test_credentials_stay_out_of_every_report(
    demo: DataSet, workers: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEMO_KEY", SECRET)
    demo.profiles(
        "format: ageval.profiles/1\nenvironment: local\nagent_profiles:\n"
        "  '*': {executor: openai-http, api_key: '${DEMO_KEY}', "
        "base_url: 'http://127.0.0.1:9/v1', model: {id: m}}\n"
    )
    demo.task(
        "leaks",
        f"""
        def evaluate(inputs):
            checks = [{{"id": "{SECRET}", "status": "fail", "message": "{"x" * 990}{SECRET}"}}]
            return {{"status": "FAIL", "metrics": {{"key": "{SECRET}"}}, "checks": checks}}
        """,
        roles=("solver",),
    )
    demo.task("raises", f"def evaluate(inputs):\n    raise RuntimeError('{SECRET}')\n", roles=("solver",))
    (demo.root / "conftest.py").write_text(
        dedent(
            f"""
            import pytest

            @pytest.fixture(autouse=True)
            def noisy(request, attempt):
                print("{SECRET}")
                yield
                if "raises" in request.node.name:
                    raise ValueError("{SECRET}")
            """
        )
    )
    args = ("--junitxml=out.xml", "--html=out.html", "--self-contained-html", "-l", "-rA")
    result = demo.pytest(*args, "-o", "junit_logging=all", *workers)
    result.assert_outcomes(failed=1, errors=2)
    texts = [str(result.stdout), *(Path(name).read_text("utf-8") for name in ("out.xml", "out.html"))]
    assert [text.count(SECRET) for text in texts] == [0, 0, 0]
    assert "[REDACTED:DEMO_KEY]" in texts[0]
