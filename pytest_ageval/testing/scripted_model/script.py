"""Choosing the turn for a request: by the step of its own conversation, without state."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from pytest_ageval.testing.scripted_model.request import Request
from pytest_ageval.testing.scripted_model.turns import (
    Answer,
    Delay,
    Fault,
    Text,
    Turn,
    needs_tools,
)

#: What a request without tools gets where the script calls one (agents ask for titles that way).
ASIDE = Text("A scripted aside.", pieces=1)


@dataclass(frozen=True)
class When:
    """These turns, from the first on, if the user's last words match `pattern` (``re.search``)."""

    pattern: str
    turns: Sequence[Turn]


@dataclass(slots=True)
class Step:
    """One answer with what comes before it: a pause each time, faults for the first requests."""

    delay: float = 0.0
    faults: list[Fault] = field(default_factory=list)
    answer: Answer | None = None

    def turn(self, attempt: int) -> Answer | Fault | None:
        """What the request number `attempt` (from 0) for this step gets."""
        for fault in self.faults:
            if fault.times is None or attempt < fault.times:
                return fault
            attempt -= fault.times
        return self.answer


def split_steps(turns: Iterable[Turn]) -> list[Step]:
    """Group turns into steps: each ends with its answer."""
    steps = [Step()]
    for turn in turns:
        if isinstance(turn, Delay):
            steps[-1].delay += turn.seconds
        elif isinstance(turn, Fault):
            steps[-1].faults.append(turn)
        else:
            steps[-1].answer = turn
            steps.append(Step())
    return steps if steps[-1].faults else steps[:-1]


@dataclass(frozen=True, slots=True)
class Choice:
    """What a request gets. `scripted` is False for an aside and after the script's end."""

    turn: Answer | Fault
    delay: float = 0.0
    scripted: bool = True


class Script:
    """The turns of a `ScriptedModel`. Safe to use from many threads."""

    def __init__(self, turns: Sequence[Turn | When], after_end: Answer | Fault) -> None:
        self._rules = [
            (re.compile(row.pattern, re.DOTALL), split_steps(row.turns))
            for row in turns
            if isinstance(row, When)
        ]
        self._steps = split_steps(row for row in turns if not isinstance(row, When))
        self._after_end = after_end
        self._attempts: Counter[tuple[str, ...]] = Counter()
        self._lock = threading.Lock()

    def choose(self, request: Request) -> Choice:
        """The turn for `request`; counts the request where the step begins with faults."""
        steps, index = self._steps, request.step
        for pattern, found in self._rules:
            if pattern.search(request.prompt):
                steps, index = found, request.exchange_step
                break
        if index >= len(steps):
            return Choice(self._after_end, scripted=False)
        step = steps[index]
        if needs_tools(step.answer) and not request.offered:
            return Choice(ASIDE, scripted=False)
        attempt = 0
        if step.faults:
            with self._lock:
                attempt = self._attempts[request.conversation]
                self._attempts[request.conversation] += 1
        turn = step.turn(attempt)
        if turn is None:
            return Choice(self._after_end, step.delay, scripted=False)
        return Choice(turn, step.delay)


class InOrder:
    """Hands turns out one a request, in the order of arrival, whoever asks.

    Use it as ``ScriptedModel(by=InOrder([...]))``. Requests without tools take a turn too.
    A `Delay` pauses the turn that follows it.
    """

    def __init__(self, turns: Iterable[Turn]) -> None:
        self._steps = _singles(turns)
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Choice | None:
        """The next turn, or None when all are gone."""
        with self._lock:
            return self._steps.pop(0) if self._steps else None


def _singles(turns: Iterable[Turn]) -> list[Choice]:
    found: list[Choice] = []
    delay = 0.0
    for turn in turns:
        if isinstance(turn, Delay):
            delay += turn.seconds
            continue
        times = turn.times if isinstance(turn, Fault) else 1
        found += [Choice(turn, delay)] * (times or 1)
        delay = 0.0
    return found


#: Full control: a turn for each request. None leaves the request to the script's turns.
Chooser = Callable[[Request], "Answer | Fault | Choice | None"]
