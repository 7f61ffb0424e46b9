"""What a script finds when it runs, and how its result comes back."""

from __future__ import annotations

import math
import sys

import pytest
from worker_bench import Bench


def test_a_run_says_how_it_ended_and_what_it_published(bench: Bench) -> None:
    outcome = bench.run(
        """
        from ageval_sdk import RunContext, RunTerminal

        async def run(ctx: RunContext) -> RunTerminal:
            async with ctx.agent.session("solver", actor_id="ann") as session:
                reply = await session.invoke("What is 2 + 2?")
            ctx.publish_json("answer", {"text": reply["text"]})
            return RunTerminal.failed("tired")
        """
    )
    answer = bench.artifacts / "answer.json"
    assert outcome.status == "returned"
    assert outcome.error is None
    assert outcome.exit_code == 0
    assert outcome.value == {
        "terminal": {"kind": "failed", "reason": "tired"},
        "published": {"answer": str(answer)},
    }
    assert answer.read_text() == '{"text":"What is 2 + 2?"}\n'
    session = "sess_solver_ann_main_1"
    assert [call for call in bench.calls if call[0] != "publish"] == [
        ("open", {"session_id": session, "profile_id": "solver", "actor_id": "ann", "environment": None}),
        (
            "invoke",
            {
                "session_id": session,
                "request_id": f"req_{session}_turn_1",
                "prompt": "What is 2 + 2?",
                "tools": None,
                "messages": None,
                "turn": 1,
            },
        ),
        ("close", {"session_id": session}),
    ]
    assert ("publish", {"id": "answer", "kind": "json", "path": str(answer)}) in bench.calls


@pytest.mark.parametrize(
    ("body", "terminal"),
    [
        ("return None", {"kind": "completed", "reason": "ok"}),
        ("return {'status': 'PASS'}", {"kind": "failed", "reason": "invalid_terminal"}),
    ],
)
def test_a_run_may_be_a_plain_function(bench: Bench, body: str, terminal: dict[str, str]) -> None:
    assert bench.value(f"def run(ctx):\n    {body}\n", "run")["terminal"] == terminal


def test_the_context_holds_the_parameters_and_the_identity(bench: Bench) -> None:
    value = bench.value(
        """
        import os
        from ageval_sdk import RunTerminal

        def run(ctx):
            assert ctx.params["user.name"] == "ann" and "user.age" not in ctx.params
            assert str(ctx.workspace_root) == os.getcwd() == os.environ["AGEVAL_WORKSPACE"]
            assert str(ctx.artifact_dir) == os.environ["AGEVAL_ARTIFACTS"]
            assert str(ctx.task_root) == os.path.dirname(__file__)
            assert ctx.dataset_root == ctx.task_root.parent.parent
            scope = ctx.scope
            return RunTerminal.completed("/".join([scope.run_id, scope.trial_id, scope.attempt_id]))
        """,
        "run",
        params={"user": {"name": "ann"}},
    )
    assert value["terminal"]["reason"] == "run_1/trial_1/attempt_1"


def test_the_environment_is_what_the_parent_gives_and_nothing_else(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-tasks")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("LANG", "C.UTF-8")
    value = bench.value(
        """
        import os, subprocess, sys

        def evaluate(inputs):
            return {
                "environ": dict(os.environ),
                "of a child": subprocess.run(["env"], capture_output=True, text=True).stdout,
                "in /proc": open("/proc/self/environ").read(),
                "descriptors": sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1],
                "stdin": sys.stdin.read(),
                "argv": sys.argv,
                "leader": os.getpid() == os.getsid(0) == os.getpgid(0),
            }
        """,
        evaluation=bench.root / "gold",
        env={"COLOUR": "blue"},
    )
    cookie = value["environ"].pop("AGEVAL_WORKER_COOKIE")
    assert len(cookie) == 32
    assert value["environ"] == {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "COLOUR": "blue",
        "AGEVAL_ATTEMPT_ID": "attempt_1",
        "AGEVAL_WORKSPACE": str(bench.workspace),
        "AGEVAL_ARTIFACTS": str(bench.artifacts),
        "AGEVAL_EVALUATION": str(bench.root / "gold"),
    }
    assert cookie in value["of a child"]
    assert "sk-not-for-tasks" not in str(value)
    assert value["descriptors"] == [0, 1, 2, 3]
    assert value["stdin"] == ""
    assert value["argv"] == [str(bench.task / "evaluator.py")]
    assert value["leader"]


def test_the_evaluator_gets_its_inputs_an_agent_and_the_scoring_box(bench: Bench) -> None:
    value = bench.value(
        """
        async def evaluate(inputs):
            done = await inputs["scoring"].exec("main", ["pytest", "-q"], env={"KEY": "JUDGE_KEY"})
            reply = await inputs["agent"].session("judge", environment="gpu").invoke("Is it good?")
            plain = {key: value for key, value in inputs.items() if key not in ("agent", "scoring")}
            return {"exit": done.exit_code, "ok": done.ok, "said": reply["text"], "inputs": plain}
        """,
        evaluation=bench.root / "gold",
        params={"level": 3},
        inputs={"artifacts": {"report": "/a/report.md"}, "inputs": [{"artifact": "report"}]},
    )
    assert (value["exit"], value["ok"], value["said"]) == (3, False, "Is it good?")
    assert value["inputs"] == {
        "artifacts": {"report": "/a/report.md"},
        "artifacts_dir": str(bench.artifacts),
        "workspace_dir": str(bench.workspace),
        "evaluation_dir": str(bench.root / "gold"),
        "inputs": [{"artifact": "report"}],
        "parameters": {"level": 3},
    }
    assert bench.calls[0] == (
        "scoring_exec",
        {"name": "main", "argv": ["pytest", "-q"], "timeout_sec": None, "env": {"KEY": "JUDGE_KEY"}},
    )
    assert bench.calls[1][1]["session_id"] == "sess_judge_default_gpu_1"


def test_a_plain_evaluator_may_use_event_loops_and_threads_of_its_own(bench: Bench) -> None:
    value = bench.value(
        """
        import asyncio
        from concurrent.futures import ThreadPoolExecutor

        def evaluate(inputs):
            def ask(number):
                async def one():
                    async with inputs["agent"].session("judge") as session:
                        return (await session.invoke(f"question {number}"))["text"]
                return asyncio.run(one())

            with ThreadPoolExecutor(4) as pool:
                return {"one after the other": [ask(0), ask(1)], "at once": list(pool.map(ask, range(8)))}
        """
    )
    assert value["one after the other"] == ["question 0", "question 1"]
    assert value["at once"] == [f"question {number}" for number in range(8)]


def test_printing_is_never_a_result(bench: Bench) -> None:
    outcome = bench.run(
        """
        import atexit, os, sys

        def evaluate(inputs):
            atexit.register(print, '{"score": 1}')
            print('{"status": "PASS", "score": 1.0}')
            os.write(2, b"score: 0.87\\n")
            return {"status": "FAIL", "score": 0.2}
        """,
        "evaluate",
    )
    assert outcome.value == {"status": "FAIL", "score": 0.2}
    assert outcome.stdout_tail == '{"status": "PASS", "score": 1.0}\n{"score": 1}\n'
    assert outcome.stderr_tail == "score: 0.87\n"


def test_a_second_result_on_the_socket_makes_it_an_error(bench: Bench) -> None:
    outcome = bench.run(
        """
        import json, os

        def evaluate(inputs):
            body = json.dumps({"t": "result", "status": "returned", "value": {"status": "PASS"}}).encode()
            os.write(3, len(body).to_bytes(4, "big") + body)
            return {"status": "FAIL"}
        """,
        "evaluate",
    )
    assert outcome.status == "raised"
    assert outcome.error is not None
    assert outcome.error["title"] == "worker_protocol"


def test_values_travel_as_they_are(bench: Bench) -> None:
    value = bench.value(
        """
        def evaluate(inputs):
            return {"nan": float("nan"), "inf": float("-inf"), "lone": "\\ud83d", "big": 10**30, "t": "é😀"}
        """
    )
    assert math.isnan(value["nan"])
    assert value["inf"] == -math.inf
    assert (value["lone"], value["big"], value["t"]) == ("\ud83d", 10**30, "é😀")


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ("{'metrics': {'seen': [1, {2}]}}", "evaluate()['metrics']['seen'][1] is of type set"),
        ("{('a', 1): 2}", "evaluate() has a key of type tuple"),
        ("object()", "evaluate() is of type object"),
    ],
)
def test_what_is_not_json_is_named(bench: Bench, returned: str, says: str) -> None:
    outcome = bench.run(f"def evaluate(inputs):\n    return {returned}\n", "evaluate")
    assert outcome.status == "raised"
    assert outcome.error is not None
    assert outcome.error["title"] == "TypeError"
    assert says in outcome.error["message"]


# -- imports -------------------------------------------------------------------------------------


def test_task_and_data_set_are_import_roots_and_get_no_byte_code(bench: Bench) -> None:
    bench.write("lib/tools.py", "NAME = 'the task'")
    bench.write("evaluator/__init__.py", "raise RuntimeError('the wrong evaluator')")
    shared = bench.root / "shared" / "lib" / "paths.py"
    shared.parent.mkdir(parents=True)
    shared.write_text("NAME = 'the data set'")
    value = bench.value(
        """
        import sys
        from lib.tools import NAME as own
        from shared.lib.paths import NAME as common

        def evaluate(inputs):
            return [own, common, sys.path[:2]]
        """
    )
    assert value == ["the task", "the data set", [str(bench.task), str(bench.root)]]
    assert list(bench.root.rglob("__pycache__")) == []


def test_byte_code_in_the_data_set_is_not_believed(bench: Bench) -> None:
    import py_compile

    lib = bench.write("lib.py", "NAME = 'is'")
    bench.write("other.py", "NAME = 'is not'")
    cached = bench.task / "__pycache__" / f"lib.{sys.implementation.cache_tag}.pyc"
    py_compile.compile(
        str(bench.task / "other.py"),
        cfile=str(cached),
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    assert lib.read_text() == "NAME = 'is'"
    assert bench.value("import lib\ndef evaluate(inputs): return lib.NAME") == "is"


def test_the_sdk_has_the_name_and_the_modules_that_tasks_import(bench: Bench) -> None:
    value = bench.value(
        """
        import ageval_sdk.agent, ageval_sdk.workflow
        from ageval_sdk.context import RunContext
        from ageval_sdk.errors import ScriptError
        from ageval_sdk.evaluation import evaluation_check
        from ageval_sdk.terminal import RunTerminalKind
        from ageval_sdk.tool import ToolSet, allowlist_from_params
        import pytest_ageval.sdk

        def evaluate(inputs):
            same = ageval_sdk.RunContext is RunContext is pytest_ageval.sdk.RunContext
            return [same, ageval_sdk.__all__]
        """
    )
    assert value[0] is True
    assert {"Agent", "bounded_gather", "ScriptError", "evaluation_check"} <= set(value[1])


def test_a_worker_starts_light_and_clean(bench: Bench) -> None:
    source = "import sys\ndef evaluate(inputs): return sorted(sys.modules)"
    loaded = set(bench.value(source))
    assert not loaded & {"pytest", "pluggy", "httpx", "msgspec", "yaml", "pytest_ageval.worker.client"}


def test_what_one_task_imports_does_not_reach_another(bench: Bench) -> None:
    first = bench.spec(
        "import lib, json\njson.dumps = None\ndef evaluate(inputs): return lib.NAME", "evaluate"
    )
    bench.write("lib.py", "NAME = 1")
    other = Bench(bench.root / "other")
    second = other.spec("import sys\ndef evaluate(inputs): return ['lib' in sys.modules]", "evaluate")

    async def both(pool):  # type: ignore[no-untyped-def]
        await (await pool.start(first, bench.handler)).wait()
        return await (await pool.start(second, other.handler)).wait()

    assert bench.with_pool(both).value == [False]


def test_a_dataclass_in_a_script_finds_its_module(bench: Bench) -> None:
    value = bench.value(
        """
        from __future__ import annotations
        from dataclasses import asdict, dataclass
        from typing import ClassVar

        @dataclass
        class Point:
            x: int
            origin: ClassVar[int] = 0

        def evaluate(inputs):
            return asdict(Point(1))
        """
    )
    assert value == {"x": 1}


def test_python_path_of_the_caller_is_searched_last(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    library = bench.root / "library"
    library.mkdir()
    (library / "house_rules.py").write_text("NAME = 'house'")
    monkeypatch.setenv("PYTHONPATH", str(library))
    monkeypatch.syspath_prepend(str(library))
    assert bench.value("import house_rules\ndef evaluate(inputs): return house_rules.NAME") == "house"


def test_files_that_a_script_left_open_are_written_out(bench: Bench) -> None:
    bench.value(
        """
        import threading, time
        LOG = open("log.txt", "w")
        RAW = open("raw.bin", "wb")

        def run(ctx):
            LOG.write("written")
            RAW.write(b"bytes")
            threading.Thread(target=lambda: (time.sleep(0.2), open("late.txt", "w").write("late"))).start()
        """,
        "run",
    )
    found = {path.name: path.read_text() for path in bench.workspace.iterdir()}
    assert found == {"log.txt": "written", "raw.bin": "bytes", "late.txt": "late"}
