"""What a task's ``run.py`` and ``evaluator.py`` import.

Inside a worker this package is also called ``ageval_sdk``, with the same submodules, so that existing
tasks run unchanged. An editor does not know that name; tasks written for this project import
``pytest_ageval.sdk`` and get its types. Everything public is in ``__all__``:

    from pytest_ageval.sdk import RunContext, RunTerminal

    async def run(ctx: RunContext) -> RunTerminal:
        async with ctx.agent.session("solver") as session:
            reply = await session.invoke("What is 2 + 2?")
        ctx.publish_json("answer", {"text": reply["text"]})
        return RunTerminal.completed()

An evaluator is ``def evaluate(inputs)`` (or ``async def``) and returns a dict with ``status`` "PASS"
or "FAIL", ``score``, ``metrics`` and, if it likes, ``checks``. `inputs` has ``artifacts`` (name to
path), ``artifacts_dir``, ``workspace_dir``, ``evaluation_dir``, ``inputs``, ``parameters``, ``agent``
(an `Agent`, for judges) and ``scoring`` (a `Scoring`).

The package imports nothing outside the standard library, and no other part of this project but the
description of the worker's frames.
"""

from __future__ import annotations

from pytest_ageval._version import __version__
from pytest_ageval.sdk.agent import Agent, AgentSession
from pytest_ageval.sdk.context import RunContext, RunParameterView, RunScope
from pytest_ageval.sdk.errors import ScriptError
from pytest_ageval.sdk.evaluation import evaluation_check
from pytest_ageval.sdk.scoring import Scoring, ScoringExecResult
from pytest_ageval.sdk.terminal import RunTerminal, RunTerminalKind
from pytest_ageval.sdk.tool import AllowList, CallLimit, Tool, ToolSet
from pytest_ageval.sdk.workflow import bounded_gather, collect_results, first_success

__all__ = [
    "Agent",
    "AgentSession",
    "AllowList",
    "CallLimit",
    "RunContext",
    "RunParameterView",
    "RunScope",
    "RunTerminal",
    "RunTerminalKind",
    "Scoring",
    "ScoringExecResult",
    "ScriptError",
    "Tool",
    "ToolSet",
    "__version__",
    "bounded_gather",
    "collect_results",
    "evaluation_check",
    "first_success",
]
