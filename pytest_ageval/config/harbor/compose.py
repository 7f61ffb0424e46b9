"""The service ``main`` of a task's compose file: our own container, so what it asks for is taken over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_ageval.config.check import Source
from pytest_ageval.config.harbor.document import MAIN
from pytest_ageval.config.yamlio import read_text
from pytest_ageval.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

FILES = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
#: What ``main`` may say. Of the image there is only the task's own; the command keeps the box open anyway.
_TAKEN = frozenset(
    {"build", "image", "command", "depends_on", "environment", "labels", "init", "pull_policy"}
)


def find(environment: Path) -> Path | None:
    """The compose file in the directory ``environment/``."""
    return next((environment / name for name in FILES if (environment / name).is_file()), None)


def main_environment(environment: Path) -> dict[str, str]:
    """Variables of the service ``main``. Raises ConfigError for what is not taken over, with the reason."""
    path = find(environment)
    if path is None:
        return {}
    source = Source(path)
    main = _services(path, source).get(MAIN) or {}
    for key in main:
        if key not in _TAKEN:
            raise source.error(
                "harbor_unsupported",
                f"services.main.{key}: the agent's container is made by the box, which takes "
                f"{', '.join(sorted(_TAKEN))} from here",
                f"/services/main/{key}",
                "use task.toml, or the image's recipe",
            )
    _check_build(main.get("build"), source)
    return _variables(main.get("environment"), source)


def _services(path: Path, source: Source) -> dict[str, Any]:
    import yaml

    try:
        document = yaml.safe_load(read_text(path))
    except yaml.YAMLError as error:
        raise ConfigError("invalid_yaml", str(error), file=source.shown) from None
    services = document.get("services") if isinstance(document, dict) else None
    if not isinstance(services, dict):
        raise source.error("invalid_schema", "a compose file has services", "/services")
    return services


def _check_build(build: Any, source: Source) -> None:
    """Another directory or recipe than environment/Dockerfile is not built."""
    table = {"context": build} if isinstance(build, str) else build or {}
    for key, value in table.items():
        usual = {"context": (".", "./", "${CONTEXT_DIR}"), "dockerfile": ("Dockerfile", "./Dockerfile")}
        if value not in usual.get(key, ()):
            raise source.error(
                "harbor_unsupported",
                f"services.main.build.{key}: {value!r}; the image is built from environment/Dockerfile",
                f"/services/main/build/{key}",
            )


def _variables(given: Any, source: Source) -> dict[str, str]:
    if isinstance(given, list):
        given = dict(str(row).partition("=")[::2] for row in given)
    found = {}
    for name, value in (given or {}).items():
        text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        if "$" in text and not text.startswith("${"):
            raise source.error(
                "harbor_unsupported",
                f"services.main.environment.{name}: {text!r}: a variable within a text is not expanded",
                f"/services/main/environment/{name}",
            )
        found[str(name)] = text
    return found
