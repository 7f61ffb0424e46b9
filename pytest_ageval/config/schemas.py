"""JSON Schema of each document format, derived from its type: ``python -m pytest_ageval.config.schemas``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from pytest_ageval.config.formats import FORMATS
from pytest_ageval.evidence import events

#: The type of each format that has a schema: of the files that are read, and of what is written.
TYPES: dict[str, Any] = {**FORMATS, events.FORMAT: events.AnyEvent}

#: Where the schemas lie in a checkout.
DIRECTORY = Path(__file__).parents[2] / "docs" / "schemas"


def schema(name: str) -> dict[str, Any]:
    """The schema of the format `name` (``ageval.task/1``)."""
    found = msgspec.json.schema(TYPES[name])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name, **found}


def file_name(name: str) -> str:
    """``ageval.task/1`` is kept in ``ageval.task-1.schema.json``."""
    return name.replace("/", "-") + ".schema.json"


def render(name: str) -> str:
    """The text of the file for the format `name`."""
    return json.dumps(schema(name), indent=2, sort_keys=True) + "\n"


def write(directory: Path) -> list[Path]:
    """Write every schema; the paths written."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for name in TYPES:
        path = directory / file_name(name)
        path.write_text(render(name), encoding="utf-8")
        paths.append(path)
    return paths


def outdated(directory: Path) -> list[Path]:
    """The files that `write` would change."""
    wanted = {directory / file_name(name): render(name) for name in TYPES}
    return [
        path
        for path, text in wanted.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]


def main(argv: list[str] | None = None) -> int:
    """Write the schemas, or with ``--check`` say which ones are out of date (exit code 1)."""
    parser = argparse.ArgumentParser(prog="python -m pytest_ageval.config.schemas")
    parser.add_argument("--check", action="store_true", help="change nothing")
    parser.add_argument("--output", type=Path, default=DIRECTORY, help="directory of the schemas")
    options = parser.parse_args(argv)
    if options.check:
        old = outdated(options.output)
        for path in old:
            sys.stderr.write(f"out of date: {path}\n")
        return 1 if old else 0
    for path in write(options.output):
        sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
