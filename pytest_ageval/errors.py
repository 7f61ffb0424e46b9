"""What can go wrong, and which outcome it becomes.

`TaskFailed` is the only exception that means FAIL: the task's evaluator looked at the work and
refused it. Every other exception of an attempt means ERROR: the attempt has no verdict.
"""

from __future__ import annotations

from typing import Any


class AgevalError(Exception):
    """An attempt (or a configuration) has no verdict, and why.

    `phase` is one of ``lock``, ``environment``, ``run``, ``evaluate``, ``record``, ``cleanup`` or
    None; `title` is a stable token or an exception class name for machines; `message` is for people;
    `detail` is longer text (a traceback of the task's own script, the last lines of stderr).
    """

    phase: str | None = None

    def __init__(
        self, title: str, message: str = "", *, phase: str | None = None, detail: str | None = None
    ) -> None:
        self.title = title
        self.message = message
        self.detail = detail
        if phase is not None:
            self.phase = phase
        super().__init__(title, message)

    def __str__(self) -> str:
        text = f"{self.title}: {self.message}" if self.message else self.title
        return f"{text}\n{self.detail}" if self.detail else text

    def as_dict(self) -> dict[str, Any]:
        """The ``error`` object of result.json."""
        found = {"phase": self.phase, "title": self.title, "message": self.message}
        return found if self.detail is None else {**found, "detail": self.detail}


class ConfigError(AgevalError):
    """A file or an option is not acceptable; says where, what was found, and what is allowed.

    `file` is the path as the user knows it; `pointer` is an RFC 6901 JSON pointer into it
    (``/limits/wall_time_seconds``); `line` counts from 1.
    """

    phase = "lock"

    def __init__(
        self,
        code: str,
        message: str,
        *,
        file: str | None = None,
        pointer: str | None = None,
        line: int | None = None,
        hint: str | None = None,
    ) -> None:
        self.code = code
        self.file = file
        self.pointer = pointer
        self.line = line
        self.hint = hint
        super().__init__(code, message)

    @property
    def location(self) -> str:
        """``tasks/a/task.yaml:12:/limits`` with the parts that are known."""
        line = None if self.line is None else str(self.line)
        return ":".join(part for part in (self.file, line, self.pointer) if part)

    def __str__(self) -> str:
        where = f" ({self.location})" if self.location else ""
        hint = f"\n  {self.hint}" if self.hint else ""
        return f"{self.code}: {self.message}{where}{hint}"


class BoxError(AgevalError):
    """The box could not be opened, used or closed. `title` is the failure kind."""

    phase = "environment"


class ExecutorError(AgevalError):
    """The agent or its provider could not be used: infrastructure, never the agent's answer."""

    phase = "run"


class EvaluatorError(AgevalError):
    """The evaluator crashed, timed out, or returned something that is not a verdict."""

    phase = "evaluate"


class ScriptFault(AgevalError):
    """An exception inside the task's own run.py or evaluator.py; `detail` is its traceback."""


class TaskFailed(AssertionError):
    """The evaluator's verdict is FAIL.

    `score` is the evaluator's score or None, `failed_checks` the ids of the checks that did not
    pass, `evidence` the attempt directory.
    """

    # A short name in pytest's summary line, as pytest does for its own outcomes.
    __module__ = "builtins"

    def __init__(
        self,
        message: str,
        *,
        score: float | None = None,
        failed_checks: tuple[str, ...] = (),
        evidence: str = "",
    ) -> None:
        super().__init__(message)
        self.score = score
        self.failed_checks = failed_checks
        self.evidence = evidence
