"""Evidence as attachments of test cases: lines that Jenkins (JUnit Attachments) and GitLab find in JUnit XML.

Both read ``[[ATTACHMENT|PATH]]`` on a line of its own in ``<system-out>``: Jenkins a whole path, GitLab the
first one of a test case that failed, relative to the project.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ageval.attempt_face import FACE
from pytest_ageval.evidence.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


class Attachments:
    """Names the trajectory of each attempt that did not pass. One in every process that runs attempts."""

    def __init__(self, mode: str) -> None:
        self.base = os.environ.get("CI_PROJECT_DIR") if mode == "gitlab" else None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, Any, Any]:
        """Before the report is made, so that it holds the line."""
        face = item.stash.get(FACE, None)
        failed = call.excinfo is not None and not isinstance(call.excinfo.value, pytest.skip.Exception)
        if face is not None and failed and call.when in ("setup", "call"):
            path = _file(face.directory)
            if path is not None:
                item.add_report_section(call.when, "stdout", f"{line(path, self.base)}\n")
        return (yield)


def line(path: Path, base: str | None) -> str:
    """The line for one file; relative to `base` where it lies below it."""
    found = str(path.absolute())
    if base is not None:
        below = os.path.relpath(found, base)
        found = found if below.startswith("..") else below
    return f"[[ATTACHMENT|{found}]]"


def _file(directory: Path) -> Path | None:
    """The trajectory; before there is one, what was locked."""
    layout = Layout(directory)
    return next((path for path in (layout.trajectory, layout.lock) if path.is_file()), None)
