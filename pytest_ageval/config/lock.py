"""The lock: every value of one attempt is decided, checked and named by a digest, before anything starts."""

from __future__ import annotations

import copy
import sys
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ageval._version import __version__
from pytest_ageval.config.bindings import Bound, bind_role, check_credential
from pytest_ageval.config.check import Source, convert
from pytest_ageval.config.effective import budget_of, effective_limits, effective_parameters
from pytest_ageval.config.env import host_of
from pytest_ageval.config.equipment import check_remote_login, files_are_unique, locked_equipment
from pytest_ageval.config.hashing import digest_of, file_digest, tree_digest, tree_listing
from pytest_ageval.config.locked import Binding, BoxBinding, LockedTask, Resolution
from pytest_ageval.config.profiles import Profiles, load_profiles
from pytest_ageval.config.scripts import check_scripts
from pytest_ageval.config.tasks import TaskDocument
from pytest_ageval.config.where import join_pointer, listed
from pytest_ageval.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pytest_ageval.box import Box
    from pytest_ageval.config.agents import Kinds
    from pytest_ageval.config.dataset import Dataset
    from pytest_ageval.config.job import JobOptions
    from pytest_ageval.config.variants import Variant
    from pytest_ageval.executor import Executor

LOCK_FORMAT = "ageval.lock/1"

#: A task with more files does not have them listed in its lock (to say later which one has changed).
LISTED_FILES = 200
_OWN_PACKAGES = frozenset(("pytest_ageval", "ageval_boxes", "ageval_executors"))


def lock_task(
    task: TaskDocument,
    dataset: Dataset,
    variant: Variant,
    job: JobOptions,
    registry: Kinds,
    *,
    credentials: bool = True,
    keys_of: Collection[str] | None = None,
) -> LockedTask:
    """Decide everything about one attempt. Starts nothing; the same inputs give the same digest.

    With `credentials` a missing API key of an executor that calls from the host is an error here; with
    `keys_of` that of these roles only.
    Raises ConfigError.
    """
    dataset.check_ready()
    profiles = load_profiles(dataset, job.profiles)
    bounds = {role: bind_role(role, task, dataset, variant, job, registry) for role in task.roles}
    calls = any(bound.cls.calls_model and bound.cls.calls_from_box() for bound in bounds.values())
    box, box_class, box_rows = _box(task, profiles, variant, job, registry, calls)
    _check_capabilities(task, box, box_class, bounds)
    for bound in bounds.values():
        check_remote_login(bound.binding, box.kind)
    files_are_unique(bound.binding for bound in bounds.values())
    plugins = _plugins(box, box_class, bounds, registry)
    references = task.references()
    if task.harbor is None:
        check_scripts(task)
    _check_evaluate_host(task, profiles, box, references)
    if credentials:
        for role, bound in bounds.items():
            if keys_of is None or role in keys_of:
                check_credential(bound, dataset)
        if task.harbor is not None:
            from pytest_ageval.config.harbor.variables import check_variables

            solution = any(bound.cls.plays_solution for bound in bounds.values())
            calling = any(bound.cls.calls_model for bound in bounds.values())
            check_variables(task, dataset, solution=solution, mcp=calling)
    overrides = (*job.overrides, *variant.overrides)
    parameters, parameter_rows = effective_parameters(task, job, overrides)
    limits, limit_rows = effective_limits(task, job, overrides)
    budget, budget_rows = budget_of(job)
    # What task.yaml means is in the locked configuration itself; its description and comments are not.
    content, files = tree_listing(task.root, without=task.path.name)
    eval_digest = digest_of({"task": content, "shared": dataset.shared_digest})
    rows = (*box_rows, *(r for b in bounds.values() for r in b.rows), *parameter_rows, *limit_rows)
    rows = (*rows, *budget_rows)
    locked: dict[str, Any] = {
        "format": task.format,
        "pytest_ageval": __version__,
        "dataset_id": dataset.dataset_id,
        "dataset_version": dataset.version,
        "task_id": task.task_id,
        "eval_digest": eval_digest,
        "environment": box.kind,
        "environment_options": box.options,
        "evaluate_host": profiles.evaluate_host,
        "agent_profiles": {role: _locked_binding(bound) for role, bound in bounds.items()},
        "permission": job.policy,
        "parameters": parameters,
        "requires": {"environment": sorted(task.requires)},
        "limits": asdict(limits),
        "artifacts": [asdict(artifact) for artifact in task.artifacts],
        "evaluation": asdict(task.evaluation),
        "resolved_references": references,
    }
    harbor = None
    if task.harbor is not None:
        harbor = replace(task.harbor, reward_key=job.reward_key, pass_threshold=job.least_reward)
        locked["harbor"] = harbor.as_dict()
    if budget:
        locked["budget"] = budget.as_dict()
    if versions := {**_plugin_versions(box_class, bounds), **plugins}:
        locked["plugins"] = versions
    digest = digest_of(locked)
    document = _document(locked, digest, profiles, bounds, rows)
    if len(files) <= LISTED_FILES:
        document["files"] = files
    # Not in the digest: it is how the calls go out, not what is asked.
    document["gateway"] = job.gateway
    if provenance := task.provenance or dataset.provenance:
        document["provenance"] = provenance
    return LockedTask(
        dataset_root=dataset.root,
        dataset_id=dataset.dataset_id,
        dataset_version=dataset.version,
        task_id=task.task_id,
        task_root=task.root,
        description=task.description,
        tags=task.tags,
        parameters=parameters,
        requires=task.requires,
        limits=limits,
        budget=budget,
        artifacts=task.artifacts,
        evaluation=task.evaluation,
        roles=task.roles,
        bindings={role: bound.binding for role, bound in bounds.items()},
        box=box,
        evaluate_host=profiles.evaluate_host,
        eval_digest=eval_digest,
        digest=digest,
        resolution=rows,
        document=document,
        env_files=dataset.env_files,
        harbor=harbor,
    )


def _box(
    task: TaskDocument,
    profiles: Profiles,
    variant: Variant,
    job: JobOptions,
    registry: Kinds,
    calls_model: bool,
) -> tuple[BoxBinding, type[Box], list[Resolution]]:
    """The kind and its options. The options of another kind do not survive ``--box``.

    `calls_model`: a program in the box calls a model, which it must reach.
    """
    kind = variant.box or profiles.environment
    own = "profiles.yaml" if profiles.path is not None else "default"
    rows = [Resolution("/environment", job.origin("boxes")[0] if variant.box else own, kind)]
    source = Source(None, job.origin("boxes")[1]) if variant.box else profiles.source
    try:
        cls = registry.box(kind)
    except ConfigError as error:
        if profiles.path is None and not variant.box:
            hint = "use --box KIND, or write a profiles.yaml with environment: KIND beside ageval.yaml"
            message = f"{error.message} (the default: the data set has no profiles.yaml)"
            raise ConfigError(error.code, message, hint=hint) from None
        hint = error.hint or "another kind can be chosen with --box"
        raise source.error(error.code, error.message, "/environment", hint) from None
    options: dict[str, Any] = {}
    if task.harbor is not None and "path_views" in cls.capabilities:
        from pytest_ageval.config.harbor.box import agent_options

        options = agent_options(task.harbor, task.root, calls_model)
    origin = dict.fromkeys(options, "task.toml")
    if kind == profiles.environment:
        options |= copy.deepcopy(dict(profiles.environment_options))
        origin |= dict.fromkeys(profiles.environment_options, own)
    elif profiles.environment_options:
        rows[0] = replace(rows[0], note=f"environment_options are for {profiles.environment} and left out")
    for option in job.parsed_box_options:
        if option.kind in (None, kind):
            options[option.name] = option.value
            origin[option.name] = job.source("box_options")
    _check_box_options(kind, cls, options, origin, own, profiles)
    rows += [
        Resolution(join_pointer("environment_options", name), origin[name], value)
        for name, value in sorted(options.items())
    ]
    return BoxBinding(kind, options), cls, rows


def _check_box_options(
    kind: str,
    cls: type[Box],
    options: Mapping[str, Any],
    origin: Mapping[str, str],
    own: str,
    profiles: Profiles,
) -> None:
    try:
        convert(options, cls.Options, Source(None))
    except ConfigError as error:
        pointer = error.pointer or ""
        name = pointer.split("/")[1] if pointer.count("/") else ""
        source = profiles.source if origin.get(name) == own else Source(None, "--box-option")
        raise source.error(
            error.code,
            f"options of the box {kind}: {error.message}",
            "/environment_options" + pointer.rstrip("/"),
            error.hint,
        ) from None


def _check_capabilities(
    task: TaskDocument, box: BoxBinding, cls: type[Box], bounds: Mapping[str, Bound]
) -> None:
    missing = task.requires - cls.capabilities
    if missing:
        raise task.source.error(
            "unsupported_capability",
            f"the task requires {listed(missing)}, which the box {box.kind} does not offer",
            "/requires/environment",
            f"{box.kind} offers: {listed(cls.capabilities)}",
        )
    for role, bound in bounds.items():
        missing = bound.cls.requires_box - cls.capabilities
        if missing:
            raise task.source.error(
                "unsupported_capability",
                f"the executor {bound.binding.executor} of the role {role!r} requires "
                f"{listed(missing)}, which the box {box.kind} does not offer",
                join_pointer("agent_profiles", task.roles.index(role)),
                f"{box.kind} offers: {listed(cls.capabilities)}",
            )


def _plugins(box: BoxBinding, cls: type[Box], bounds: Mapping[str, Bound], registry: Kinds) -> dict[str, str]:
    """The ``ageval.plugin/1`` plugins that take part, with version and digest; what they need is here."""
    named = {row["plugin"] for bound in bounds.values() for row in bound.binding.extensions}
    named |= {box.kind, *(bound.binding.executor for bound in bounds.values())}
    packages = [package for name in sorted(named) if (package := registry.extension(name)) is not None]
    if not packages:
        return {}
    from pytest_ageval.extensions import selection

    selection.check_needs(packages, cls, registry.extension)
    found = selection.handlers({r: b.binding for r, b in bounds.items()}, registry.extension)
    for slot in selection.CHOSEN_BY_ROW:
        selection.winner(found, slot)
    return {p.plugin_id: f"{p.version} {p.digest}" for p in packages}


def _check_evaluate_host(
    task: TaskDocument, profiles: Profiles, box: BoxBinding, references: Mapping[str, str]
) -> None:
    """An isolated scoring box exists on docker only, and needs a recipe."""
    host = profiles.evaluate_host
    isolated = host.get("isolated") is True
    if (isolated or host.get("environment_options")) and box.kind != "docker":
        raise profiles.source.error(
            "unsupported_capability",
            f"evaluate_host needs the box docker; the box is {box.kind}",
            "/evaluate_host",
        )
    named = task.evaluation.environments
    recipe = task.evaluation.docker_image or "environment_evaluate_dockerfile" in references
    if isolated and not (recipe or named):
        raise task.source.error(
            "missing_reference",
            "evaluate_host.isolated needs environment/evaluate.Dockerfile or evaluation.docker_image",
            "/evaluation",
        )
    if named and not isolated:
        raise task.source.error(
            "unsupported_capability",
            "evaluation.environments needs evaluate_host.isolated: true and the box docker",
            "/evaluation/environments",
            "write it into profiles.yaml",
        )


def _locked_binding(bound: Bound) -> dict[str, Any]:
    """What of a binding can change an outcome. No label, no value of a secret."""
    binding = bound.binding
    more: dict[str, Any] = {} if binding.auth == "env" else {"auth": binding.auth}
    if equipment := locked_equipment(binding.equipment):
        more["equipment"] = equipment
    return more | {
        "executor": binding.executor,
        "model": _model(binding),
        "base_url_host": None if bound.base_url is None else host_of(bound.base_url),
        "api_key": binding.api_key,
        "options": binding.options,
        "overlays": {path: _overlay_digest(binding, path) for path in binding.overlays},
        "extensions": list(binding.extensions),
    }


def _model(binding: Binding) -> dict[str, Any]:
    model = binding.model
    found: dict[str, Any] = {"id": model.id, "api": model.api}
    found["reasoning"] = {"effort": model.reasoning_effort} if model.reasoning_effort else None
    found |= {"timeout": model.timeout, "watchdog": model.watchdog, "extra": dict(model.extra)}
    return {name: value for name, value in found.items() if value not in (None, {})}


def _overlay_digest(binding: Binding, path: str) -> str:
    found = (binding.overlay_root or Path()) / path
    if found.is_dir():
        return tree_digest(found)
    if not found.is_file():
        raise ConfigError(
            "missing_reference",
            f"the overlay {path} of the role {binding.role!r} is not there",
            file=Source(found).shown,
        )
    return file_digest(found)


def _plugin_versions(box: type[Box], bounds: Mapping[str, Bound]) -> dict[str, str]:
    """Versions of the classes that are not ours; for one without a package, the digest of its file."""
    classes: set[type[Box] | type[Executor]] = {box, *(bound.cls for bound in bounds.values())}
    found = {}
    for cls in classes:
        top = cls.__module__.partition(".")[0]
        if top not in _OWN_PACKAGES:
            version, packaged = _version_of(cls.__module__, top)
            # A conftest.py's module name depends on the import mode and the rootdir; its text does not.
            where = cls.__module__ if packaged else "conftest"
            found[f"{where}:{cls.__qualname__}"] = version
    return found


@lru_cache(maxsize=64)
def _version_of(module: str, top: str) -> tuple[str, bool]:
    from importlib import metadata

    names = metadata.packages_distributions().get(top)
    if names:
        return f"{names[0]} {metadata.version(names[0])}", True
    file = getattr(sys.modules.get(module), "__file__", None)
    return file_digest(Path(file)) if file else "unknown", False


def _document(
    locked: dict[str, Any],
    digest: str,
    profiles: Profiles,
    bounds: Mapping[str, Bound],
    rows: tuple[Resolution, ...],
) -> dict[str, Any]:
    overlay: dict[str, Any] = {
        "environment": locked["environment"],
        "agent_profiles": {role: _overlay_row(bound) for role, bound in bounds.items()},
    }
    if locked["environment_options"]:
        overlay["environment_options"] = locked["environment_options"]
    if profiles.evaluate_host:
        overlay["evaluate_host"] = profiles.evaluate_host
    return {
        "format": LOCK_FORMAT,
        **{name: locked[name] for name in ("dataset_id", "dataset_version", "task_id")},
        "digest": digest,
        "eval_digest": locked["eval_digest"],
        "environment": locked["environment"],
        "extension_bindings": {
            role: _slots(locked["environment"], bound.binding.executor) for role, bound in bounds.items()
        }
        or {"": _slots(locked["environment"], None)},
        "job_overlay": overlay,
        "resolution": [asdict(row) for row in rows],
        "resolved_references": locked["resolved_references"],
        "locked": locked,
    }


def _overlay_row(bound: Bound) -> dict[str, Any]:
    binding = bound.binding
    row = {
        "executor": binding.executor,
        "model": _model(binding) or None,
        "base_url": binding.base_url,
        "api_key": binding.api_key,
        "label": binding.label or binding.agent,
        "agent": binding.agent,
        "agent_ref": binding.agent_ref,
        "options": dict(binding.options) or None,
        "overlays": list(binding.overlays) or None,
        "extensions": list(binding.extensions) or None,
        "auth": binding.auth if binding.auth != "env" else None,
    }
    return {name: value for name, value in row.items() if value is not None}


def _slots(box: str, executor: str | None) -> dict[str, Any]:
    filled = {
        "environment": box,
        "executor": executor,
        "evaluation_runtime": "default",
        "trajectory_seal": "default",
    }
    services = {slot: plugin for slot, plugin in filled.items() if plugin is not None}
    slots = {
        slot: {"kind": "exclusive", "plugin": plugin, "priority": 100, "source": "lock"}
        for slot, plugin in services.items()
    }
    return {"slots": slots, "services": services, "inject": {}}
