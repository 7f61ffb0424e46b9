"""What a template or snapshot is made from: a Dockerfile, the files that its COPY sees, and layers.

A digest stands for all of it, so that a change makes a new one and nothing else does.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
import shutil
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_ageval.box import ImageLayer
from pytest_ageval.errors import BoxError

#: Never part of the build of a task's recipe: gold, the solution, evidence, and what is not worth sending.
EXCLUDED = ("evaluation", "solution", ".ageval", ".git", "**/__pycache__", "**/*.pyc", "**/node_modules")

_BASE = Path(__file__).parent / "docker_box" / "base" / "Dockerfile"
_FROM_BASE = re.compile(
    r"^[ \t]*FROM[ \t]+(?:--platform=\S+[ \t]+)?ageval-attempt:base(?P<stage>[ \t]+AS[ \t]+\S+)?[ \t]*$",
    re.IGNORECASE | re.MULTILINE,
)
_REMOTE = re.compile(r"^([a-z][a-z0-9+.-]*://|git@)", re.IGNORECASE)
_ARCHIVE = re.compile(r"\.(tar|tar\.\w+|tgz|tbz2?|txz)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A Dockerfile with its context: `files` of it are what a build may see. `source`: for messages."""

    text: str
    context: Path | None
    files: tuple[str, ...]
    source: str

    @property
    def digest(self) -> str:
        """Stands for the text and for the files that it copies: their names, modes, contents, links."""
        found = hashlib.sha256()
        _take(found, self.text.encode())
        if self.context is not None:
            _take_files(found, self.context, _copied(self.text, self.files))
        return found.hexdigest()


def of_task(task_root: Path | None) -> Recipe | None:
    """The task's ``environment/Dockerfile`` with the task's directory as its context, if it has one."""
    path = None if task_root is None else task_root / "environment" / "Dockerfile"
    if task_root is None or path is None or not path.is_file():
        return None
    text = path.read_text("utf-8")
    base = of_base().text

    def inline(found: re.Match[str]) -> str:
        return re.sub(r"(?m)^(FROM \S+)$", rf"\g<1>{found['stage'] or ''}", base, count=1)

    text = _FROM_BASE.sub(inline, text)
    return Recipe(text, task_root, files_of(task_root, EXCLUDED), str(path))


def of_base() -> Recipe:
    """Our own base, which no vendor can look up by its name."""
    text = _BASE.read_text("utf-8")
    # What is above FROM is not known below it with every vendor.
    for name, value in re.findall(r"(?m)^ARG (\w+)=(\S+)\n", text):
        text = text.replace(f"ARG {name}={value}\n", "").replace(f"${{{name}}}", value)
    return Recipe(text, None, (), "the base image of pytest-ageval")


def of_image(image: str) -> Recipe:
    """Nothing but an image."""
    return Recipe(f"FROM {image}\n", None, (), image)


def layer_recipe(layer: ImageLayer, *, user: str) -> str:
    """The instructions of a layer, as the superuser; commands of the box go on as `user`."""
    body = layer.recipe or ("" if layer.dest is None else f"COPY . {layer.dest}")
    return f"USER root\n{body.rstrip()}\nUSER {user}\n"


def last_user(text: str, default: str) -> str:
    """As whom the commands of the last stage of a Dockerfile end."""
    user = default
    for row in _parsed(text).instructions:
        if row.name == "FROM":
            user = default
        elif row.name == "USER" and row.args:
            user = row.args[0]
    return user


def stacked(below: str, layer: ImageLayer) -> str:
    """The digest of `layer` on top of what has the digest `below`."""
    found = hashlib.sha256()
    _take(found, below.encode(), layer.recipe.encode(), (layer.dest or "").encode())
    if layer.key is not None:
        _take(found, b"key", layer.key.encode())
    elif layer.context is not None:
        _take(found, b"files")
        _take_files(found, layer.context, files_of(layer.context))
    return found.hexdigest()


def files_of(context: Path, excluded: Sequence[str] = ()) -> tuple[str, ...]:
    """The files and directories of a context, without what its ``.dockerignore`` and `excluded` name."""
    from e2b_dockerfile_utils import PatternMatcher

    ignore = context / ".dockerignore"
    lines = ignore.read_text("utf-8-sig").splitlines() if ignore.is_file() else []
    patterns = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    # Ours come last: no "!" of a task's own list brings gold back.
    matcher = PatternMatcher([*patterns, *excluded])
    found: list[str] = []

    def walk(directory: Path, prefix: str) -> None:
        with os.scandir(directory) as entries:
            for entry in entries:
                name = prefix + entry.name
                ignored = matcher.matches(name)
                if not ignored:
                    found.append(name)
                if entry.is_dir(follow_symlinks=False) and (not ignored or matcher.may_match_under(name)):
                    walk(Path(entry.path), f"{name}/")

    walk(context, "")
    return tuple(sorted(found))


def _copied(text: str, files: Sequence[str]) -> Iterable[str]:
    """Those of `files` that instructions copy; all where that cannot be told before the build."""
    from e2b_dockerfile_utils import PatternMatcher

    sources = [source for row in _copies(text) for source in row.args[:-1]]
    plain = [posixpath.normpath(f"/{source}").strip("/") for source in sources]
    if any("$" in source or not name for source, name in zip(sources, plain, strict=True)):
        return files
    matcher = PatternMatcher([name.strip("\"'") for name in plain])
    return [name for name in files if matcher.matches(name)]


def _take(found: Any, *parts: bytes) -> None:
    for part in parts:
        found.update(len(part).to_bytes(8, "big") + part)


def _take_files(found: Any, context: Path, files: Iterable[str]) -> None:
    for name in files:
        path = context / name
        info = path.lstat()
        _take(found, os.fsencode(name))
        if stat.S_ISLNK(info.st_mode):
            _take(found, b"link", os.fsencode(path.readlink()))
        elif stat.S_ISREG(info.st_mode):
            _take(found, b"file", oct(info.st_mode & 0o111).encode())
            with path.open("rb") as file:
                _take(found, hashlib.file_digest(file, "sha256").digest())
        else:
            _take(found, b"directory")


# -- for a vendor that takes one Dockerfile with one context ---------------------------------------


def stage(recipe: Recipe, layers: Sequence[ImageLayer], directory: Path, *, user: str) -> Path:
    """Write one Dockerfile for a recipe and its layers into `directory`, with all that they copy.

    Each has its context in a directory of its own, so that neither sees the files of another one, and
    nothing outside of them can be named. Returns the path of the Dockerfile.
    """
    # The digests are for a vendor that keeps what it got by names and contents, and forgets modes.
    name = f"context-{recipe.digest[:12]}"
    parts = [under(recipe.text, name)]
    _link_files(recipe.context, recipe.files, directory / name)
    user = last_user(recipe.text, user)
    for number, layer in enumerate(layers):
        name = f"layer-{number}-{stacked('', layer)[:12]}"
        parts.append(under(layer_recipe(layer, user=user), name))
        _link_files(layer.context, files_of(layer.context) if layer.context else (), directory / name)
    path = directory / "Dockerfile"
    path.write_text("\n".join(parts), encoding="utf-8")
    return path


def under(text: str, prefix: str) -> str:
    """A Dockerfile whose COPY and ADD take their sources from below `prefix` of the context."""
    from e2b_dockerfile_utils import parse_heredoc

    lines = text.splitlines()
    for row in reversed(_copies(text)):
        if row.heredocs or any(parse_heredoc(word) is not None for word in row.args):
            continue
        *sources, dest = row.args
        if row.name == "ADD" and any(map(_ARCHIVE.search, sources)):
            raise BoxError(
                "environment_image_unresolved",
                f"line {row.start_line}: ADD unpacks archives, which cannot be sent; use COPY and RUN tar",
            )
        moved = [_moved(word, prefix) for word in sources]
        words = json.dumps([*moved, dest]) if row.json else " ".join([*moved, dest])
        # ADD of what is neither remote nor an archive is COPY.
        line = " ".join(["COPY", *row.flags, words])
        lines[row.start_line - 1 : row.end_line] = [line]
    return "\n".join(lines) + "\n"


def _moved(word: str, prefix: str) -> str:
    quote = word[0] if word[:1] in ("'", '"') and word[-1:] == word[:1] else ""
    plain = word[1:-1] if quote else word
    path = posixpath.normpath(f"/{plain}").strip("/")
    return f"{quote}{prefix}/{path}{quote}" if path else f"{quote}{prefix}{quote}"


def _parsed(text: str) -> Any:
    from e2b_dockerfile_utils import DockerfileSyntaxError, parse_dockerfile_ast

    try:
        return parse_dockerfile_ast(text)
    except DockerfileSyntaxError as error:
        raise BoxError("environment_image_unresolved", str(error)) from error


def _copies(text: str) -> list[Any]:
    """The instructions that copy from the context: not from other stages, and nothing remote."""
    return [
        row
        for row in _parsed(text).instructions
        if row.name in ("COPY", "ADD")
        and len(row.args) > 1
        and not any(flag.startswith("--from=") for flag in row.flags)
        and not any(_REMOTE.match(word) for word in row.args)
    ]


def _link_files(context: Path | None, files: Sequence[str], dest: Path) -> None:
    """Put `files` of a context below `dest`: as hard links where that can be."""
    dest.mkdir(parents=True)
    if context is None:
        return
    for name in files:
        source, target = context / name, dest / name
        info = source.lstat()
        target.parent.mkdir(parents=True, exist_ok=True)
        if stat.S_ISLNK(info.st_mode):
            target.symlink_to(source.readlink())
        elif stat.S_ISDIR(info.st_mode):
            target.mkdir(exist_ok=True)
        elif stat.S_ISREG(info.st_mode):
            try:
                os.link(source, target)
            except OSError:  # another file system, or one that has no links
                shutil.copy2(source, target)
