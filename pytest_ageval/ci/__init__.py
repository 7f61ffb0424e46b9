"""What a run says in the forms of GitHub Actions, GitLab and Jenkins."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from pytest_ageval.options import resolve

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

Mode = Literal["off", "github", "gitlab", "jenkins"]


def mode(config: pytest.Config) -> Mode:
    """The form that is asked for, or that of the system whose variables are set."""
    given = resolve(config, "ci")[0]
    found: Mapping[str, Mode] = {"off": "off", "github": "github", "gitlab": "gitlab", "jenkins": "jenkins"}
    if given in found:
        return found[given]
    if os.environ.get("GITHUB_ACTIONS") == "true":
        return "github"
    if os.environ.get("GITLAB_CI") == "true":
        return "gitlab"
    return "jenkins" if os.environ.get("JENKINS_URL") else "off"
