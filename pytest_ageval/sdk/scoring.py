"""Commands in the scoring box, for an evaluator: ``inputs["scoring"]``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_ageval.sdk import _channel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class ScoringExecResult:
    """What a command did. The streams are bounded; `truncated` says that something was left out."""

    exit_code: int
    stdout: str = ""
    stderr: str = ""
    truncated: bool = False

    @property
    def ok(self) -> bool:
        """The exit code is 0. This is not a verdict."""
        return self.exit_code == 0


class Scoring:
    """Runs commands where the work is judged; the evaluator itself runs on the host."""

    async def exec(
        self,
        name: str,
        argv: Sequence[str],
        timeout_sec: float | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ScoringExecResult:
        """Run `argv` in the scoring box `name` (``main`` where a task has only one).

        `timeout_sec` is seconds and never more than the phase has left. `env` maps a variable to the
        *name* of a secret of the configuration; the value stays with the parent.
        Raises TypeError when `argv` is not a list of texts, ValueError for a blank name, RuntimeError
        when the command could not be run at all (``unknown_evaluate_environment``,
        ``evaluate_timeout``, ...).
        """
        if not isinstance(name, str) or not name.strip():
            raise ValueError("the name of the scoring box must be text and not blank")
        if isinstance(argv, str) or not all(isinstance(part, str) for part in argv):
            raise TypeError("argv must be a list of texts")
        reply = await _channel.call(
            "scoring_exec",
            {
                "name": name.strip(),
                "argv": list(argv),
                "timeout_sec": timeout_sec,
                "env": {str(key): str(locator) for key, locator in (env or {}).items()},
            },
        )
        if reply.get("error"):
            raise RuntimeError(str(reply["error"]))
        return ScoringExecResult(
            exit_code=int(reply["exit_code"]),
            stdout=str(reply.get("stdout") or ""),
            stderr=str(reply.get("stderr") or ""),
            truncated=bool(reply.get("truncated")),
        )
