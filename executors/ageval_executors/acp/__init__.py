"""Coding agents over the Agent Client Protocol (ACP), running inside the box.

Importing this package does not import the protocol library (extra ``acp``); opening a session does.
"""

from __future__ import annotations

from ageval_executors.acp.executor import AcpExecutor

__all__ = ["AcpExecutor"]
