"""What is to be evaluated: the options of a run."""

from __future__ import annotations

import math
import os
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_ageval.accounting.budget import finite
from pytest_ageval.config.check import Source
from pytest_ageval.config.env import check_base_url
from pytest_ageval.config.matrix import Matrix, agent_axes, read_matrix
from pytest_ageval.config.overrides import Override, parse_override
from pytest_ageval.config.where import did_you_mean, listed
from pytest_ageval.config.yamlio import parse_value
from pytest_ageval.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_ageval.executor import PermissionPolicy


class BoxOption(NamedTuple):
    """One ``--box-option``; `kind` is set when it was written ``KIND:NAME=VALUE``."""

    kind: str | None
    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The options of one run as they were given. `sources` says of each field: cli, env or ini.

    `agents` are ``NAME`` or ``ROLE=NAME``; `box_options` are ``NAME=VALUE`` or ``KIND:NAME=VALUE``;
    `sets` are ``POINTER=JSON``; `matrix` are files or ``POINTER=[...]``. Made once for a run; raises
    ConfigError ``invalid_option`` or ``invalid_override`` for what cannot be understood. `reward_key` and
    `pass_threshold` are of Harbor tasks.
    """

    agents: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    boxes: tuple[str, ...] = ()
    box_options: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    attempts: int = 1
    profiles: str | None = None
    efforts: tuple[str, ...] = ()
    matrix: tuple[str, ...] = ()
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
    parsed_matrix: Matrix = field(init=False, default_factory=Matrix)

    def __post_init__(self) -> None:
        if isinstance(self.attempts, bool) or self.attempts < 1:
            raise ConfigError("invalid_option", f"--attempts must be at least 1, found {self.attempts}")
        for flag, values in (("--model", self.models), ("--effort", self.efforts), ("--box", self.boxes)):
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
        object.__setattr__(self, "parsed_matrix", read_matrix(self.matrix))
        self._refuse_in_both_places()

    def _refuse_in_both_places(self) -> None:
        """A value comes from the matrix or from an option of its own."""
        agents = agent_axes(self.agents)
        given = {f"agent:{role}" if role else "agent" for role, values in agents.items() if values[0]}
        named = {"model": self.models, "effort": self.efforts, "box": self.boxes}
        given |= {axis for axis, values in named.items() if values}
        given |= {override.pointer for override in self.overrides}
        for axis in self.parsed_matrix.axes:
            if axis in given:
                raise ConfigError("invalid_option", f"--matrix and an option of its own both give {axis}")

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

    def origin(self, name: str) -> tuple[str, str]:
        """Where an axis of the matrix comes from (`source`), and the option that gives it."""
        if getattr(self, name) or not self.matrix:
            return self.source(name), {"models": "--model", "efforts": "--effort", "boxes": "--box"}[name]
        return self.source("matrix"), "--matrix"

    def source_of(self, override: Override) -> str:
        """`source` of the option that asks for `override`."""
        if override.option == "--regrade":  # what an earlier command line gave
            return "recorded"
        return self.source("matrix" if override.option == "--matrix" else "sets")

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
    "efforts": "AGEVAL_EFFORT",
    "matrix": "AGEVAL_MATRIX",
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
    if name in ("profiles", "base_url", "permission", "auth", "gateway"):
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


def check_roles(job: JobOptions, declared: Iterable[str]) -> None:
    """ConfigError ``unknown_profile`` when an option names a role that none of the tasks declares.

    `declared` are the roles of all tasks of the run: a role that only some of them have is fine.
    """
    roles = set(declared)
    named = {f"--agent {role}=...": role for role in agent_axes(job.agents) if role}
    named |= {f"--matrix: agent {role}=...": role for role in job.parsed_matrix.roles}
    for override in (*job.overrides, *job.parsed_matrix.overrides()):
        if override.tokens[0] == "agent_profiles" and override.tokens[1] != "*":
            named[f"{override.option} {override.pointer}"] = override.tokens[1]
    for option, role in named.items():
        if role not in roles:
            raise ConfigError(
                "unknown_profile",
                f"{option}: no task has a role {role!r}; roles are: {listed(roles)}",
                hint=did_you_mean(role, roles),
            )
