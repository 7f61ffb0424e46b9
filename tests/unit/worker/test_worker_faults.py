"""Whatever a script does wrong is told in its author's terms."""

from __future__ import annotations

import signal

import pytest
from worker_bench import Bench

from pytest_ageval.worker.client import WorkerOutcome
from pytest_ageval.worker.protocol import ErrorInfo


def fault_of(outcome: WorkerOutcome, status: str = "raised") -> ErrorInfo:
    assert outcome.status == status, outcome
    assert outcome.error is not None
    return outcome.error


def test_an_exception_is_shown_with_the_tasks_own_lines(bench: Bench) -> None:
    bench.write(
        "lib/parse.py",
        """
        import json

        def parse(text):
            return json.loads(text)
        """,
    )
    fault = fault_of(
        bench.run(
            """
            from lib.parse import parse

            async def run(ctx):
                parse("{")
            """
        )
    )
    assert fault["title"] == "JSONDecodeError"
    assert fault["message"].startswith("Expecting property name")
    assert (fault["file"], fault["line"]) == (str(bench.task / "lib/parse.py"), 5)
    assert fault["traceback"] is not None
    assert 'run.py", line 5, in run\n    parse("{")' in fault["traceback"]
    assert "return json.loads(text)" in fault["traceback"]
    assert "json/decoder.py" not in fault["traceback"]
    assert "pytest_ageval" not in fault["traceback"]


def test_a_script_error_has_its_own_title(bench: Bench) -> None:
    fault = fault_of(
        bench.run(
            """
            from ageval_sdk import ScriptError

            def evaluate(inputs):
                try:
                    1 / 0
                except ZeroDivisionError as error:
                    raise ScriptError("gold_broken", "nobody can divide") from error
            """,
            "evaluate",
        )
    )
    assert (fault["title"], fault["message"], fault["line"]) == ("gold_broken", "nobody can divide", 8)
    assert fault["traceback"] is not None
    assert "ZeroDivisionError: division by zero" in fault["traceback"]


@pytest.mark.parametrize(
    ("source", "title", "line", "says"),
    [
        ("x = 1\ndef run(ctx:\n    pass\n", "SyntaxError", 2, "def run(ctx:"),
        ("import no_such_module\n", "ModuleNotFoundError", 1, "import no_such_module"),
        ("def run(ctx):\n    raise KeyboardInterrupt\n", "KeyboardInterrupt", 2, "KeyboardInterrupt"),
        ("def run(ctx):\n    return run(ctx)\n", "RecursionError", 2, "repeated"),
        (
            "def run(ctx):\n    raise ExceptionGroup('many', [KeyError('a')])\n",
            "ExceptionGroup",
            2,
            "KeyError: 'a'",
        ),
    ],
)
def test_the_place_of_a_fault_is_known(bench: Bench, source: str, title: str, line: int, says: str) -> None:
    fault = fault_of(bench.run(source))
    assert (fault["title"], fault["file"], fault["line"]) == (title, str(bench.task / "run.py"), line)
    assert fault["traceback"] is not None
    assert says in fault["traceback"]


def test_a_missing_function_and_a_missing_file(bench: Bench) -> None:
    fault = fault_of(bench.run("def runn(ctx): pass\n"))
    assert (fault["title"], fault["message"]) == ("AttributeError", "run.py defines no function 'run'")
    (bench.task / "run.py").unlink()
    fault = fault_of(bench.run(None))
    assert fault["title"] == "FileNotFoundError"
    assert str(bench.task / "run.py") in fault["message"]


def test_an_exception_whose_text_cannot_be_had(bench: Bench) -> None:
    fault = fault_of(
        bench.run(
            """
            class Odd(Exception):
                def __str__(self):
                    raise ValueError

            def run(ctx):
                raise Odd
            """
        )
    )
    assert fault["title"] == "Odd"
    assert "ValueError" in fault["message"]


def test_a_long_message_is_bounded(bench: Bench) -> None:
    fault = fault_of(bench.run("def run(ctx):\n    raise ValueError('a' * 10**6 + 'the end')\n"))
    assert len(fault["message"]) < 20_000
    assert fault["message"].endswith("the end")
    assert fault["traceback"] is not None
    assert len(fault["traceback"]) < 70_000


@pytest.mark.parametrize(
    ("leave", "code"),
    [("sys.exit(0)", 0), ("sys.exit()", 0), ("sys.exit(3)", 3), ("os._exit(1)", 1), ("os._exit(0)", 0)],
)
def test_leaving_is_not_a_result(bench: Bench, leave: str, code: int) -> None:
    outcome = bench.run(f"import os, sys\ndef evaluate(inputs):\n    {leave}\n", "evaluate")
    fault = fault_of(outcome, "exited")
    assert outcome.exit_code == code
    assert fault["title"] == "task_worker_no_result"
    assert fault["message"] == f"evaluator.py exited {code} without a result"
    if "_exit" not in leave:
        assert fault["line"] == 3


def test_leaving_with_words_prints_them(bench: Bench) -> None:
    outcome = bench.run("import sys\nasync def run(ctx):\n    sys.exit('no gold')\n")
    assert (outcome.status, outcome.exit_code) == ("exited", 1)
    assert outcome.stderr_tail == "no gold\n"


def test_a_crash_names_the_signal_and_keeps_the_last_words(bench: Bench) -> None:
    outcome = bench.run(
        """
        import os, signal

        def evaluate(inputs):
            print("last words", end="")
            os.kill(os.getpid(), signal.SIGSEGV)
        """,
        "evaluate",
    )
    fault = fault_of(outcome, "killed")
    assert (outcome.signal, outcome.exit_code) == (signal.SIGSEGV, None)
    assert fault["message"] == "evaluator.py was ended by SIGSEGV without a result"
    assert outcome.stdout_tail == "last words"


def test_a_workspace_that_is_not_there_is_not_a_silent_end(bench: Bench) -> None:
    fault = fault_of(bench.run("def run(ctx): pass\n", workspace=bench.root / "nowhere"))
    assert fault["title"] == "FileNotFoundError"
    assert "nowhere" in fault["message"]
