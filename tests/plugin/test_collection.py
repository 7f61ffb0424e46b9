"""What is a task, what it is called, how it is selected, and in which order attempts come."""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

if TYPE_CHECKING:
    from .conftest import DataSet

TASK = "datasets/demo/tasks/{0}/task.yaml::{0}"


def node(task: str, variant: str = "default") -> str:
    return f"{TASK.format(task)}[{variant}]"


# -- what is a task --------------------------------------------------------------------------------


def test_tasks_are_items_among_the_other_tests(demo: DataSet) -> None:
    demo.task("beta")
    demo.task("alpha")
    demo.pytester.makepyfile(test_code="def test_code(): pass")
    assert demo.collect() == [node("alpha"), node("beta"), "test_code.py::test_code"]


def test_everything_below_a_task_is_data(demo: DataSet) -> None:
    task = demo.task("port")
    inner = task / "environment" / "repo"
    for directory in (task, task / "tests", inner, inner / "tests"):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "conftest.py").write_text("raise SystemExit('conftest.py of a task')")
        (directory / "test_outputs.py").write_text("raise SystemExit('test of a task')")
    (inner / "task.yaml").write_text("format: ageval.task/1\n")
    (inner / "ageval.yaml").write_text("format: ageval.dataset/1\n")
    demo.task("twin").joinpath("test_outputs.py").write_text("raise SystemExit('twin')")
    assert demo.collect() == [node("port"), node("twin")]


@pytest.mark.parametrize(
    "argument",
    [
        "datasets/demo/tasks/port/task.yaml",
        "datasets/demo/tasks/port",
        "datasets/demo/tasks/port/task.yaml::port",
        "datasets/demo/tasks/port/task.yaml::port[default]",
    ],
)
def test_a_task_named_on_the_command_line_stays_data(demo: DataSet, argument: str) -> None:
    task = demo.task("port")
    for directory in (task, task / "tests"):
        directory.mkdir(exist_ok=True)
        (directory / "conftest.py").write_text("raise SystemExit('conftest.py of a task')")
    (demo.root / "conftest.py").write_text("print('conftest of the data set')")
    result = demo.pytest("--collect-only", "-q", "-s", argument)
    result.stdout.fnmatch_lines(["conftest of the data set"])
    assert [line for line in result.outlines if "::" in line] == [node("port")]


def test_in_the_directory_of_a_task_the_task_is_collected(
    demo: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = demo.task("port")
    (task / "conftest.py").write_text("raise SystemExit('conftest.py of a task')")
    (task / "test_outputs.py").write_text("raise SystemExit('test of a task')")
    monkeypatch.chdir(task)
    result = demo.pytest("--collect-only", "-q")
    assert [line for line in result.outlines if "::" in line] == ["task.yaml::port[default]"]


@pytest.mark.parametrize("name", ["build", "dist", "venv", "node_modules", "foo.egg", "tests"])
def test_names_that_pytest_passes_over(demo: DataSet, name: str) -> None:
    demo.task(name)
    (demo.root / "build" / "lib").mkdir(parents=True)
    (demo.root / "build" / "lib" / "test_stale.py").write_text("def test_stale(): pass")
    assert demo.collect() == [node(name)]


@pytest.mark.parametrize("how", ["option", "glob", "conftest"])
def test_exclusions_of_the_user_hold_for_those_names_too(demo: DataSet, how: str) -> None:
    demo.task("build")
    demo.task("kept")
    args = {
        "option": ["--ignore=datasets/demo/tasks/build"],
        "glob": ["--ignore-glob=*/tasks/bu*"],
        "conftest": [],
    }[how]
    if how == "conftest":
        (demo.root / "conftest.py").write_text("collect_ignore = ['tasks/build']")
    assert demo.collect(*args) == [node("kept")]


def test_names_with_a_dot_in_front_are_no_tasks(demo: DataSet) -> None:
    demo.task(".draft")
    demo.task("real")
    (demo.root / "tasks" / "__pycache__").mkdir()
    assert demo.collect() == [node("real")]


def test_tasks_root_of_the_data_set(demo: DataSet) -> None:
    demo.task("usual")
    (demo.root / "tasks").rename(demo.root / "problems")
    with (demo.root / "ageval.yaml").open("a") as file:
        file.write("tasks: {root: problems}\n")
    assert demo.collect() == ["datasets/demo/problems/usual/task.yaml::usual[default]"]


def test_a_directory_without_task_file_among_tasks_is_an_error(demo: DataSet) -> None:
    demo.task("good")
    lost = demo.root / "tasks" / "lost"
    lost.mkdir()
    (lost / "run.py").touch()
    (demo.root / "tasks" / "removed" / "__pycache__").mkdir(parents=True)
    assert demo.collect() == [node("good"), TASK.format("lost")]
    result = demo.pytest("-k", "lost")
    result.assert_outcomes(errors=1, deselected=1)
    result.stdout.fnmatch_lines(["*no task.yaml*"])


def test_a_task_outside_of_a_data_set_says_so(pytester: pytest.Pytester) -> None:
    task = pytester.mkdir("stray")
    (task / "task.yaml").write_text("format: ageval.task/1\ntask_id: stray\n")
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*no ageval.yaml above this task*stray*task.yaml*"])


# -- names and selection ---------------------------------------------------------------------------


def test_ids_name_what_varies(demo: DataSet) -> None:
    demo.task("foo", roles=("solver",))
    assert demo.collect("--agent", "nop") == [node("foo", "nop")]
    assert demo.collect("--agent", "nop", "--attempts", "2") == [
        node("foo", "nop-1"),
        node("foo", "nop-2"),
    ]
    assert demo.collect("--agent", "nop", "--agent", "oracle") == [
        node("foo", "nop"),
        node("foo", "oracle"),
    ]


def test_selection(demo: DataSet) -> None:
    demo.task("foo", roles=("solver",), more="tags: [needs-gpu, web]\n")
    demo.task("bar", roles=("solver",), more="requires: {environment: [attach_stdio]}\n")
    matrix = ("--agent", "nop", "--agent", "oracle", "--attempts", "2", "--strict-markers")
    assert len(demo.collect(*matrix)) == 8
    assert demo.collect(*matrix, "-m", "ageval(agent='nop', attempt=2)") == [
        node("bar", "nop-2"),
        node("foo", "nop-2"),
    ]
    assert demo.collect(*matrix, "-m", "web and ageval(agent='oracle', attempt=1)") == [
        node("foo", "oracle-1")
    ]
    assert len(demo.collect(*matrix, "-m", "ageval(dataset='demo', task='bar')")) == 4
    assert len(demo.collect(*matrix, "-m", "role_solver")) == 8
    assert len(demo.collect(*matrix, "-m", "needs_attach_stdio")) == 4
    assert len(demo.collect(*matrix, "-m", "needs-gpu")) == len(demo.collect(*matrix, "-m", "needs_gpu")) == 4
    assert len(demo.collect(*matrix, "-k", "needs-gpu and nop")) == 2
    assert len(demo.collect(*matrix, TASK.format("foo"))) == 4
    assert demo.collect(*matrix, node("foo", "oracle-2")) == [node("foo", "oracle-2")]
    assert len(demo.collect(*matrix, "--deselect", TASK.format("foo"))) == 4


def test_a_tag_does_not_do_what_a_mark_of_that_name_does(demo: DataSet) -> None:
    demo.task("foo", more="tags: [skip, '3d', xfail]\n")
    assert demo.collect("--strict-markers", "-m", "tag_skip and tag_3d") == [node("foo")]
    demo.pytest("--strict-markers").assert_outcomes(passed=1)


def test_rounds_come_one_after_the_other_and_tests_keep_their_places(demo: DataSet) -> None:
    demo.task("a", roles=("solver",))
    demo.task("b", roles=("solver",))
    demo.pytester.makepyfile(test_z="def test_z(): pass")
    assert demo.collect("--agent", "nop", "--attempts", "2") == [
        node("a", "nop-1"),
        node("b", "nop-1"),
        node("a", "nop-2"),
        node("b", "nop-2"),
        "test_z.py::test_z",
    ]


def test_unicode_and_odd_names(demo: DataSet) -> None:
    demo.task("café")
    demo.task("a b+c")
    assert demo.collect("-k", "café") == ["datasets/demo/tasks/café/task.yaml::café[default]"]
    demo.pytest("-p", "no:cacheprovider").assert_outcomes(passed=2)


def test_the_same_name_in_two_unicode_forms_is_an_error_of_both(demo: DataSet) -> None:
    demo.task("caf\u00e9")
    demo.task("cafe\u0301")
    demo.task("plain")
    result = demo.pytest()
    result.assert_outcomes(passed=1, errors=2)
    result.stdout.fnmatch_lines(["*two directories have the id*"])


def test_every_process_finds_the_same_in_the_same_order(
    demo: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("Zoo", "apple", "éclair", "m-1", "m_1", "10", "9"):
        demo.task(name)
    found = []
    for seed in ("0", "7"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        found.append(demo.collect())
    assert found[0] == found[1]
    demo.pytest("-n", "2").assert_outcomes(passed=7)


def test_user_fixtures_marks_and_parametrization_apply(demo: DataSet) -> None:
    demo.task("foo")
    (demo.root / "conftest.py").write_text(
        dedent(
            """
            import pytest

            def pytest_generate_tests(metafunc):
                if "ageval_variant" in metafunc.fixturenames:
                    metafunc.parametrize("weather", ["sun", "rain"], indirect=True)

            @pytest.fixture(autouse=True)
            def weather(request):
                print("the weather is", request.param)

            @pytest.fixture(scope="module", autouse=True)
            def once_for_the_task():
                print("module fixture")
            """
        )
    )
    result = demo.pytest("-s")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*the weather is *"])
    assert str(result.stdout).count("module fixture") == 1


def test_setup_plan_and_fixture_listings_work(demo: DataSet) -> None:
    demo.task("foo")
    demo.pytest("--setup-plan").stdout.fnmatch_lines(["*SETUP*F attempt*", "*SETUP*F box*"])
    assert demo.pytest("--fixtures-per-test").ret == 0
    assert demo.attempts() == []


# -- what is wrong ---------------------------------------------------------------------------------


def test_a_broken_task_is_one_error_and_the_others_run(demo: DataSet) -> None:
    demo.task("broken", more="limitz: {}\n")
    (demo.task("torn") / "task.yaml").write_text("task_id: [unclosed\n")
    demo.task("good")
    result = demo.pytest("--agent", "nop", "--agent", "oracle", "--strict-markers")
    result.assert_outcomes(passed=2, errors=2)
    result.stdout.fnmatch_lines(
        ["*unknown key 'limitz'*datasets/demo/tasks/broken/task.yaml:*/limitz*", "*did you mean*"]
    )
    # The message says it all; where in the plugin it was raised says nothing.
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*collection.py*")


@pytest.mark.parametrize("name", ["ageval.yaml", "profiles.yaml"])
def test_a_broken_data_set_is_one_collection_error(demo: DataSet, name: str) -> None:
    demo.task("a")
    demo.task("b")
    (demo.root / name).write_text("format: ageval.nonsense/1\n")
    result = demo.pytest()
    result.assert_outcomes(errors=1)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    # pytest's title names the first task; the line below it says which file is meant.
    result.stdout.fnmatch_lines(
        [
            "*ERROR collecting*task.yaml*",
            f"datasets/demo/{name} is broken; no task of datasets/demo can run",
            "invalid_format: *",
        ],
        consecutive=True,
    )


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--agent", "orcale"), "*there is no agent 'orcale'; known:*oracle*"),
        (("--agent", "nop", "--box", "dokcer"), "*there is no box kind 'dokcer'*"),
        (("--attempts", "0"), "*--attempts must be at least 1*"),
        (("--set", "/limits/wall_time_seconds"), "*--set takes POINTER=JSON*"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(
    demo: DataSet, args: tuple[str, ...], message: str, workers: tuple[str, ...]
) -> None:
    demo.task("foo", roles=("solver",))
    demo.pytester.makepyfile(test_code="def test_code(): pass")
    result = demo.pytest(*args, *workers)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {message}"])
    result.stdout.no_fnmatch_line("ageval: *evidence in*")
    assert demo.attempts() == []


@pytest.mark.parametrize("agent", ["oracle", "nop"])
def test_an_agent_without_a_model_takes_none(demo: DataSet, agent: str) -> None:
    demo.task("foo", roles=("solver",))
    result = demo.pytest("--agent", agent, "--model", "gpt")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        [f"model_config: the executor {agent} calls no model; found 'gpt' (*--model*"]
    )


def test_the_default_box_is_not_blamed_on_a_file_that_is_not_there(
    demo: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo.task("foo")
    (demo.root / "profiles.yaml").unlink()
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    result = demo.pytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["environment_daemon_unreachable: *"])
    result.stdout.no_fnmatch_line("*profiles.yaml:*")


def test_without_an_agent_a_task_that_needs_one_is_skipped(demo: DataSet) -> None:
    demo.task("foo", roles=("solver",))
    demo.task("alone")
    result = demo.pytest("-rs")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*nobody plays solver: choose an agent with --agent NAME*"])
    assert len(demo.attempts()) == 1


def test_options_from_environment_and_ini(demo: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    demo.task("foo", roles=("solver",))
    demo.pytester.makeini("[pytest]\nageval_agent = nop oracle\nageval_attempts = 2\n")
    assert len(demo.collect()) == 4
    monkeypatch.setenv("AGEVAL_AGENT", "nop")
    assert demo.collect() == [node("foo", "nop-1"), node("foo", "nop-2")]
    assert demo.collect("--agent", "oracle", "--attempts", "1") == [node("foo", "oracle")]
    monkeypatch.setenv("AGEVAL_ATTEMPTS", "many")
    result = demo.pytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*AGEVAL_ATTEMPTS: expected a whole number or auto?:MAX?, found 'many'*"])


def test_native_toml_configuration(demo: DataSet) -> None:
    demo.task("foo", roles=("solver",))
    table = "pytest" if int(pytest.__version__.partition(".")[0]) >= 9 else "pytest.ini_options"
    attempts = '"2"'
    demo.pytester.makepyprojecttoml(f'[tool.{table}]\nageval_agent = ["nop"]\nageval_attempts = {attempts}\n')
    assert demo.collect() == [node("foo", "nop-1"), node("foo", "nop-2")]


def test_the_short_option_of_another_plugin_is_left_to_it(demo: DataSet) -> None:
    demo.task("foo")
    Path(demo.pytester.path, "other.py").write_text(
        "def pytest_addoption(parser): parser.addoption('--model', help='of a car')\n"
    )
    demo.pytester.syspathinsert()
    result = demo.pytest("-p", "other", "--help")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*--ageval-model*"])


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_names_that_no_report_can_hold_are_one_error_each(demo: DataSet, workers: tuple[str, ...]) -> None:
    demo.task("good", more="tags: ['+1', _private, xfail]")
    for name in (b"\xff\xfe", b"\x1b[31mred", b"a\nb", "a\u202eb".encode()):
        directory = Path(os.fsdecode(os.fsencode(demo.root / "tasks") + b"/" + name))
        directory.mkdir()
        (directory / "task.yaml").write_text("format: ageval.task/1\ntask_id: x\n")
    result = demo.pytest("datasets", "--junitxml=j.xml", *workers)
    result.assert_outcomes(passed=1, errors=4)
    cases = ElementTree.parse(demo.pytester.path / "j.xml").getroot().iter("testcase")
    assert sum(1 for _ in cases) == 5
    assert "\x1b[31m" not in result.stdout.str()
    result.stdout.fnmatch_lines(["*the directory's name holds control characters or is not UTF-8*"])
