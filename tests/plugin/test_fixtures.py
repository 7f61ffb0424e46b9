"""The public fixtures, overridden and used outside of tasks."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

from .conftest import DataSet

if TYPE_CHECKING:
    import pytest

INVOKING = """
async def run(ctx):
    async with ctx.agent.session("solver") as session:
        reply = await session.invoke("say it")
    ctx.publish_json("reply", {"text": reply["text"]})
"""

READING = """
import json
from pathlib import Path

def evaluate(inputs):
    text = json.loads(Path(inputs["artifacts"]["reply"]).read_text())["text"]
    return {"status": "PASS" if text == "hello" else "FAIL", "metrics": {"text": text}}
"""


def conftest(demo: DataSet, text: str) -> None:
    (demo.root / "conftest.py").write_text(dedent(text))


def test_an_unstarted_box_of_a_conftest_is_started(demo: DataSet) -> None:
    demo.task("foo")
    conftest(
        demo,
        """
        import pytest
        from ageval_boxes.local import LocalBox

        class Counted(LocalBox):
            async def start(self):
                print("my box starts")
                await super().start()

            async def stop(self, *, delete=True):
                print("my box stops")
                await super().stop(delete=delete)

        @pytest.fixture
        def box(attempt):
            return Counted(attempt.box_spec())
        """,
    )
    result = demo.pytest("-s")
    result.assert_outcomes(passed=1)
    assert str(result.stdout).count("my box starts") == 1
    assert str(result.stdout).count("my box stops") == 1


def test_a_box_fixture_can_build_on_the_one_it_overrides(demo: DataSet) -> None:
    task = demo.task(
        "foo",
        """
        from pathlib import Path

        def evaluate(inputs):
            made = Path(inputs["workspace_dir"], "made.txt")
            return {"status": "PASS" if made.exists() else "FAIL"}
        """,
    )
    assert task.is_dir()
    conftest(
        demo,
        """
        import pytest

        @pytest.fixture
        def box(box):
            assert box.exec(["sh", "-c", "echo yes > made.txt"]).ok
            return box
        """,
    )
    demo.pytest().assert_outcomes(passed=1)


def test_an_override_acts_on_its_own_directory_only(demo: DataSet) -> None:
    demo.task("foo")
    other = DataSet(demo.pytester, demo.pytester.path / "datasets" / "other")
    other.task("bar")
    conftest(
        demo,
        """
        import pytest

        @pytest.fixture
        def box():
            raise RuntimeError("no box today")

        def pytest_ageval_before_environment(attempt):
            raise RuntimeError("not reached")
        """,
    )
    result = demo.pytest("-rE")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["ERROR *foo* - RuntimeError: no box today"])
    (row,) = demo.results()
    assert row["status"] == "ERROR"
    error = row["error"]
    assert isinstance(error, dict)
    assert "no box today" in error["message"]


def test_a_box_fixture_that_gives_something_else_is_an_error(demo: DataSet) -> None:
    demo.task("foo")
    conftest(demo, "import pytest\n@pytest.fixture\ndef box(): return 'a string'\n")
    result = demo.pytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*the fixture 'box' must give a Box*found str*"])


def test_executors_of_a_conftest(demo: DataSet) -> None:
    demo.task("foo", READING, INVOKING, roles=("solver",))
    conftest(
        demo,
        """
        import pytest
        from pytest_ageval.executor import AgentResult, Executor

        class Hello(Executor):
            kind = "hello"

            async def invoke(self, prompt, *, tools=None, messages=None):
                return AgentResult(text="hello")

        @pytest.fixture
        def executor():
            return Hello
        """,
    )
    demo.pytest("--agent", "nop").assert_outcomes(passed=1)


def test_the_executor_that_a_role_binds_can_be_wrapped(demo: DataSet) -> None:
    demo.task("foo", roles=("solver",), run=INVOKING)
    conftest(
        demo,
        """
        import pytest

        @pytest.fixture
        def executor(executor):
            def make(session):
                made = executor(session)
                print("executor of", session.role, "is", type(made).__name__)
                return made
            return make
        """,
    )
    result = demo.pytest("--agent", "nop", "-s")
    result.stdout.fnmatch_lines(["*executor of solver is NopExecutor*"])


def test_a_third_party_executor_is_an_agent(demo: DataSet) -> None:
    demo.task("foo", READING, INVOKING, roles=("solver",))
    conftest(
        demo,
        """
        from pytest_ageval.executor import AgentResult, Executor

        class Hello(Executor):
            kind = "hello"

            async def invoke(self, prompt, *, tools=None, messages=None):
                return AgentResult(text="hello")

        def pytest_ageval_executors():
            return {"hello": Hello}
        """,
    )
    demo.pytest("--agent", "hello").assert_outcomes(passed=1)


def test_hooks_of_a_conftest_take_part(demo: DataSet) -> None:
    demo.task("foo")
    conftest(
        demo,
        """
        import pytest

        @pytest.hookimpl(wrapper=True)
        def pytest_ageval_after_evaluate(attempt, value):
            verdict = yield
            return {**verdict, "metrics": {"files": 7}}
        """,
    )
    demo.pytest().assert_outcomes(passed=1)
    (row,) = demo.results()
    assert row["metrics"] == {"files": 7}


def test_a_box_for_an_ordinary_test(pytester: pytest.Pytester, scratch: object) -> None:
    pytester.makepyfile(
        """
        def test_in_a_box(box, tmp_path):
            assert box.kind == "local"
            assert box.exec(["sh", "-c", "echo hi > file.txt"]).ok
            box.download("/attempt/workspace/file.txt", tmp_path / "got.txt")
            assert (tmp_path / "got.txt").read_text() == "hi\\n"
            assert box.exec(["false"]).exit_code == 1

        def test_in_another_box(box):
            assert not box.exec(["test", "-e", "file.txt"]).ok
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=2)
    result.stdout.no_fnmatch_line("*ageval ==*")


def test_a_scripted_model_for_an_ordinary_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from pytest_ageval.testing.scripted_model import Text

        def test_model(scripted_model):
            import httpx

            model = scripted_model([Text("done")])
            reply = httpx.post(
                f"{model.base_url}/chat/completions",
                json={"model": "m", "messages": [{"role": "user", "content": "do it"}]},
            )
            assert "done" in reply.text
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_the_variant_exists_for_tasks_only(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_x(ageval_variant): pass")
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*exists for tasks only*"])


def test_an_executor_of_the_data_set_that_is_collected_last(demo: DataSet) -> None:
    demo.task("foo", roles=("solver",))
    last = DataSet(demo.pytester, demo.pytester.path / "datasets" / "last")
    last.task("bar", READING, INVOKING, roles=("solver",))
    (last.root / "conftest.py").write_text(
        dedent(
            """
            from pytest_ageval.executor import AgentResult, Executor

            class Hello(Executor):
                kind = "hello"

                async def invoke(self, prompt, *, tools=None, messages=None):
                    return AgentResult(text="hello")

            def pytest_ageval_executors():
                return {"hello": Hello}
            """
        )
    )
    demo.pytest("--agent", "hello").assert_outcomes(passed=2)


def test_a_fixture_that_skips_leaves_no_result(demo: DataSet) -> None:
    demo.pytester.makeconftest(
        """
        import pytest

        @pytest.fixture(autouse=True)
        def not_today(attempt):
            pytest.skip("not today")
        """
    )
    demo.task("t")
    demo.pytest("datasets", "--junitxml=j.xml").assert_outcomes(skipped=1)
    assert demo.results() == []
    assert "ageval.status" not in (demo.pytester.path / "j.xml").read_text()
