"""What is to be evaluated: the options of a run, and the matrix that they span."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_ageval.accounting.budget import finite
from pytest_ageval.config.agents import agent_name
from pytest_ageval.config.check import Source
from pytest_ageval.config.env import check_base_url
from pytest_ageval.config.formats import LimitsTable
from pytest_ageval.config.where import did_you_mean, listed, split_pointer
from pytest_ageval.config.yamlio import parse_value
from pytest_ageval.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_ageval.executor import PermissionPolicy

_ROLE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_LIMITS = LimitsTable.__struct_fields__
_PROFILE_FIELDS = re.compile(
    r"executor|api_key|base_url|model|model/(?:id|api|timeout|watchdog|reasoning/effort|extra/[^/]+)"
    r"|options/[^/]+"
)


class Override(NamedTuple):
    """One ``--set``: `pointer` into the configuration, `tokens` of it, and the new value."""

    pointer: str
    tokens: tuple[str, ...]
    value: Any


class BoxOption(NamedTuple):
    """One ``--box-option``; `kind` is set when it was written ``KIND:NAME=VALUE``."""

    kind: str | None
    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The options of one run as they were given. `sources` says of each field: cli, env or ini.

    `agents` are ``NAME`` or ``ROLE=NAME``; `box_options` are ``NAME=VALUE`` or ``KIND:NAME=VALUE``;
    `sets` are ``POINTER=JSON``. Made once for a run; raises ConfigError ``invalid_option`` or
    ``invalid_override`` for what cannot be understood. `reward_key` and `pass_threshold` are of Harbor
    tasks.
    """

    agents: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    boxes: tuple[str, ...] = ()
    box_options: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    attempts: int = 1
    profiles: str | None = None
    effort: str | None = None
    base_url: str | None = None
    reward_key: str | None = None
    pass_threshold: str | None = None
    max_cost_per_attempt: float | None = None
    max_tokens_per_attempt: int | None = None
    permission: str | None = None
    auth: str | None = None
    gateway: str = "auto"
    sources: Mapping[str, str] = field(default_factory=dict)
    overrides: tuple[Override, ...] = field(init=False, default=())
    parsed_box_options: tuple[BoxOption, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        if isinstance(self.attempts, bool) or self.attempts < 1:
            raise ConfigError("invalid_option", f"--attempts must be at least 1, found {self.attempts}")
        for flag, values in (("--model", self.models), ("--box", self.boxes)):
            _refuse_twice(flag, values)
        if self.gateway not in ("auto", "off"):
            raise ConfigError("invalid_option", f"--gateway must be auto or off, found {self.gateway!r}")
        if self.base_url is not None:
            check_base_url(self.base_url, Source(None, "--base-url"), "")
        _ = self.least_reward
        check_budget("--max-cost-per-attempt", self.max_cost_per_attempt)
        check_budget("--max-tokens-per-attempt", self.max_tokens_per_attempt)
        options = tuple(map(parse_box_option, self.box_options))
        _refuse_twice("--box-option", [f"{o.kind or ''}:{o.name}" for o in options])
        overrides = tuple(map(parse_override, self.sets))
        _refuse_twice("--set", [override.pointer for override in overrides])
        object.__setattr__(self, "parsed_box_options", options)
        object.__setattr__(self, "overrides", overrides)

    @property
    def least_reward(self) -> float | None:
        """``--pass-threshold`` as a number."""
        if self.pass_threshold is None:
            return None
        try:
            value = float(self.pass_threshold)
        except ValueError:
            value = math.nan
        if not 0 < value <= 1:
            raise ConfigError(
                "invalid_option",
                f"--pass-threshold must be above 0 and at most 1, found {self.pass_threshold!r}",
            )
        return value

    def source(self, name: str) -> str:
        """Where the field `name` comes from: ``cli``, ``env`` or ``ini``."""
        return self.sources.get(name, "cli")

    @property
    def policy(self) -> PermissionPolicy:
        """How agents that ask for permission are answered; ``hook`` is another word for ``ask``."""
        policies: Mapping[str, PermissionPolicy] = {"deny": "deny", "ask": "ask", "hook": "ask"}
        return policies.get(self.permission or "", "allow")

    @classmethod
    def gather(cls, given: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> JobOptions:
        """Options from a command line (`given`; None or empty: not given), else from ``AGEVAL_*``."""
        table = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        sources: dict[str, str] = {}
        for name, variable in _VARIABLES.items():
            value, text = given.get(name), table.get(variable, "")
            if value:
                values[name], sources[name] = value, "cli"
            elif text:
                values[name] = _from_environment(name, variable, text)
                sources[name] = "env"
        lists = {k: tuple(v) for k, v in values.items() if isinstance(v, list | tuple)}
        return cls(**{**values, **lists}, sources=sources)


_VARIABLES = {
    "agents": "AGEVAL_AGENT",
    "models": "AGEVAL_MODEL",
    "boxes": "AGEVAL_BOX",
    "box_options": "AGEVAL_BOX_OPTION",
    "sets": "AGEVAL_SET",
    "attempts": "AGEVAL_ATTEMPTS",
    "profiles": "AGEVAL_PROFILES",
    "effort": "AGEVAL_EFFORT",
    "base_url": "AGEVAL_BASE_URL",
    "permission": "AGEVAL_PERMISSION",
    "auth": "AGEVAL_AGENT_AUTH",
    "gateway": "AGEVAL_GATEWAY",
    "max_cost_per_attempt": "AGEVAL_MAX_COST_PER_ATTEMPT",
    "max_tokens_per_attempt": "AGEVAL_MAX_TOKENS_PER_ATTEMPT",
}

_NUMBERS: dict[str, type[int] | type[float]] = {
    "attempts": int,
    "max_cost_per_attempt": float,
    "max_tokens_per_attempt": int,
}


def _from_environment(name: str, variable: str, text: str) -> Any:
    if name in ("profiles", "effort", "base_url", "permission", "auth", "gateway"):
        return text
    try:
        return _NUMBERS[name](text) if name in _NUMBERS else shlex.split(text)
    except ValueError as error:
        raise ConfigError("invalid_option", f"{variable}: {error}; found {text!r}") from None


def check_budget(flag: str, value: float | None) -> None:
    """ConfigError ``invalid_option`` for a budget that is not a number above 0."""
    if value is not None and not finite(value):
        raise ConfigError("invalid_option", f"{flag} must be a number above 0, found {value:g}")


def _refuse_twice(flag: str, values: Sequence[str]) -> None:
    for index, value in enumerate(values):
        if value in values[:index]:
            raise ConfigError("invalid_option", f"{flag} {value} is given twice")


def parse_box_option(text: str) -> BoxOption:
    """``NAME=VALUE`` with the value typed as YAML types it."""
    name, equals, value = text.partition("=")
    kind, colon, rest = name.partition(":")
    if colon:
        name = rest
    if not equals or not name or (colon and not kind):
        raise ConfigError("invalid_option", f"--box-option takes NAME=VALUE, found {text!r}")
    return BoxOption(kind if colon else None, name, parse_value(value, "--box-option"))


def parse_override(text: str) -> Override:
    """``POINTER=JSON``; ConfigError ``invalid_override`` when the pointer is not one that may be set."""
    pointer, equals, value = text.partition("=")
    if not equals or not pointer.startswith("/"):
        raise ConfigError("invalid_override", f"--set takes POINTER=JSON, found {text!r}")
    tokens = tuple(split_pointer(pointer))
    hint = _refusal(tokens)
    if hint is not None:
        raise ConfigError(
            "invalid_override", "this value cannot be set", file="--set", pointer=pointer, hint=hint
        )
    try:
        parsed = json.loads(value, parse_constant=_refuse_constant)
    except ValueError:
        raise ConfigError(
            "invalid_override",
            f"the value must be JSON, found {value!r}",
            file="--set",
            pointer=pointer,
            hint="text needs double quotes, which the shell must keep: --set '/parameters/x=\"text\"'",
        ) from None
    return Override(pointer, tokens, parsed)


def _refuse_constant(name: str) -> None:
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
        and (rest[0] == "*" or _ROLE.fullmatch(rest[0]))
        and _PROFILE_FIELDS.fullmatch("/".join(rest[1:]))
    ):
        return None
    return (
        "these may be set: /parameters/NAME, /limits/NAME (lower only), "
        "/agent_profiles/ROLE/{executor,model,api_key,base_url,model/...,options/NAME}"
    )


@dataclass(frozen=True, slots=True)
class Variant:
    """One point of the matrix. None means: what the data set says.

    `agent` binds every role that `role_agents` does not name. `attempt` counts from 1. `id` is unique
    in the plan and holds only letters, digits, ``.``, ``_`` and ``-``.
    """

    agent: str | None = None
    role_agents: tuple[tuple[str, str], ...] = ()
    model: str | None = None
    box: str | None = None
    attempt: int = 1
    id: str = "default"

    def agent_for(self, role: str) -> str | None:
        """The agent package that the command line binds to `role`."""
        return dict(self.role_agents).get(role, self.agent)


def plan_variants(job: JobOptions) -> list[Variant]:
    """Every combination of agents, models, boxes and attempts, in that order.

    Raises ConfigError ``invalid_option`` for a value that is given twice.
    """
    axes = _agent_axes(job.agents)
    choices: list[list[str | None]] = [*axes.values(), list(job.models) or [None], list(job.boxes) or [None]]
    combinations = list(itertools.product(*choices))
    varying = [index for index, values in enumerate(choices) if len(values) > 1]
    names = _unique([_name(axes, row, varying) for row in combinations])
    return [
        _variant(axes, row, attempt, name if job.attempts == 1 else f"{name}-{attempt}")
        for row, name in zip(combinations, names, strict=True)
        for attempt in range(1, job.attempts + 1)
    ]


def check_roles(job: JobOptions, declared: Iterable[str]) -> None:
    """ConfigError ``unknown_profile`` when an option names a role that none of the tasks declares.

    `declared` are the roles of all tasks of the run: a role that only some of them have is fine.
    """
    roles = set(declared)
    named = {f"--agent {role}=...": role for role in _agent_axes(job.agents) if role}
    for override in job.overrides:
        if override.tokens[0] == "agent_profiles" and override.tokens[1] != "*":
            named[f"--set {override.pointer}"] = override.tokens[1]
    for option, role in named.items():
        if role not in roles:
            raise ConfigError(
                "unknown_profile",
                f"{option}: no task has a role {role!r}; roles are: {listed(roles)}",
                hint=did_you_mean(role, roles),
            )


def _agent_axes(agents: Sequence[str]) -> dict[str, list[str | None]]:
    """Agents by role; the role of a bare agent is the empty text."""
    axes: dict[str, list[str | None]] = {"": []}
    for text in agents:
        role, equals, ref = text.partition("=")
        if not equals or not _ROLE.fullmatch(role):
            role, ref = "", text
        if not ref.strip():
            raise ConfigError("invalid_option", f"--agent takes NAME or ROLE=NAME, found {text!r}")
        values = axes.setdefault(role, [])
        if ref in values:
            raise ConfigError("invalid_option", f"--agent {text} is given twice")
        values.append(ref)
    axes[""] = axes[""] or [None]
    return axes


def _name(axes: Mapping[str, Sequence[str | None]], row: Sequence[str | None], varying: Sequence[int]) -> str:
    """The parts of `row` that differ from row to row; the agent's (or the box's) name when none does."""
    if varying:
        parts = [_safe(row[index], index < len(axes)) for index in varying]
        return "-".join(parts)
    first = next((agent for agent in row[: len(axes)] if agent is not None), None)
    return _safe(first, True) if first else _safe(row[-1] or "default", False)


def _safe(text: str | None, agent: bool) -> str:
    name = agent_name(text or "default") if agent else text or "default"
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-") or "x"


def _unique(names: list[str]) -> list[str]:
    """`names`; those that collide after their unsafe characters were replaced get a number."""
    found: list[str] = []
    for name in names:
        candidate, count = name, 2
        while candidate in found or (candidate != name and candidate in names):
            candidate, count = f"{name}.{count}", count + 1
        found.append(candidate)
    return found


def _variant(axes: Mapping[str, Any], row: Sequence[str | None], attempt: int, name: str) -> Variant:
    agents = dict(zip(axes, row, strict=False))
    return Variant(
        agent=agents.pop("", None),
        role_agents=tuple((role, ref) for role, ref in agents.items() if ref is not None),
        model=row[-2],
        box=row[-1],
        attempt=attempt,
        id=name if len(name) <= 120 else f"{name[:100]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}",
    )
