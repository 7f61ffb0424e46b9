"""The box options that a Harbor task asks for; the kind ``docker`` knows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_ageval.config.harbor import network

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_ageval.config.harbor.document import HarborTask, HarborVerifier

#: The image's own working directory and user, and files that are copied.
LAYOUT = {"layout": "image"}
_OF_THE_IMAGE = ("image", "dockerfile", "build_context", "workdir", "platform")


def agent_options(task: HarborTask, root: Path, calls_model: bool = False) -> dict[str, Any]:
    """Of the box in which the agent works. With `calls_model` it reaches its model, whatever else it may."""
    options: dict[str, Any] = dict(LAYOUT)
    if task.image is not None:
        options["image"] = task.image
        options["services"] = True
    else:
        options |= _recipe(root, "environment", task.dockerfile)
    user = task.steps[0].agent_user or task.user
    given = {"workdir": task.workdir, "user": user, "platform": task.platform}
    options |= {name: value for name, value in given.items() if value is not None}
    if network.changes(task):
        return options | _changing(task, calls_model)
    return options | network.options(network.for_model(task.network, calls_model=calls_model))


def _changing(task: HarborTask, calls_model: bool) -> dict[str, Any]:
    """The box is opened with the network of the environment; the phases change it."""
    later = {network.for_model(found, calls_model=calls_model).mode for found in network.phases(task)}
    return {**network.options(task.network), "network_phases": sorted(later)}


def verifier_options(task: HarborTask, verifier: HarborVerifier, root: Path) -> dict[str, Any]:
    """Of the box of a separate verifier."""
    if verifier.image is not None:
        options: dict[str, Any] = {"image": verifier.image}
    elif verifier.recipe is not None:
        options = _recipe(root, verifier.recipe)
    else:
        options = {k: v for k, v in agent_options(task, root).items() if k in _OF_THE_IMAGE}
    if verifier.workdir is not None:
        options["workdir"] = verifier.workdir
    return {**LAYOUT, **options, "services": False, **network.options(verifier.network or task.network)}


def _recipe(root: Path, directory: str, name: str = "Dockerfile") -> dict[str, Any]:
    if not (root / directory / name).is_file():
        return {}
    return {"dockerfile": f"{directory}/{name}", "build_context": directory}
