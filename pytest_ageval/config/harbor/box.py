"""The box options that a Harbor task asks for; the kind ``docker`` knows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_ageval.config.harbor.document import HarborTask, HarborVerifier

#: The image's own working directory and user, and files that are copied.
LAYOUT = {"layout": "image"}


def agent_options(task: HarborTask, root: Path, calls_model: bool = False) -> dict[str, Any]:
    """Of the box in which the agent works. With `calls_model` it reaches its model, whatever else it may."""
    options: dict[str, Any] = dict(LAYOUT)
    if task.image is not None:
        options["image"] = task.image
        options["services"] = True
    else:
        options |= _recipe(root, "environment")
    if task.workdir is not None:
        options["workdir"] = task.workdir
    user = task.steps[0].agent_user
    if user is not None:
        options["user"] = user
    if task.network == "no-network" and calls_model:
        # Through the box's own proxy to the model and nowhere else.
        return options | network_options("allowlist", ())
    return options | network_options(task.network, task.allowed_hosts)


def verifier_options(task: HarborTask, verifier: HarborVerifier, root: Path) -> dict[str, Any]:
    """Of the box of a separate verifier."""
    if verifier.image is not None:
        options: dict[str, Any] = {"image": verifier.image}
    elif verifier.recipe is not None:
        options = _recipe(root, verifier.recipe)
    else:
        options = {k: v for k, v in agent_options(task, root).items() if k in _OF_THE_IMAGE}
    return {**LAYOUT, **options, "services": False, **network_options(verifier.network, ())}


_OF_THE_IMAGE = ("image", "dockerfile", "build_context", "workdir")


def _recipe(root: Path, directory: str) -> dict[str, Any]:
    if not (root / directory / "Dockerfile").is_file():
        return {}
    return {"dockerfile": f"{directory}/Dockerfile", "build_context": directory}


def network_options(mode: str, hosts: tuple[str, ...]) -> dict[str, Any]:
    """Docker's ``none`` for no network; a list is enforced by the box's own proxy."""
    if mode == "no-network":
        return {"network": "none"}
    if mode == "allowlist":
        return {"egress": "llm", "egress_allow": list(hosts)}
    return {}
