"""The service ``main`` of a task's compose file: our own container, so what it asks for is taken over."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_ageval.config.check import Source
from pytest_ageval.config.harbor.document import MAIN
from pytest_ageval.config.yamlio import read_text
from pytest_ageval.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

FILES = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
#: Keys of ``main`` that become options of the box here.
OPTIONS = frozenset({"build", "command", "environment", "image", "platform", "user", "working_dir"})
#: Keys that the box reads from the file when it makes the container.
CONTAINER = frozenset(
    {"cap_add", "depends_on", "extra_hosts", "hostname", "labels", "networks", "shm_size", "tmpfs", "ulimits",
     "volumes"}
)  # fmt: skip
#: Keys that say nothing which a box does not do anyway, or of this machine, which no attempt is part of.
WITHOUT_EFFECT = frozenset(
    {"container_name", "expose", "init", "ports", "pull_policy", "restart", "stdin_open",
     "stop_grace_period", "stop_signal", "tty"}
)  # fmt: skip
#: Keys that are refused, with the reason; any other key is refused with `_OTHER`.
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "cgroup",
            "devices",
            "ipc",
            "network_mode",
            "pid",
            "privileged",
            "security_opt",
            "userns_mode",
            "uts",
        ),
        "the agent would reach this machine",
    ),
    **dict.fromkeys(
        ("cpus", "deploy", "mem_limit", "pids_limit", "memswap_limit"),
        "resources are those of task.toml, which are also recorded; use environment.cpus and memory_mb",
    ),
    "entrypoint": "the box keeps its container open itself; a program that is to run is a service",
    "env_file": "write the variables into environment.env of task.toml, where secrets are known as such",
    "healthcheck": "use environment.healthcheck of task.toml",
}
_OTHER = "the box does not do it; use task.toml, or the image's recipe"

#: What Harbor gives a compose file besides the variables of the task.
INFRASTRUCTURE = frozenset(
    {"CONTEXT_DIR", "CPUS", "ENV_AGENT_LOGS_PATH", "ENV_ARTIFACTS_PATH", "ENV_VERIFIER_LOGS_PATH",
     "HOST_AGENT_LOGS_PATH", "HOST_ARTIFACTS_PATH", "HOST_VERIFIER_LOGS_PATH", "MAIN_IMAGE_NAME", "MEMORY",
     "PREBUILT_IMAGE_NAME"}
)  # fmt: skip

#: ``$$``, ``$NAME``, ``${NAME}`` and ``${NAME:-default}`` in a value of a compose file.
_VARIABLE = re.compile(r"\$(?:\$|([A-Za-z_]\w*)|\{([A-Za-z_]\w*)((?::?[-+?]).*?)?\})", re.ASCII)
#: Commands that keep a container open and do nothing else, which the box does itself.
_KEEPS_OPEN = re.compile(
    r"(?:(?:/bin/)?(?:ba)?sh -l?c )?[\"']?(?:exec )?"
    r"(?:sleep (?:infinity|\d+[smhd]?)|tail -f /dev/null|while (?:true|:); ?do sleep \d+; ?done|"
    r"(?:/bin/)?(?:ba)?sh)[\"']?"
)


@dataclass(frozen=True, slots=True)
class Main:
    """What ``main`` says, as far as it becomes options of the box."""

    environment: Mapping[str, str] = field(default_factory=dict)
    #: Used where the task has neither ``docker_image`` nor a recipe.
    image: str | None = None
    #: The recipe, relative to ``environment/``.
    dockerfile: str = "Dockerfile"
    workdir: str | None = None
    user: str | None = None
    platform: str | None = None


def find(environment: Path) -> Path | None:
    """The compose file in the directory ``environment/``."""
    return next((environment / name for name in FILES if (environment / name).is_file()), None)


def main_service(environment: Path) -> Main:
    """The service ``main``. Raises ConfigError for what is not taken over, with the reason."""
    path = find(environment)
    if path is None:
        return Main()
    source = Source(path)
    main = _document(path, source)["services"].get(MAIN) or {}
    for key in main:
        if key not in OPTIONS | CONTAINER | WITHOUT_EFFECT and not str(key).startswith("x-"):
            raise _refused(source, key, REFUSED.get(key, _OTHER))
    _check_command(main.get("command"), source)
    built = main.get("build")
    user = main.get("user")
    return Main(
        environment=_variables(main.get("environment"), source),
        image=None if built or not main.get("image") else _plain(main, "image", source),
        dockerfile=_recipe(built, environment, source),
        workdir=_plain(main, "working_dir", source),
        user=None if user is None else str(_plain(main, "user", source)),
        platform=_plain(main, "platform", source),
    )


def services(environment: Path) -> list[str]:
    """The services besides ``main``."""
    path = find(environment)
    return [] if path is None else [n for n in _document(path, Source(path))["services"] if n != MAIN]


def variables(environment: Path) -> dict[str, bool]:
    """The variables that the file names, Harbor's own left out, and whether each has no default."""
    path = find(environment)
    if path is None:
        return {}
    found: dict[str, bool] = {}
    for text in _texts(_document(path, Source(path))):
        for match in _VARIABLE.finditer(text):
            name = match[1] or match[2]
            if name is not None and name not in INFRASTRUCTURE:
                optional = (match[3] or "").lstrip(":").startswith(("-", "+"))
                found[name] = found.get(name, False) or not optional
    return dict(sorted(found.items()))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for row in value.values():
            yield from _texts(row)
    elif isinstance(value, list):
        for row in value:
            yield from _texts(row)
    elif isinstance(value, str):
        yield value


def _document(path: Path, source: Source) -> dict[str, Any]:
    import yaml

    try:
        document = yaml.safe_load(read_text(path))
    except yaml.YAMLError as error:
        raise ConfigError("invalid_yaml", str(error), file=source.shown) from None
    services = document.get("services") if isinstance(document, dict) else None
    if not isinstance(services, dict):
        raise source.error("invalid_schema", "a compose file has services", "/services")
    found: dict[str, Any] = document
    return found


def _refused(source: Source, key: str, why: str) -> ConfigError:
    return source.error(
        "harbor_unsupported", f"services.main.{key}: {why}", f"/services/main/{key.replace('.', '/')}"
    )


def _check_command(command: Any, source: Source) -> None:
    words = " ".join(map(str, command)) if isinstance(command, list) else str(command or "sh")
    if not _KEEPS_OPEN.fullmatch(words.strip()):
        raise _refused(
            source, "command", f"{words!r} does more than keep the container open, which the box does itself"
        )


def _plain(main: Mapping[str, Any], key: str, source: Source) -> str | None:
    """A value that is needed before Compose reads the file: without variables."""
    value = main.get(key)
    if value is None:
        return None
    if "$" in str(value):
        raise _refused(source, key, f"{value!r}: a variable is not expanded here")
    return str(value)


def _recipe(build: Any, environment: Path, source: Source) -> str:
    """The recipe within environment/; what is built otherwise is refused."""
    table = {"context": build} if isinstance(build, str) else dict(build or {})
    context = table.pop("context", ".")
    name = str(table.pop("dockerfile", "Dockerfile")).removeprefix("./")
    if context not in (".", "./", "${CONTEXT_DIR}", "${CONTEXT_DIR:-.}"):
        raise _refused(source, "build.context", f"{context!r}: the image is built from environment/")
    if "$" in name or not (environment / name).resolve().is_relative_to(environment.resolve()):
        raise _refused(source, "build.dockerfile", f"{name!r}: the recipe is a file in environment/")
    for key in table:
        raise _refused(source, f"build.{key}", "the image is built from its recipe alone")
    return name


def _variables(given: Any, source: Source) -> dict[str, str]:
    if isinstance(given, list):
        given = dict(str(row).partition("=")[::2] for row in given)
    found = {}
    for name, value in (given or {}).items():
        text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        if "$" in text and not re.fullmatch(r"\$\{\w+(?::-[^$]*)?\}", text):
            raise _refused(
                source, f"environment.{name}", f"{text!r}: a variable within a text is not expanded"
            )
        found[str(name)] = text
    return found
