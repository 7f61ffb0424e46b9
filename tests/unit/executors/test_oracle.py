"""`oracle` plays the task's own solution in a real box; `nop` does nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from http_kit import ADD, Told, ask

from ageval_boxes.local import LocalBox
from ageval_executors.nop import NopExecutor
from ageval_executors.oracle import OracleExecutor
from pytest_ageval.box import SOLUTION, WORKSPACE, BoxSpec
from pytest_ageval.errors import ExecutorError

NO_FIGURES = {"source": "none", "unavailable": "not_reported"}


def play(tmp_path: Path, files: dict[str, str], work, isolation: str = "none"):
    """Run `work(make, box)` with a box; `make(role, actor)` gives an opened oracle of the task."""
    task = tmp_path / "task"
    for name, text in files.items():
        path = task / "solution" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    spec = BoxSpec("local", "att-1", "t", tmp_path / "box", options={"isolation": isolation})

    async def run():
        box = LocalBox(spec)
        try:
            await box.start()

            async def make(role: str = "solver", actor: str | None = None, **more):
                executor = OracleExecutor(
                    Told(role=role, actor=actor, box=box, task_root=task, **more).session
                )
                await executor.open()
                return executor

            return await work(make, box)
        finally:
            await box.stop()

    return asyncio.run(run())


async def listing(box: LocalBox) -> str:
    found = await box.exec(["sh", "-c", f"cat out.txt; ls {box.visible_path(SOLUTION)}"], cwd=WORKSPACE)
    return found.stdout


def test_solve_sh_runs_once_and_leaves_nothing_of_the_solution(tmp_path):
    files = {"solve.sh": 'cat "$SOLUTION_DIR/gold.txt" >> out.txt; echo solved', "gold.txt": "42\n"}

    async def work(make, box):
        first = await (await make()).invoke("do it")
        again = await (await make("reviewer")).invoke("do it")
        return first, again, await listing(box)

    first, again, left = play(tmp_path, files, work)
    assert (first.ok, first.text) == (True, "solved\n")
    assert (again.ok, again.text) == (True, "")
    assert left == "42\n"
    assert first.usage.as_dict() == NO_FIGURES


def test_a_solve_sh_that_fails_is_an_error_and_not_an_answer(tmp_path):
    async def work(make, box):
        return await (await make()).invoke("do it"), await listing(box)

    files = {"solve.sh": "echo half; echo no such tool >&2; touch out.txt; exit 3"}
    result, left = play(tmp_path, files, work)
    assert (result.ok, result.error, result.infrastructure) == (False, "oracle_failed", True)
    assert (result.transient, result.repeatable) == (False, False)
    told = "solution/solve.sh ended with exit code 3: no such tool"
    assert result.metadata == {"exit_code": 3, "message": told}
    assert left == ""


def test_solve_sh_ends_when_the_time_of_the_phase_is_up(tmp_path):
    async def work(make, box):
        executor = await make(remaining=lambda: 0.3)
        return await executor.invoke("do it")

    result = play(tmp_path, {"solve.sh": "sleep 60"}, work)
    assert (result.ok, result.status) == (False, "timeout")


def test_a_cancelled_solve_sh_leaves_nothing_of_the_solution(tmp_path):
    async def work(make, box):
        turn = asyncio.ensure_future((await make()).invoke("do it"))
        for _ in range(200):
            await asyncio.sleep(0.02)
            if (await box.exec(["test", "-e", "out.txt"], cwd=WORKSPACE)).ok:
                break
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        return await listing(box)

    assert play(tmp_path, {"solve.sh": "echo 1 > out.txt; sleep 60"}, work) == "1\n"


TURNS = """\
solver:
  - text: first
  - run: scripts/patch.sh
  - run: echo inline > out.txt
    text: said
  - text: calling
    tool_calls: [{name: add, arguments: {a: 1}}, {name: done}]
solver/alice:
  - text: I am Alice
"*":
  - text: anyone
"""


def test_turns_are_played_each_session_from_its_own_start(tmp_path):
    files = {"turns.yaml": TURNS, "scripts/patch.sh": "echo patched $(cat $SOLUTION_DIR/gold)", "gold": "42"}

    async def work(make, box):
        solver = await make()
        turns = [await solver.invoke("x", tools=[ADD]) for _ in range(5)]
        others = [
            (await (await make(*who)).invoke("x")).text
            for who in (("solver", "alice"), ("solver", "bob"), ("critic", None))
        ]
        return turns, others, await listing(box)

    turns, others, left = play(tmp_path, files, work)
    assert [turn.text for turn in turns] == ["first", "patched 42\n", "said", "calling", ""]
    assert [(c.name, dict(c.arguments)) for c in turns[3].tool_calls] == [("add", {"a": 1}), ("done", {})]
    assert len({call.id for call in turns[3].tool_calls}) == 2
    assert others == ["I am Alice", "first", "anyone"]
    assert left == "inline\n"


def test_scripts_of_two_sessions_do_not_take_the_solution_from_each_other(tmp_path):
    script = "sleep 0.2; cat $SOLUTION_DIR/gold"
    files = {"turns.yaml": "'*': [{run: slow.sh}]", "slow.sh": script, "gold": "42"}

    async def work(make, box):
        executors = [await make(f"r{n}") for n in range(3)]
        return await asyncio.gather(*(executor.invoke("x") for executor in executors))

    assert [result.text for result in play(tmp_path, files, work)] == ["42"] * 3


def test_in_an_isolated_box_the_paths_are_real(tmp_path):
    async def work(make, box):
        if box.visible_path(SOLUTION) != SOLUTION:
            pytest.skip("no bubblewrap here")
        return await (await make()).invoke("do it")

    assert play(tmp_path, {"solve.sh": "echo $SOLUTION_DIR $PWD"}, work, "auto").text == (
        "/attempt/solution /attempt/workspace\n"
    )


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("solver: [{txt: hi}]", "unknown field `txt`"),
        ("solver: {text: hi}", "Expected `array`"),
        ("solver: []\nsolver: []", "'solver' stands twice"),
        ("solver: [", "turns.yaml"),
        ("solver: [!!python/object/apply:os.getcwd []]", "could not determine a constructor"),
        ("", "Expected `object`"),
    ],
)
def test_a_turns_file_that_is_wrong_names_the_fault(tmp_path, script, message):
    async def work(make, box):
        await make()

    with pytest.raises(ExecutorError, match="oracle_invalid") as caught:
        play(tmp_path, {"turns.yaml": script}, work)
    assert message in caught.value.message


def test_a_task_without_a_solution_names_what_was_looked_for(tmp_path):
    async def work(make, box):
        await make()

    with pytest.raises(ExecutorError, match="oracle_missing") as caught:
        play(tmp_path, {}, work)
    assert "solution/turns.yaml" in caught.value.message
    assert "solution/solve.sh" in caught.value.message


def test_nop_says_and_calls_nothing():
    told = Told()
    result = ask(NopExecutor, told, tools=[ADD], messages=[{"role": "user", "content": "x"}])
    assert (result.ok, result.text, list(result.tool_calls), told.events) == (True, "", [], [])
    assert result.usage.as_dict() == NO_FIGURES
    assert NopExecutor.requires_box == frozenset()
