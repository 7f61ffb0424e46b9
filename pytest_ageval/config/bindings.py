"""Who plays a role: an agent package or a profile, changed by the command line, checked by the executor."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pytest_ageval.config.agents import Kinds, agent_name, load_agent
from pytest_ageval.config.check import Source, convert
from pytest_ageval.config.env import expand_base_url, is_loopback, locator, resolve_secret
from pytest_ageval.config.equipment import EQUIPMENT_PLUGINS, bind_auth, gather_equipment
from pytest_ageval.config.formats import ProfileRow, plain
from pytest_ageval.config.locked import Binding, Equipment, Resolution
from pytest_ageval.config.profiles import (
    WILDCARD,
    Profiles,
    check_row,
    load_profiles,
    model_error,
)
from pytest_ageval.config.where import did_you_mean, join_pointer, listed
from pytest_ageval.errors import ConfigError
from pytest_ageval.executor import Executor, Fittings, ModelSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pytest_ageval.config.dataset import Dataset
    from pytest_ageval.config.job import JobOptions
    from pytest_ageval.config.tasks import TaskDocument
    from pytest_ageval.config.variants import Variant

#: Options that every executor takes: the session service reads them.
SERVICE_OPTIONS = frozenset({"upstream_stall_seconds"})
#: Kinds of box that the format knows; not all of them need to be installed.
_BOX_NAMES = frozenset({"local", "docker", "ssh", "e2b", "daytona"})
#: Executors that call no model. For them one would be a label that says what did not happen.
_WITHOUT_MODEL = frozenset({"nop", "oracle"})
#: Where the settings of a model belong that are often written into ``options``.
_MODEL_OPTIONS = {
    "api": "model.api",
    "reasoning_effort": "model.reasoning.effort",
    "timeout": "model.timeout",
    "request_timeout": "model.timeout",
    "watchdog": "model.watchdog",
    "extra_body": "model.extra",
}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a role's row comes from: a label for the resolution, a file, and the pointer of the row in it."""

    label: str
    source: Source
    at: str
    root: Path | None
    agent: str | None = None
    agent_ref: str | None = None
    #: The values that an option changed, by their pointer in the row: its source and its spelling.
    changed: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def error(self, code: str, message: str, pointer: str = "", hint: str | None = None) -> ConfigError:
        """A ConfigError at `pointer` of the row: in the file, or in the option that set the value."""
        source = Source(None, self.changed[pointer][1]) if pointer in self.changed else self.source
        return source.error(code, message, self.at + pointer, hint)


@dataclass(frozen=True, slots=True)
class Bound:
    """A role's binding; `base_url` is the resolved address; `rows` say where the values came from."""

    binding: Binding
    cls: type[Executor]
    base_url: str | None
    rows: tuple[Resolution, ...]


def unbound_roles(task: TaskDocument, dataset: Dataset, variant: Variant, job: JobOptions) -> tuple[str, ...]:
    """The roles of `task` that neither the command line nor the profiles bind."""
    if variant.agent is not None:
        return ()
    profiles = load_profiles(dataset, job.profiles)
    return tuple(
        role
        for role in task.roles
        if variant.agent_for(role) is None
        and (profiles.row_for(role) or ("", {}))[1].get("executor") is None
        and not any(
            override.tokens == ("agent_profiles", name, "executor")
            for override in (*job.overrides, *variant.overrides)
            for name in (role, WILDCARD)
        )
    )


def bind_role(
    role: str,
    task: TaskDocument,
    dataset: Dataset,
    variant: Variant,
    job: JobOptions,
    registry: Kinds,
) -> Bound:
    """The binding of `role`. Raises ConfigError: see the reference of error codes."""
    profiles = load_profiles(dataset, job.profiles)
    row, origin = _row(role, task, dataset, profiles, variant, registry)
    changed: dict[str, tuple[str, str]] = {}
    for tokens, value, option in _changes(role, variant, job):
        _put(row, tokens, value)
        changed |= dict.fromkeys(_leaves(value, tokens), option)
    origin = replace(origin, changed=changed)
    profile = _checked(row, origin)
    if profile.executor is None:
        raise _unbound(role, task, dataset, origin)
    cls = _executor(profile.executor, origin, registry)
    _check_extensions(profile, origin, registry)
    model = _model(profile, cls, origin)
    api_key, base_url, defaults = _routing(profile, cls, dataset)
    url = None
    if base_url is not None:
        url = expand_base_url(base_url, dataset, origin, "/base_url")
    options = _options(profile, cls, origin)
    fittings = _fittings(cls, options)
    auth = bind_auth(profile, job, cls, fittings, origin, base_url)
    equipment = Equipment()
    if cls.calls_model:
        equipment = gather_equipment(profile, origin, task, fittings)
    binding = Binding(
        role=role,
        executor=profile.executor,
        model=model,
        base_url=base_url,
        api_key=api_key if auth == "env" else None,
        options=options,
        label=profile.label,
        agent=origin.agent,
        agent_ref=origin.agent_ref or profile.agent_ref,
        overlays=tuple(profile.overlays or ()),
        overlay_root=origin.root if profile.overlays else None,
        extensions=tuple(plain(extension) for extension in profile.extensions or ()),
        equipment=equipment,
        auth=auth,
        logins=() if auth == "env" else fittings.logins,
    )
    at = join_pointer("agent_profiles", role)
    rows = [
        Resolution(at + pointer, source, _shown(row, pointer), note)
        for pointer in sorted(_leaves(row))
        for source, note in (changed.get(pointer, (origin.label, "")),)
    ]
    rows += [Resolution(f"{at}/{name}", "default", value) for name, value in defaults.items()]
    return Bound(binding, cls, url, tuple(rows))


def check_credential(bound: Bound, dataset: Dataset) -> None:
    """ConfigError ``unset_variable`` if the host has to call an API with a key that is not there.

    An agent in the box may have a login of its own, and a server on this machine may need no key.
    """
    binding = bound.binding
    if binding.api_key is None or bound.cls.requires_box:
        return
    if bound.base_url is not None and is_loopback(bound.base_url):
        return
    if resolve_secret(binding.api_key, dataset) is None:
        raise ConfigError(
            "unset_variable",
            f"the environment variable {binding.api_key} is not set; "
            f"role {binding.role!r} needs it as its API key",
            pointer=join_pointer("agent_profiles", binding.role, "api_key"),
            hint=f"export {binding.api_key}=... or write it into .env beside ageval.yaml",
        )


def _row(
    role: str,
    task: TaskDocument,
    dataset: Dataset,
    profiles: Profiles,
    variant: Variant,
    registry: Kinds,
) -> tuple[dict[str, Any], Origin]:
    ref = variant.agent_for(role)
    if ref is not None:
        package = load_agent(ref, registry)
        return copy.deepcopy(dict(package.binding)), Origin(
            f"agent package {package.agent_id}",
            package.source,
            "/binding",
            package.root,
            agent_name(package.agent_id) if package.path is None else package.agent_id,
            package.ref,
        )
    found = profiles.row_for(role)
    name, row = found if found is not None else (role, {})
    label = "profiles.yaml" if profiles.path is not None else "default"
    at = join_pointer("agent_profiles", name)
    return copy.deepcopy(dict(row)), Origin(label, profiles.source, at, dataset.root)


def _unbound(role: str, task: TaskDocument, dataset: Dataset, origin: Origin) -> ConfigError:
    index = task.roles.index(role)
    return task.source.error(
        "missing_binding",
        f"nobody plays the role {role!r}: there is no profile with an executor for it",
        join_pointer("agent_profiles", index, "id"),
        f"use --agent NAME, or add agent_profiles.{role} to {origin.source.shown or 'profiles.yaml'}",
    )


#: Tokens of a pointer into the row, the new value, and the option: its source and its spelling.
Change = tuple[tuple[str, ...], Any, tuple[str, str]]


def _changes(role: str, variant: Variant, job: JobOptions) -> Iterator[Change]:
    """What the command line replaces, the more specific one last."""
    if variant.model is not None:
        yield ("model", "id"), variant.model, job.origin("models")
    if variant.effort is not None:
        yield ("model", "reasoning", "effort"), variant.effort, job.origin("efforts")
    if job.base_url is not None:
        yield ("base_url",), job.base_url, (job.source("base_url"), "--base-url")
    for name in (WILDCARD, role):
        for override in (*job.overrides, *variant.overrides):
            if override.tokens[:2] == ("agent_profiles", name):
                yield override.tokens[2:], override.value, (job.source_of(override), override.option)


def _put(row: dict[str, Any], tokens: tuple[str, ...], value: Any) -> None:
    target = row
    for token in tokens[:-1]:
        inner = target.get(token)
        target[token] = target = dict(inner) if isinstance(inner, dict) else {}
    target[tokens[-1]] = copy.deepcopy(value)


def _leaves(value: Any, tokens: tuple[str, ...] = ()) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, (*tokens, key))
    elif tokens:
        yield join_pointer(*tokens)


def _shown(row: Any, pointer: str) -> Any:
    """A value of the row for people; of MCP servers, which may hold secrets, the names."""
    value = _dig(row, pointer)
    return [server["name"] for server in value] if pointer == "/mcp_servers" else value


def _dig(row: Any, pointer: str) -> Any:
    for token in pointer.split("/")[1:]:
        row = row[token.replace("~1", "/").replace("~0", "~")]
    return row


def _checked(row: dict[str, Any], origin: Origin) -> ProfileRow:
    """The row as a type. The file was checked when it was read, so what is wrong now was set."""
    source = Source(None, "command line") if origin.changed else origin.source
    try:
        profile = convert(row, ProfileRow, source, at=origin.at)
    except ConfigError as error:
        raise model_error(error) from None
    if origin.changed:
        check_row(profile, source, origin.at, needs_model_id=False)
    return profile


def _executor(kind: str, origin: Origin, registry: Kinds) -> type[Executor]:
    try:
        return registry.executor(kind)
    except ConfigError as error:
        raise origin.error(error.code, error.message, "/executor", error.hint) from None


def _check_extensions(profile: ProfileRow, origin: Origin, registry: Kinds) -> None:
    """A row must name something that is there, and its options must have a reader."""
    boxes = {*registry.box_kinds(), *_BOX_NAMES}
    known = {*registry.plugin_ids(), *boxes, *EQUIPMENT_PLUGINS, "default"}
    for index, row in enumerate(profile.extensions or ()):
        at = f"/extensions/{index}"
        if row.plugin in EQUIPMENT_PLUGINS:
            continue
        if row.plugin not in known:
            raise origin.error(
                "unknown_plugin",
                f"there is no plugin {row.plugin!r}; known: {listed(known)}",
                f"{at}/plugin",
                did_you_mean(row.plugin, known),
            )
        package = registry.extension(row.plugin)
        if package is not None:
            from pytest_ageval.extensions.selection import check_row as check_extension

            check_extension(row, package, origin, at)
        if row.options and row.plugin in boxes and row.plugin != profile.executor and package is None:
            raise origin.error(
                "invalid_schema",
                f"options of the box {row.plugin} are not read from extensions",
                f"{at}/options",
                "write them into environment_options",
            )


def _routing(
    profile: ProfileRow, cls: type[Executor], dataset: Dataset
) -> tuple[str | None, str | None, dict[str, str]]:
    """Name of the key, address, and those of them that the executor's defaults gave."""
    defaults: dict[str, str] = {}
    api_key = None if profile.api_key is None else locator(profile.api_key, Source(None), "")
    if api_key is None and cls.default_api_key_name is not None:
        api_key = defaults["api_key"] = cls.default_api_key_name
    base_url = profile.base_url
    name = cls.default_base_url_name
    if base_url is None and name is not None and resolve_secret(name, dataset) is not None:
        base_url = defaults["base_url"] = "${" + name + "}"
    return api_key, base_url, defaults


def _model(profile: ProfileRow, cls: type[Executor], origin: Origin) -> ModelSpec:
    at = "/model"
    table = profile.model
    if table is None or table.id is None:
        if cls.requires_model:
            raise origin.error(
                "model_config",
                f"the executor {profile.executor} needs a model",
                "",
                "name it with --model, or as model.id",
            )
        if table is None:
            return ModelSpec()
    if profile.executor in _WITHOUT_MODEL:
        without_id = table.id is None and table.reasoning is not None
        raise origin.error(
            "model_config",
            f"the executor {profile.executor} calls no model; "
            + ("it has no reasoning effort" if without_id else f"found {table.id!r}"),
            f"{at}/reasoning/effort" if without_id else f"{at}/id",
            "leave the model out for this agent",
        )
    if table.api is not None and table.api not in cls.supported_apis:
        raise origin.error(
            "model_config",
            f"the executor {profile.executor} has no api {table.api!r}; it has: {listed(cls.supported_apis)}",
            f"{at}/api",
        )
    effort = table.reasoning.effort if table.reasoning is not None else None
    settings = {"reasoning_effort": effort, "timeout": table.timeout, "watchdog": table.watchdog}
    for name, value in settings.items():
        if value is not None and name not in cls.supported_model_fields:
            raise origin.error(
                "model_config",
                f"the executor {profile.executor} has no {name.replace('_', ' ')}; "
                f"it takes: {listed(cls.supported_model_fields)}",
                f"{at}/reasoning/effort" if name == "reasoning_effort" else f"{at}/{name}",
            )
    for name in table.extra or {}:
        if name not in cls.extra_allowlist:
            raise origin.error(
                "model_config",
                f"the executor {profile.executor} does not pass {name!r} on; "
                f"it passes: {listed(cls.extra_allowlist)}",
                at + join_pointer("extra", name),
                did_you_mean(name, cls.extra_allowlist),
            )
    return ModelSpec(table.id, table.api, effort, table.timeout, table.watchdog, dict(table.extra or {}))


def _options(profile: ProfileRow, cls: type[Executor], origin: Origin) -> dict[str, Any]:
    """The executor's options: those of the profile, then those of its own row of ``extensions``."""
    options: dict[str, Any] = dict(profile.options or {})
    places = dict.fromkeys(options, "/options")
    for index, row in enumerate(profile.extensions or ()):
        if row.plugin == profile.executor:
            options.update(row.options or {})
            places.update(dict.fromkeys(row.options or {}, f"/extensions/{index}/options"))
    check_service_options(options, places, origin)
    own = {name: value for name, value in options.items() if name not in SERVICE_OPTIONS}
    try:
        convert(own, cls.Options, Source(None))
    except ConfigError as error:
        raise _option_error(error, places, profile.executor or "", origin) from None
    return options


def _fittings(cls: type[Executor], options: Mapping[str, Any]) -> Fittings:
    return cls.fittings({name: value for name, value in options.items() if name not in SERVICE_OPTIONS})


def check_service_options(options: Mapping[str, Any], places: Mapping[str, str], origin: Origin) -> None:
    """The options that the session service reads must be whole seconds."""
    for name in SERVICE_OPTIONS & options.keys():
        value = options[name]
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise origin.error(
                "invalid_schema",
                f"{name} must be an integer >= 0 (seconds); found {value!r}",
                f"{places[name]}/{name}",
            )


def _option_error(
    error: ConfigError, places: Mapping[str, str], executor: str, origin: Origin
) -> ConfigError:
    """An error of the options struct, at the place in the file where the option is written."""
    pointer = error.pointer or ""
    name = pointer.split("/")[1] if pointer.count("/") else ""
    code, hint = error.code, error.hint
    if name in _MODEL_OPTIONS and error.message.startswith("unknown key"):
        code, hint = "model_config", f"write it as {_MODEL_OPTIONS[name]}"
    where = places.get(name, "/options")
    return origin.error(code, f"options of {executor}: {error.message}", where + pointer.rstrip("/"), hint)
