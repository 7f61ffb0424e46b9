"""A scripted model: test a task with the real agent, offline, at no cost. See `ScriptedModel`."""

from pytest_ageval.testing.scripted_model.model import AFTER_END, ScriptedModel
from pytest_ageval.testing.scripted_model.request import Item, Request, Tool
from pytest_ageval.testing.scripted_model.script import ASIDE, Choice, InOrder, When
from pytest_ageval.testing.scripted_model.tools import ScriptError
from pytest_ageval.testing.scripted_model.turns import (
    NO_USAGE,
    Answer,
    Calls,
    Cut,
    Delay,
    Fault,
    Garbage,
    Hang,
    HttpError,
    Malformed,
    Shell,
    StreamError,
    Text,
    Tokens,
    ToolCall,
    Turn,
    Write,
)

__all__ = [
    "AFTER_END",
    "ASIDE",
    "NO_USAGE",
    "Answer",
    "Calls",
    "Choice",
    "Cut",
    "Delay",
    "Fault",
    "Garbage",
    "Hang",
    "HttpError",
    "InOrder",
    "Item",
    "Malformed",
    "Request",
    "ScriptError",
    "ScriptedModel",
    "Shell",
    "StreamError",
    "Text",
    "Tokens",
    "Tool",
    "ToolCall",
    "Turn",
    "When",
    "Write",
]
