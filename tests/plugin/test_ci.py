"""What GitHub Actions, GitLab and Jenkins are told, read back by the rules of their own formats."""

from __future__ import annotations

import re
import shlex
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import yaml

from pytest_ageval.ci import github, gitlab
from pytest_ageval.ci.attachments import line
from pytest_ageval.ci.outcomes import Ended, ended
from pytest_ageval.options import OPTIONS

from .conftest import CRASHING, FAILING, DataSet

WORKERS = pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])

EVIL = """
def evaluate(inputs):
    print("::warning::printed by a task")
    check = {"id": "x%0A::error::y, z: |w|", "status": "fail"}
    return {"status": "FAIL", "score": 0.4, "checks": [check]}
"""


# -- GitHub Actions --------------------------------------------------------------------------------


class Runner:
    """Reads a log as the runner does: commands at the beginning of a line, none between stop and token."""

    def __init__(self, lines: list[str]) -> None:
        self.commands: list[tuple[str, dict[str, str], str]] = []
        token = None
        for text in lines:
            text = text.lstrip()
            if token is not None:
                token = None if text == f"::{token}::" else token
                continue
            found = re.match(r"::([A-Za-z-]+)( [^\n]*?)?::(.*)$", text)
            if found is None:
                continue
            name, properties, data = found[1], (found[2] or "").strip(), found[3]
            if name == "stop-commands":
                token = data
                continue
            pairs = [pair.split("=", 1) for pair in properties.split(",") if pair]
            self.commands.append((name, {k: self._value(v) for k, v in pairs}, self._data(data)))
        assert token is None, "commands were never allowed again"

    @staticmethod
    def _data(text: str) -> str:
        return text.replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")

    def _value(self, text: str) -> str:
        return self._data(text.replace("%3A", ":").replace("%2C", ","))


@WORKERS
def test_github_gets_annotations_and_a_summary(
    demo: DataSet, monkeypatch: pytest.MonkeyPatch, workers: tuple[str, ...]
) -> None:
    demo.task("good", roles=("solver",))
    demo.task("evil", EVIL, roles=("solver",))
    demo.task("judge", CRASHING, roles=("solver",))
    demo.task("known", FAILING, roles=("solver",))
    (demo.pytester.path / "known.yaml").write_text(
        "format: ageval.known-failures/1\nknown_failures:\n"
        "  - {task: known, reason: hard}\n  - {task: good, reason: mended}\n"
    )
    summary = demo.pytester.path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setenv("GITHUB_WORKSPACE", str(demo.pytester.path / "datasets"))
    args = ("--known-failures=known.yaml", "--fail-under=0", "--max-errors=1")
    result = demo.pytest("--agent", "nop", *args, *workers)
    commands = Runner(result.outlines).commands
    assert [(name, p["title"]) for name, p, _ in commands] == [
        ("error", "ERROR judge[nop]"),
        ("error", "FAIL evil[nop]"),
        ("warning", "known failure passed good[nop]"),
        ("notice", "known failure known[nop]"),
    ]
    by_title = {p["title"]: (p, data) for _, p, data in commands}
    where, message = by_title["FAIL evil[nop]"]
    assert (where["file"], where["line"]) == ("demo/tasks/evil/task.yaml", "1")
    assert message.startswith("score 0.40; failed checks: x%0A::error::y, z: |w| (evidence: ")
    assert by_title["ERROR judge[nop]"][1].startswith("in evaluate: RuntimeError: the judge is on strike")
    assert "::warning::printed by a task" in result.stdout.str()
    text = summary.read_text()
    assert text.startswith("before\n## ageval\n")
    table = [row for row in text.splitlines() if row.startswith("|")]
    assert table[0].startswith("| data set | agent | pass | fail | error |")
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in table} == {12}
    assert "- gate fail-under: passed: demo, nop / local: 1 of 3 attempts pass" in text
    assert "- FAIL evil\\[nop\\]: score 0.40; failed checks: x%0A::error::y, z: \\|w\\|" in text


def test_github_annotations_are_ten_of_a_type() -> None:
    rows = [Ended("FAIL", f"f{n}", "a,b:c%.yaml", "m", None) for n in range(11)]
    rows += [Ended("ERROR", f"e{n}", "x", "m", None) for n in range(3)]
    rows += [Ended("known", f"k{n}", "x", "m", None) for n in range(10)]
    commands = Runner(list(github.annotate(rows))).commands
    errors = [(p, data) for name, p, data in commands if name == "error"]
    assert len(errors) == 10
    assert [p["title"] for p, _ in errors[:3]] == ["ERROR e0", "ERROR e1", "ERROR e2"]
    assert errors[3][0]["file"] == "a,b:c%.yaml"
    assert errors[-1] == ({"title": "ageval"}, "5 more; the log has them all")
    assert len([name for name, _, _ in commands if name == "notice"]) == 10


def test_github_summary_is_bounded() -> None:
    table = [["a", "b"], *([["x", "y" * 100]] * 5000)]
    rows = [Ended("FAIL", "n" * 200, "f", "m" * 500, None)] * 5000
    assert len(github.summary(table, ["gate"], rows)) < 100_000


def test_a_message_is_one_line_of_printable_text() -> None:
    data = {"error": {"phase": None, "title": "x\r\n::error::", "message": "\x1b[31msection_end:1:a\r\nmore"}}
    found = ended("a/task.yaml::a", data, "ERROR", Path("/root"), None)
    assert found.message == "x ::error::: [31msection_end:1:a"
    assert found.file == "/root/a/task.yaml"
    long = ended("a/task.yaml::a", {"failed_checks": ["c" * 10_000]}, "FAIL", Path("/r"), "/r/a")
    assert len(long.message) < 600
    assert long.file == "task.yaml"


def test_off_is_off(demo: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    demo.task("fails", FAILING)
    result = demo.pytest("--ageval-ci=off")
    assert not any(text.startswith("::") for text in result.outlines)


def test_ordinary_tests_get_nothing(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pytester.path / "summary.md"))
    pytester.makepyfile("def test_x():\n    assert False\n")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    assert not any(text.startswith("::") for text in result.outlines)
    assert not (pytester.path / "summary.md").exists()


# -- GitLab and Jenkins ----------------------------------------------------------------------------

#: As GitLab's documentation of collapsible sections gives it.
START = re.compile(r"^\x1b\[0Ksection_start:(\d+):([\w.-]+)\[collapsed=true\]\r\x1b\[0K(.+)$")
END = re.compile(r"^\x1b\[0Ksection_end:(\d+):([\w.-]+)\r\x1b\[0K$")

#: As the JUnit Attachments plugin of Jenkins and GitLab look for it.
ATTACHMENT = re.compile(r"^\[\[ATTACHMENT\|(.+)\]\]$", re.MULTILINE)


def attachments(demo: DataSet) -> dict[str, list[str]]:
    tree = ET.parse(demo.pytester.path / "out.xml")
    return {
        case.attrib["name"]: ATTACHMENT.findall(case.findtext("system-out") or "")
        for case in tree.iter("testcase")
    }


def test_gitlab_sections_open_and_close() -> None:
    rows = [Ended("FAIL", "f[x]", "f", "score 0", "/e"), Ended("known", "k", "f", "m", "/e")]
    first, *between, last = gitlab.attempts(rows)
    assert START.match(first)
    assert END.match(last)
    assert START.match(first)[2] == END.match(last)[2]  # type: ignore[index]
    assert between == ["FAIL f[x]: score 0 (evidence: /e)"]
    assert list(gitlab.attempts(rows[1:])) == []


@WORKERS
def test_gitlab_gets_a_section_and_attachments(
    demo: DataSet, monkeypatch: pytest.MonkeyPatch, workers: tuple[str, ...]
) -> None:
    demo.task("good", roles=("solver",))
    demo.task("bad", FAILING, roles=("solver",))
    monkeypatch.setenv("GITLAB_CI", "true")
    monkeypatch.setenv("CI_PROJECT_DIR", str(demo.pytester.path))
    xml = ("--junitxml=out.xml", "-o", "junit_logging=system-out")
    result = demo.pytest("--agent", "nop", *xml, *workers)
    raw = result.stdout.str()
    assert "section_start:" in raw
    assert raw.index("section_start:") < raw.index("FAIL bad[nop]: score 0.40") < raw.index("section_end:")
    found = attachments(demo)
    assert found["good[nop]"] == []
    (path,) = found["bad[nop]"]
    assert not path.startswith("/")
    assert (demo.pytester.path / path).name == "trajectory.jsonl"
    assert (demo.pytester.path / path).is_file()


def test_jenkins_gets_whole_paths_and_a_hint(demo: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    demo.task("bad", CRASHING, roles=("solver",))
    monkeypatch.setenv("JENKINS_URL", "http://jenkins.invalid/")
    result = demo.pytest("--agent", "nop", "--junitxml=out.xml", "-o", "junit_logging=system-out")
    (path,) = attachments(demo)["bad[nop]"]
    assert Path(path).is_absolute()
    assert Path(path).is_file()
    assert "attachments are not" not in result.stdout.str()
    again = demo.pytest("--agent", "nop", "--junitxml=out.xml")
    assert attachments(demo)["bad[nop]"] == []
    assert "add -o junit_logging=system-out to the command" in again.stdout.str()


def test_an_attachment_outside_the_project_has_its_whole_path(tmp_path: Path) -> None:
    inside, outside = tmp_path / "project" / "a.jsonl", tmp_path / "a.jsonl"
    assert line(inside, str(tmp_path / "project")) == "[[ATTACHMENT|a.jsonl]]"
    assert line(outside, str(tmp_path / "project")) == f"[[ATTACHMENT|{outside}]]"


# -- the examples of the documentation -------------------------------------------------------------

CI_PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "ci.md"


def examples(language: str) -> list[str]:
    return re.findall(rf"```{language}[^\n]*\n(.*?)```", CI_PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_examples_are_yaml_and_name_real_commands_and_options() -> None:
    documents = [yaml.safe_load(text) for text in examples("yaml")]
    assert len(documents) == 3
    github_job = documents[[True in d for d in documents].index(True)]["jobs"][
        "evals"
    ]  # `on` is true in YAML
    gitlab_job = next(d["evals"] for d in documents if "evals" in d)
    assert gitlab_job["artifacts"]["reports"] == {"junit": "out.xml"}
    commands = [step["run"] for step in github_job["steps"] if "run" in step]
    commands += [*gitlab_job["script"], *re.findall(r"sh '([^']+)'", examples("groovy")[0])]
    runs = [shlex.split(command) for command in commands if command.startswith("pytest ")]
    assert len(runs) == 3
    ours = {flag for option in OPTIONS for flag in (*option.flags, option.long)}
    pytests = {"-n", "-o", "--junitxml", "--html", "--self-contained-html"}
    for words in runs:
        assert {word.partition("=")[0] for word in words if word.startswith("-")} <= ours | pytests
    installed = re.findall(r"pytest-ageval\[([\w,]+)\]", "\n".join(commands))
    extras = tomllib.loads((CI_PAGE.parents[2] / "pyproject.toml").read_text())["project"]
    assert len(installed) == 3
    assert {name for each in installed for name in each.split(",")} <= set(extras["optional-dependencies"])
