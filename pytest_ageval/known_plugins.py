"""Packages whose hooks and fixtures are known to do the same for every task, or nothing.

What another plugin does with a single item is not known, so where it has a say, items are treated one by one.
"""

from __future__ import annotations

from typing import Any

#: Beginnings of module names. What these do depends on the session, or on marks that no task has
#: (`pytest_ageval.names.RESERVED_MARKS`).
KNOWN = (
    *("_pytest.", "pytest_ageval.", "xdist.", "pytest_html.", "pytest_timeout", "pytest_rerunfailures"),
    *("pytest_randomly", "pytest_jsonreport."),
    *("pytest_asyncio.", "pytest_repeat", "anyio.", "pytest_benchmark.", "pytest_cov.", "_hypothesis"),
)


def unknown_module(hooks: Any, name: str) -> str | None:
    """The module of an implementation of the hook `name` among `hooks` (a relay) that is not known."""
    caller = getattr(hooks, name)
    if not hasattr(caller, "get_hookimpls"):  # before pytest 9, hooks that take paths are wrapped
        caller = caller.__wrapped__
    modules = (str(implementation.function.__module__) for implementation in caller.get_hookimpls())
    return next((module for module in modules if not module.startswith(KNOWN)), None)
