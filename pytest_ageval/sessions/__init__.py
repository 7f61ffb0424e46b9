"""The parent's side of the agent sessions that run.py and evaluator.py open."""

from pytest_ageval.sessions.service import AgentService

__all__ = ["AgentService"]
