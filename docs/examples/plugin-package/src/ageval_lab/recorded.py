"""An agent that answers from a file: a baseline that costs nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from pytest_ageval.errors import ExecutorError
from pytest_ageval.executor import AgentResult, Executor


class RecordedOptions(msgspec.Struct, forbid_unknown_fields=True):
    """`answers`: a JSON Lines file in the task's directory, each line the text of one answer."""

    answers: str = "recorded.jsonl"


class RecordedExecutor(Executor):
    """The lines of the file, one for each prompt of a session."""

    kind = "recorded"
    Options = RecordedOptions

    async def open(self) -> None:
        """Read the file. Raises ExecutorError ``recording_missing``."""
        path = Path(self.session.task_root, self.options.answers)
        if not path.is_file():
            raise ExecutorError("recording_missing", f"{path} is not there; write one JSON string a line")
        self._answers = iter([json.loads(line) for line in path.read_text("utf-8").splitlines()])

    async def invoke(
        self,
        prompt: str,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
    ) -> AgentResult:
        """The next line; an agent that has nothing more to say says nothing."""
        text = next(self._answers, "")
        self.session.emit({"kind": "text", "channel": "assistant", "text": text})
        return AgentResult(text=text)
