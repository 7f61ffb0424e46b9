"""A look at run.py and evaluator.py before anything is started: a slip in them should cost nothing."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from pytest_ageval.config.where import display
from pytest_ageval.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_ageval.config.tasks import TaskDocument


def check_scripts(task: TaskDocument) -> None:
    """Both scripts can be compiled and define the function that is called.

    Raises ConfigError ``invalid_script`` with file and line. Nothing of them is executed.
    """
    module, _, function = task.evaluation.entrypoint.partition(":")
    check_script(task.root / "run.py", "run")
    check_script(task.root.joinpath(*module.split(".")).with_suffix(".py"), function)


def check_script(path: Path, function: str) -> None:
    """`path` can be compiled and defines `function`."""
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except (SyntaxError, ValueError) as error:
        raise ConfigError(
            "invalid_script",
            f"{type(error).__name__}: {getattr(error, 'msg', error)}",
            file=display(path),
            line=getattr(error, "lineno", None),
        ) from None
    except OSError as error:
        raise ConfigError("unreadable_file", str(error.strerror or error), file=display(path)) from None
    if not any(_may_define(node, function) for node in tree.body):
        raise ConfigError(
            "invalid_script",
            f"no function {function!r} is defined here",
            file=display(path),
            hint=f"write: def {function}(...) at the top level",
        )


def _may_define(node: ast.stmt, name: str) -> bool:
    """`node` defines `name`, or cannot be judged without running it."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name == name
    if isinstance(node, ast.Import | ast.ImportFrom):
        return any((alias.asname or alias.name) in (name, "*") for alias in node.names)
    # An assignment, or a definition in an if, try or with: a name that is bound somewhere in it.
    return any(
        (isinstance(inner, ast.Name) and inner.id == name)
        or (isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and inner.name == name)
        or (isinstance(inner, ast.alias) and (inner.asname or inner.name) in (name, "*"))
        for inner in ast.walk(node)
    )
