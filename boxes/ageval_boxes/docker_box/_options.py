"""The options of the kind ``docker``."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from ageval_boxes.docker_box._egress import rules
from pytest_ageval.box import NetworkMode


class DockerOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The options of a docker box.

    `image` (or `docker_image`): an image to use as it is; pulled if it is not there.
    `dockerfile`: a recipe, as a path below the task's directory, in place of ``environment/Dockerfile``.
    `build_context`: what the recipe's COPY sees, as a path below the task's directory; default: all of
    it but ``evaluation/`` and ``solution/``.
    `layout`: with ``image`` the box has the image's own user and working directory (or `user`, a name too,
    and `workdir`), ``/attempt/workspace`` is a link to it, and files are copied.
    `services`: start the services of the task's compose file, if it has one.
    `user`: ``uid``, ``uid:gid`` or ``root``; default: 10001:10001, or the user who runs pytest when
    that is not root.
    `network`: ``bridge``, ``none``, the name of a network, or ``service:<name>`` to share the network
    of a compose service.
    `platform`: such as ``linux/amd64``.
    `python_version`: which variant of the base image, such as ``3.12``.
    `cap_add`: capabilities (``SYS_PTRACE``) that root in the box gets beyond those of an installer.
    `environment`: variables of every command.
    `compose_environment`: variables that the compose file names, besides those of `environment`.
    `network_phases`: the network is changed while the box runs (`use_network`), to one of these.
    `egress`: with ``llm`` the box reaches the agents' ``base_url`` hosts and `egress_allow`
    (``host`` or ``host:port``, ``*.host``, ``10.0.0.0/8``) and nothing else, through a proxy.
    `background`: what `quiesce` does with processes that detached themselves.
    """

    image: str | None = None
    docker_image: str | None = None
    dockerfile: str | None = None
    build_context: str | None = None
    layout: Literal["attempt", "image"] = "attempt"
    workdir: str | None = None
    services: bool = True
    user: str | None = None
    network: str = "bridge"
    platform: str | None = None
    python_version: str | None = None
    cap_add: list[str] = msgspec.field(default_factory=list)
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    compose_environment: dict[str, str] = msgspec.field(default_factory=dict)
    network_phases: list[NetworkMode] = msgspec.field(default_factory=list)
    egress: Literal["off", "llm"] = "off"
    egress_allow: list[str] = msgspec.field(default_factory=list)
    background: Literal["kill", "keep"] = "kill"

    def __post_init__(self) -> None:
        """Refuse what cannot work, before anything is started."""
        if self.workdir is not None and (self.layout != "image" or not self.workdir.startswith("/")):
            raise ValueError("workdir is an absolute path, for layout: image")
        known = USER if self.layout == "image" else re.compile(r"root|\d+(:\d+)?")
        if self.user is not None and not known.fullmatch(self.user):
            raise ValueError(f"user: {self.user!r} is not root, a uid or uid:gid")
        if not re.fullmatch(r"(service:)?[A-Za-z0-9][A-Za-z0-9_.-]*", self.network):
            raise ValueError(f"network: {self.network!r} is not none, bridge, a network or service:<name>")
        if self.network == "host":
            raise ValueError("network: host would give the box the network of this machine")
        if self.python_version is not None and not re.fullmatch(r"\d+\.\d+", self.python_version):
            raise ValueError(f"python_version: {self.python_version!r} is not like 3.12")
        if self.egress_allow and self.egress != "llm":
            raise ValueError("egress_allow needs egress: llm")
        if self.egress == "llm" and self.network != "bridge":
            raise ValueError(f"egress: llm has a network of its own; network: {self.network} cannot be")
        if self.network_phases and self.network not in ("bridge", "none"):
            raise ValueError(f"network_phases: the network is bridge or none, not {self.network}")
        rules((), self.egress_allow)
        if self.image and self.docker_image and self.image != self.docker_image:
            raise ValueError("image and docker_image are two names of one option")

    @property
    def network_mode(self) -> NetworkMode:
        """The network with which the box is opened."""
        if self.egress == "llm":
            return "allowlist"
        return "no-network" if self.network == "none" else "public"

    @property
    def closes_services(self) -> bool:
        """With ``layout: image`` the network of the box is that of its services too."""
        return self.layout == "image" and self.network_mode != "public"

    @property
    def named_image(self) -> str | None:
        """The image that was asked for."""
        return self.image or self.docker_image

    def ids(self, default: tuple[int, int]) -> tuple[int, int]:
        """The user and the group in the box."""
        if self.user is None or self.layout == "image":
            return default
        if self.user == "root":
            return 0, 0
        uid, _, gid = self.user.partition(":")
        return int(uid), int(gid or uid)


#: What `user` of an exec may be: a name or number, with a group or without.
USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?")
