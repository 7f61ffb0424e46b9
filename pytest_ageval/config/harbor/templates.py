"""``${NAME}`` and ``${NAME:-default}`` in the ``env`` tables of a Harbor task: the whole value is one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_TEMPLATE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?\}", re.DOTALL)


def resolve(env: Mapping[str, str], lookup: Callable[[str], str | None]) -> dict[str, str]:
    """`env` with its templates filled in. KeyError with the name of a variable that is not set."""
    return {name: _value(value, lookup) for name, value in env.items()}


def _value(text: str, lookup: Callable[[str], str | None]) -> str:
    found = _TEMPLATE.fullmatch(text)
    if found is None:
        return text
    value = lookup(found[1])
    if value is not None:
        return value
    if found[2] is not None:
        return found[2]
    raise KeyError(found[1])


def is_template(text: str) -> bool:
    """The value comes from a variable of the host, or from its default."""
    return _TEMPLATE.fullmatch(text) is not None


def required(env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Key and variable of every template without a default."""
    for name, value in env.items():
        found = _TEMPLATE.fullmatch(value)
        if found is not None and found[2] is None:
            yield name, found[1]
