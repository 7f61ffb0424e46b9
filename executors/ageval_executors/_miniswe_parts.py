"""mini-swe-agent's loop with a model and an environment of ours. Imported by `miniswe.load` only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.exceptions import FormatError
from minisweagent.models.utils.actions_toolcall import (
    BASH_TOOL,
    format_toolcall_observation_messages,
    parse_toolcall_actions,
)

if TYPE_CHECKING:
    from ageval_executors.miniswe import _Thread
    from pytest_ageval.executor import AgentResult


class Agent(DefaultAgent):  # type: ignore[misc]
    """The loop; with `earlier` messages a run goes on after them instead of beginning anew."""

    messages: list[dict[str, Any]]

    def __init__(self, model: Any, env: Any, *, earlier: list[dict[str, Any]], **config: Any) -> None:
        super().__init__(model, env, **config)
        self._earlier = earlier

    def add_messages(self, *messages: dict[str, Any]) -> list[dict[str, Any]]:
        """As the package does; the first ones of a later run are the earlier ones, without its system."""
        if not self.messages and self._earlier:
            self.messages = list(self._earlier)
            messages = tuple(row for row in messages if row["role"] != "system")
        found: list[dict[str, Any]] = super().add_messages(*messages)
        return found

    def serialize(self, *extra_dicts: Any) -> dict[str, Any]:
        """Nothing: the record of the run is kept elsewhere, and the package asks for it at each step."""
        return {}


class Environment(LocalEnvironment):  # type: ignore[misc]
    """Runs the commands in the box; what marks the end of the task is the package's own rule."""

    def __init__(self, thread: _Thread, system: Mapping[str, str], config: Mapping[str, Any]) -> None:
        super().__init__(env=dict(config.get("env") or {}))
        self._thread = thread
        self._system = system

    def execute(self, action: dict[str, Any], cwd: str = "", **more: Any) -> dict[str, Any]:
        """One command; raises the package's ``Submitted`` when it ends the task."""
        output = self._thread.execute(action, self.config.env)
        self._check_finished(output)
        return output

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """The box's system. The package would add this process's environment, keys included."""
        return {**self.config.model_dump(), **self._system, **kwargs}


class Model:
    """Calls the model over HTTP and gives the loop its messages in the package's form."""

    def __init__(self, thread: _Thread, config: Mapping[str, Any]) -> None:
        self.config = config
        self._thread = thread

    def query(self, messages: list[dict[str, Any]], **kwargs: Any) -> dict[str, Any]:
        """The answer with its actions; raises the package's ``FormatError`` when it has none."""
        result = self._thread.ask(messages, BASH_TOOL)
        calls = _calls(result)
        try:
            actions = parse_toolcall_actions(
                [SimpleNamespace(id=i, function=SimpleNamespace(name=n, arguments=a)) for i, n, a in calls],
                format_error_template=self.config["format_error_template"],
                template_kwargs={"finish_reason": result.stop_reason},
            )
        except FormatError as error:
            # The answer that was refused stays in the conversation: the true history is what is sent.
            said = [_message(result, calls)] if result.text or calls else []
            said += [{"role": "tool", "tool_call_id": i, "content": "not executed"} for i, _, _ in calls]
            self._thread.refuse([call_id for call_id, _, _ in calls])
            error.messages = (*said, *error.messages)
            raise
        return {**_message(result, calls), "extra": {"actions": actions, "cost": 0.0}}

    def format_message(self, **kwargs: Any) -> dict[str, Any]:
        """A message as it is."""
        return kwargs

    def format_observation_messages(
        self, message: dict[str, Any], outputs: list[dict[str, Any]], template_vars: Any = None
    ) -> list[dict[str, Any]]:
        """The outputs of commands as results of the tool."""
        found: list[dict[str, Any]] = format_toolcall_observation_messages(
            actions=message["extra"]["actions"],
            outputs=outputs,
            observation_template=self.config["observation_template"],
            template_vars=template_vars,
        )
        return found

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """Nothing of ours is in the templates."""
        return {}

    def serialize(self) -> dict[str, Any]:
        """Nothing: see `Agent.serialize`."""
        return {}


def _calls(result: AgentResult) -> list[tuple[str, str, str]]:
    """(id, name, arguments as they were written) of each call."""
    broken = result.metadata.get("invalid_arguments") or {}
    return [
        (call.id, call.name, broken.get(call.id) or json.dumps(dict(call.arguments), ensure_ascii=False))
        for call in result.tool_calls
    ]


def _message(result: AgentResult, calls: list[tuple[str, str, str]]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": result.text or None}
    if calls:
        message["tool_calls"] = [
            {"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls
        ]
    return message
