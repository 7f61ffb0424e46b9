"""The executor contract: the task's tools, the agent's own tools, and permission to use them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pytest_ageval.box import WORKSPACE
from pytest_ageval.executor import AgentResult, PermissionPolicy, ToolCall
from pytest_ageval.testing.executor_contract.base import Hooks, Play, Stage, gave_up
from pytest_ageval.testing.scripted_model import Calls, HttpError, Shell, Text, When
from pytest_ageval.testing.scripted_model import ToolCall as Call

#: A tool of a task.
ADD: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


#: The policy under which a hook is asked.
ASK = get_args(PermissionPolicy)[-1]


def answered(prompt: str, result: AgentResult, outputs: Sequence[str]) -> list[dict[str, Any]]:
    """The conversation after the task has executed the calls of `result`."""
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": _json(call.arguments)},
        }
        for call in result.tool_calls
    ]
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": output}
        for call, output in zip(result.tool_calls, outputs, strict=True)
    ]
    said = {"role": "assistant", "content": result.text or None, "tool_calls": calls}
    return [{"role": "user", "content": prompt}, said, *results]


def _json(value: Any) -> str:
    import json

    return json.dumps(dict(value))


class TaskTools(Hooks):
    """Tools that the task executes itself; skipped unless `takes_tools`."""

    def needs_task_tools(self) -> None:
        """Skip the test for an executor that does not pass them on."""
        self.needs(self.takes_tools, "does not take the task's tools")

    def test_call_of_a_tool(self, play: Play) -> None:
        """The model's call comes back with id, name and parsed arguments; its result goes to the model."""
        self.needs_task_tools()

        async def body(stage: Stage) -> None:
            first = await stage.invoke("add them", tools=[ADD])
            assert first.ok, first.error
            assert [(call.name, dict(call.arguments)) for call in first.tool_calls] == [
                ("add", {"a": 2, "b": 3})
            ]
            assert first.tool_calls[0].id
            assert stage.asked("add them")[-1].tools == ["add"]
            (event,) = stage.told.of_kind("tool")
            assert (event["function_name"], event["tool_call_id"]) == ("add", first.tool_calls[0].id)
            messages = answered("add them", first, ["5"])
            second = await stage.invoke("add them", tools=[ADD], messages=messages)
            assert second.ok, second.error
            assert second.text == "it is 5"
            assert stage.model.requests[-1].results == ["5"]

        play(body, Call("add", {"a": 2, "b": 3}), Text("it is 5"))

    def test_several_calls_of_one_answer(self, play: Play) -> None:
        """Calls of one answer keep their order and have ids of their own."""
        self.needs_task_tools()

        async def body(stage: Stage) -> None:
            result = await stage.invoke("add twice", tools=[ADD])
            assert [call.arguments["a"] for call in result.tool_calls] == [1, 3]
            assert len({call.id for call in result.tool_calls}) == 2
            messages = answered("add twice", result, ["3", "7"])
            assert (await stage.invoke("add twice", tools=[ADD], messages=messages)).text == "3 and 7"
            assert stage.model.requests[-1].results == ["3", "7"]

        calls = [Call("add", {"a": 1, "b": 2}), Call("add", {"a": 3, "b": 4})]
        play(body, Calls(calls, text="I add."), Text("3 and 7"))

    def test_arguments_that_cannot_be_parsed(self, play: Play) -> None:
        """Such a call is no failure: it has no arguments, what the model wrote is in the metadata."""
        self.needs_task_tools()
        broken = '{"a": 1, "b'

        async def body(stage: Stage) -> None:
            result = await stage.invoke("add badly", tools=[ADD])
            assert result.ok, result.error
            (call,) = result.tool_calls
            assert isinstance(call, ToolCall)
            assert dict(call.arguments) == {}
            assert broken in str(result.metadata)
            messages = answered("add badly", result, ["error: these are no arguments"])
            again = await stage.invoke("add badly", tools=[ADD], messages=messages)
            assert again.ok, again.error
            assert again.text == "I see"

        play(body, Call("add", broken), Text("I see"))

    def test_a_call_that_the_task_went_past(self, play: Play) -> None:
        """The next prompt works although a call was never answered."""
        self.needs_task_tools()

        async def body(stage: Stage) -> None:
            assert (await stage.invoke("add them", tools=[ADD])).tool_calls
            result = await stage.invoke("never mind", tools=[ADD])
            assert result.ok, result.error
            assert result.text == "fine"

        play(body, When("never mind", [Text("fine")]), When("add them", [Call("add", {"a": 1, "b": 2})]))


class OwnTools(Hooks):
    """Tools with which the agent works in the box; skipped unless `own_tools`."""

    def needs_own_tools(self) -> None:
        """Skip the test for an executor that has none."""
        self.needs(self.own_tools and self.box_class is not None, "has no tools of its own")

    async def file(self, stage: Stage, name: str) -> str | None:
        """The text of a file in the workspace; None: it is not there."""
        assert stage.box is not None
        done = await stage.box.exec(["cat", name], cwd=WORKSPACE)
        return done.stdout if done.ok else None

    def test_work_in_the_workspace(self, play: Play) -> None:
        """A command of the model runs in the workspace; call and result are told, and go to the model."""
        self.needs_own_tools()

        async def body(stage: Stage) -> None:
            result = await stage.invoke("make a file")
            assert result.ok, result.error
            assert result.text == "all done"
            assert await self.file(stage, "made.txt") == "made\n"
            assert any("wrote it" in text for text in stage.model.requests[-1].results)
            assert stage.told.of_kind("tool")
            assert stage.told.named("tool_call_started")
            assert stage.told.named("tool_call_completed")[-1]["outcome"] == "ok"

        play(body, Shell("echo made > made.txt && echo wrote it"), Text("all done"))

    def test_a_command_that_fails_is_not_the_end(self, play: Play) -> None:
        """The model gets the output of a command that failed, and the turn goes on."""
        self.needs_own_tools()

        async def body(stage: Stage) -> None:
            result = await stage.invoke("try it")
            assert result.ok, result.error
            assert result.text == "it failed"
            assert any("it hurts" in text for text in stage.model.requests[-1].results)

        play(body, Shell("echo it hurts >&2; exit 3"), Text("it failed"))

    def test_no_effect_is_repeated(self, play: Play) -> None:
        """When the provider fails after a command took effect, the turn is not `repeatable`, or it goes on
        where it stood when it is sent again."""
        self.needs_own_tools()

        async def body(stage: Stage) -> None:
            result = await stage.invoke("make a file")
            assert await self.file(stage, "made.txt") == "made\n"
            assert gave_up(result), result
            if result.repeatable:
                assert gave_up(await stage.invoke("make a file"))
                assert await self.file(stage, "made.txt") == "made\n"

        play(body, Shell("echo made >> made.txt"), HttpError(500, "internal error", times=None))


class Permissions(OwnTools):
    """The policy ``allow``, ``deny`` or that a hook is asked; skipped unless `asks_permission`."""

    _SCRIPT = (Shell("echo made > made.txt"), Text("all done"))

    def needs_permission(self) -> None:
        """Skip the test for an executor that never asks."""
        self.needs_own_tools()
        self.needs(self.asks_permission, "never asks for permission")

    def test_allow(self, play: Play) -> None:
        """Under ``allow`` nobody is asked."""
        self.needs_permission()

        async def body(stage: Stage) -> None:
            assert (await stage.invoke()).ok
            assert await self.file(stage, "made.txt") == "made\n"
            assert not stage.told.asked
            assert {row["policy"] for row in stage.told.of_kind("permission")} <= {"allow"}

        play(body, *self._SCRIPT, permission="allow")

    def test_deny(self, play: Play) -> None:
        """Under ``deny`` the command does not run; the request and its answer are told."""
        self.needs_permission()

        async def body(stage: Stage) -> None:
            result = await stage.invoke()
            assert not result.infrastructure, result.error
            assert await self.file(stage, "made.txt") is None
            rows = stage.told.of_kind("permission")
            assert rows
            assert not [row for row in rows if str(row.get("option_kind")).startswith("allow")]
            assert {row["policy"] for row in rows} == {"deny"}
            assert not stage.told.asked

        play(body, *self._SCRIPT, permission="deny")

    def test_hook_allows(self, play: Play) -> None:
        """Where a hook is asked, its choice among the agent's options is the answer."""
        self.needs_permission()

        async def body(stage: Stage) -> None:
            stage.told.answer = lambda request: next(
                row["optionId"] for row in request["options"] if row["kind"] == "allow_once"
            )
            result = await stage.invoke()
            assert result.ok, result.error
            assert await self.file(stage, "made.txt") == "made\n"
            assert len(stage.told.asked) == 1
            (row,) = stage.told.of_kind("permission")
            assert (row["policy"], row["outcome"]) == (ASK, "selected")

        play(body, *self._SCRIPT, permission=ASK)

    def test_hook_cancels(self, play: Play) -> None:
        """A hook that chooses nothing cancels the request: the command does not run."""
        self.needs_permission()

        async def body(stage: Stage) -> None:
            result = await stage.invoke()
            assert not result.infrastructure, result.error
            assert await self.file(stage, "made.txt") is None
            assert stage.told.asked
            assert {row["outcome"] for row in stage.told.of_kind("permission")} == {"cancelled"}

        play(body, *self._SCRIPT, permission=ASK)
