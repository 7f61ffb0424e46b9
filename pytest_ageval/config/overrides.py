"""Single values of the configuration that an option replaces: which may be, and how they are written."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from pytest_ageval.config.formats import LimitsTable
from pytest_ageval.config.where import did_you_mean, split_pointer
from pytest_ageval.errors import ConfigError

ROLE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_LIMITS = LimitsTable.__struct_fields__
_PROFILE_FIELDS = re.compile(
    r"executor|api_key|base_url|model|model/(?:id|api|timeout|watchdog|reasoning/effort|extra/[^/]+)"
    r"|options/[^/]+"
)


class Override(NamedTuple):
    """One ``--set``: `pointer` into the configuration, `tokens` of it, the new value, who asks for it."""

    pointer: str
    tokens: tuple[str, ...]
    value: Any
    option: str = "--set"


def make_override(pointer: str, value: Any, option: str = "--set") -> Override:
    """The value at `pointer` is `value`; ConfigError ``invalid_override`` when it may not be set."""
    tokens = tuple(split_pointer(pointer))
    hint = _refusal(tokens)
    if hint is not None:
        raise ConfigError(
            "invalid_override", "this value cannot be set", file=option, pointer=pointer, hint=hint
        )
    return Override(pointer, tokens, value, option)


def parse_override(text: str) -> Override:
    """``POINTER=JSON``; ConfigError ``invalid_override`` when the pointer is not one that may be set."""
    pointer, equals, value = text.partition("=")
    if not equals or not pointer.startswith("/"):
        raise ConfigError("invalid_override", f"--set takes POINTER=JSON, found {text!r}")
    make_override(pointer, None)
    try:
        parsed = json.loads(value, parse_constant=refuse_constant)
    except ValueError:
        raise ConfigError(
            "invalid_override",
            f"the value must be JSON, found {value!r}",
            file="--set",
            pointer=pointer,
            hint="text needs double quotes, which the shell must keep: --set '/parameters/x=\"text\"'",
        ) from None
    return make_override(pointer, parsed)


def refuse_constant(name: str) -> None:
    """For ``json.loads``: NaN and infinity are not JSON. Raises ValueError."""
    raise ValueError(name)


def _refusal(tokens: tuple[str, ...]) -> str | None:
    """Why a pointer may not be set; None when it may."""
    head, rest = tokens[0], tokens[1:]
    if head == "parameters" and rest and all(rest):
        return None
    if head == "limits" and len(rest) == 1:
        if rest[0] in _LIMITS:
            return None
        return did_you_mean(rest[0], _LIMITS) or f"limits are {', '.join(_LIMITS)}"
    if (
        head == "agent_profiles"
        and len(rest) >= 2
        and (rest[0] == "*" or ROLE.fullmatch(rest[0]))
        and _PROFILE_FIELDS.fullmatch("/".join(rest[1:]))
    ):
        return None
    return (
        "these may be set: /parameters/NAME, /limits/NAME (lower only), "
        "/agent_profiles/ROLE/{executor,model,api_key,base_url,model/...,options/NAME}"
    )
