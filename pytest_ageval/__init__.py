"""pytest-ageval: an agent evaluation is a pytest test.

Everything public is listed here and imported when first used, since pytest loads this package in
every run of an environment in which it is installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pytest_ageval._version import __version__

if TYPE_CHECKING:
    from pytest_ageval.attempt import Attempt, Identity, Outcome
    from pytest_ageval.box import Box, BoxSpec, ExecResult, StdioTransport
    from pytest_ageval.errors import (
        AgevalError,
        BoxError,
        ConfigError,
        EvaluatorError,
        ExecutorError,
        TaskFailed,
    )
    from pytest_ageval.executor import AgentResult, Executor, ModelSpec, Session, ToolCall, Usage

_WHERE = {
    "AgentResult": "executor",
    "AgevalError": "errors",
    "Attempt": "attempt",
    "Box": "box",
    "BoxError": "errors",
    "BoxSpec": "box",
    "ConfigError": "errors",
    "EvaluatorError": "errors",
    "ExecResult": "box",
    "Executor": "executor",
    "ExecutorError": "errors",
    "Identity": "attempt",
    "ModelSpec": "executor",
    "Outcome": "attempt",
    "Session": "executor",
    "StdioTransport": "box",
    "TaskFailed": "errors",
    "ToolCall": "executor",
    "Usage": "executor",
}

__all__ = [
    "AgentResult",
    "AgevalError",
    "Attempt",
    "Box",
    "BoxError",
    "BoxSpec",
    "ConfigError",
    "EvaluatorError",
    "ExecResult",
    "Executor",
    "ExecutorError",
    "Identity",
    "ModelSpec",
    "Outcome",
    "Session",
    "StdioTransport",
    "TaskFailed",
    "ToolCall",
    "Usage",
    "__version__",
]


def __getattr__(name: str) -> Any:
    try:
        module = _WHERE[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return __all__
