"""The executor ``openhands``: the OpenHands SDK, running in the box."""

from ageval_executors.openhands.executor import OpenHandsExecutor, OpenHandsOptions

__all__ = ["OpenHandsExecutor", "OpenHandsOptions"]
