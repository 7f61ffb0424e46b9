"""The measured work as tasks of Inspect: it imports this file in its own environment."""

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, Target, accuracy, scorer
from inspect_ai.solver import Generate, Solver, TaskState, generate, solver
from inspect_ai.util import sandbox


@solver
def publish() -> Solver:
    """What run.py does: one JSON file. No command is started."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        await sandbox().write_file("answer.json", '{"n": 1}')
        return state

    return solve


@solver
def publish_by_command() -> Solver:
    """The same in a process of its own, as run.py is."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        done = await sandbox().exec(["sh", "-c", "echo '{\"n\": 1}' > answer.json"])
        assert done.success, done.stderr
        return state

    return solve


@scorer(metrics=[accuracy()])
def published(command: bool):
    """What evaluator.py does."""

    async def score(state: TaskState, target: Target) -> Score:
        if command:
            text = (await sandbox().exec(["cat", "answer.json"])).stdout
        else:
            text = await sandbox().read_file("answer.json")
        return Score(value=float('"n"' in text))

    return score


@scorer(metrics=[accuracy()])
def said(text: str):
    """The model's last word."""

    async def score(state: TaskState, target: Target) -> Score:
        return Score(value=float(text in state.output.completion))

    return score


@task
def trivial(attempts: int, command: bool = False) -> Task:
    """One sample an attempt, in the local sandbox, without a call of a model."""
    samples = [Sample(id=f"task-{n:05d}", input="Nothing to do.") for n in range(attempts)]
    work = publish_by_command() if command else publish()
    return Task(dataset=samples, solver=work, scorer=published(command), sandbox="local")


@task
def asking(attempts: int) -> Task:
    """One call of the model an attempt."""
    samples = [Sample(id=f"task-{n:05d}", input="Say done.") for n in range(attempts)]
    return Task(dataset=samples, solver=generate(), scorer=said("done"), sandbox="local")
