"""Which items may be started before their turn, and why another one may not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_ageval.collection import TaskItem
from pytest_ageval.known_plugins import KNOWN, unknown_module

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pytest

#: Fixtures that the attempt is made of.
OURS = ("ageval_variant", "attempt", "box", "executor")

#: Hooks by which somebody could skip the item, or prepare something for it.
HOOKS = ("pytest_runtest_protocol", "pytest_runtest_setup", "pytest_runtest_call", "pytest_pyfunc_call")

#: Options with which items are to be looked at one by one.
ONE_BY_ONE = ("usepdb", "trace", "setupplan", "setuponly", "setupshow")


class Eligibility:
    """Answers for the items of one session."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self._listeners: dict[int, str | None] = {}

    def why_not(self, item: pytest.Item) -> str | None:
        """Why `item` has to wait for its turn; None when it need not."""
        if not isinstance(item, TaskItem):
            return "not an attempt"
        return self._session() or self._marks(item) or self._fixtures(item) or self._hooks(item)

    def _session(self) -> str | None:
        used = [name for name in ONE_BY_ONE if self.config.getoption(name, False)]
        if used:
            return f"the option {used[0]}"
        for source in (self.config.getoption("timeout", None), self._ini("timeout")):
            if source and float(source) > 0:
                return "pytest-timeout measures the item in its turn"
        return None

    def _ini(self, name: str) -> Any:
        try:
            return self.config.getini(name)
        except (KeyError, ValueError):
            return None

    def _marks(self, item: pytest.Item) -> str | None:
        for mark in item.iter_markers():
            if mark.name in ("skip", "skipif", "timeout", "flaky", "repeat"):
                return f"the mark {mark.name}"
            if mark.name == "xfail" and (mark.args or not mark.kwargs.get("run", True)):
                return "xfail with a condition, or without a run"
        return None

    def _fixtures(self, item: TaskItem) -> str | None:
        """The definitions that count are the last ones of each name."""
        info = getattr(item, "_fixtureinfo", None)
        found: Mapping[str, Sequence[Any]] | None = getattr(info, "name2fixturedefs", None)
        if found is None:
            return "this pytest does not say which fixtures an item has"
        for name, definitions in found.items():
            module = str(getattr(getattr(definitions[-1], "func", None), "__module__", ""))
            if name in OURS and not module.startswith("pytest_ageval."):
                return f"the fixture {name} is overridden in {module}"
            if not module.startswith(KNOWN):
                return f"the fixture {name} of {module}"
        return None

    def _hooks(self, item: pytest.Item) -> str | None:
        hooks = item.ihook
        if id(hooks) not in self._listeners:
            self._listeners[id(hooks)] = _listener(hooks)
        return self._listeners[id(hooks)]


def _listener(hooks: Any) -> str | None:
    for name in HOOKS:
        module = unknown_module(hooks, name)
        if module is not None:
            return f"the hook {name} of {module}"
    return None
