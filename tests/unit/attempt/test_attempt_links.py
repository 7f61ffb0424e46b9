"""Links that an agent plants to have the evaluator read a hidden file."""

import os
import subprocess
from pathlib import Path

import pytest

from pytest_ageval.attempt.links import (
    follow,
    identity,
    remove_escaping_links,
    remove_outward_links,
    walk_links,
)

AGENTS = ("/attempt/workspace", "/attempt/home")


@pytest.fixture
def box(tmp_path):
    """The host's side of a box: the agent's directories, and gold beside them."""
    for name in ("workspace/sub", "home", "evaluation", "../gold"):
        (tmp_path / "box" / name).mkdir(parents=True)
    (tmp_path / "box" / "evaluation" / "expected.json").write_text("{}")
    (tmp_path / "gold" / "expected.json").write_text("{}")
    return tmp_path / "box"


def removed(box, links):
    """Which of `links` (name in the workspace to text) are removed."""
    workspace = box / "workspace"
    for name, text in links.items():
        (workspace / name).symlink_to(text)

    def in_box(path):
        return str(box / path.removeprefix("/attempt/")) if path.startswith("/attempt/") else path

    own = (str(workspace), str(box / "home"))
    views = [(str(workspace), lambda path: path, (*own, *AGENTS)), ("/attempt/workspace", in_box, AGENTS)]
    return sorted(remove_escaping_links(workspace, views))


@pytest.mark.parametrize(
    "text",
    [
        "../evaluation/expected.json",
        "../../gold/expected.json",
        "/attempt/evaluation/expected.json",
        "//attempt/evaluation/expected.json",
        "/attempt/home/../evaluation/expected.json",
        "../../../../../../../../../attempt/evaluation/expected.json",
        "/usr/share/../../attempt/evaluation/expected.json",
        "/proc/self/root/attempt/evaluation/expected.json",
        "/proc/self/cwd/../evaluation/expected.json",
        "/dev/fd/../cwd/../evaluation/expected.json",
        "/tmp/hop",
        "/etc/passwd",
        "/root/.ssh/id_rsa",
        "..",
        "/",
    ],
)
def test_what_leads_out_is_removed(box, text):
    assert removed(box, {"answer": text}) == ["answer"]


@pytest.mark.parametrize(
    "text",
    [
        "sub",
        "sub/not-there-yet",
        "../workspace/sub",
        "../home/.venv/bin/python",
        "/attempt/workspace/sub",
        "/attempt/home/.local/bin/tool",
        "/usr/bin/env",
        "/usr/bin/../lib",
    ],
)
def test_what_stays_inside_or_is_a_program_is_kept(box, text):
    assert removed(box, {"answer": text}) == []


def test_a_chain_is_followed_through_the_agents_own_directories(box):
    (box / "home" / "hop").symlink_to("../evaluation/expected.json")
    (box / "workspace" / "sub" / "system").symlink_to("/usr/share")
    links = {"a": "../home/hop", "b": "sub/system/../../attempt/evaluation/expected.json", "loop": "loop"}
    assert removed(box, links) == ["a", "b", "loop"]


def test_following_is_what_the_kernel_does(tmp_path):
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "short").symlink_to("real/deep")
    (tmp_path / "file").symlink_to("short/../x")
    assert follow(str(tmp_path), "short/../x", lambda path: path, (str(tmp_path),)) == os.path.realpath(
        tmp_path / "file"
    )


def test_artifacts_hold_no_link_that_leads_out(tmp_path):
    artifacts = tmp_path / "artifacts"
    artifacts.mkdir()
    (artifacts / "real.txt").write_text("x")
    (artifacts / "inner").symlink_to("real.txt")
    (artifacts / "outer").symlink_to("/etc/hostname")
    assert remove_outward_links(artifacts) == ["outer"]
    assert (artifacts / "inner").read_text() == "x"


def test_a_directory_that_is_a_link_is_not_walked(tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "outer").symlink_to("/etc/hostname")
    (tmp_path / "workspace").symlink_to(victim)
    assert remove_outward_links(tmp_path / "workspace") == []
    assert (victim / "outer").is_symlink()
    assert identity(tmp_path / "workspace") is None
    assert identity(victim) is not None


def test_a_tree_may_be_deeper_than_a_call_stack(tmp_path):
    here = Path.cwd()
    try:
        os.chdir(tmp_path)
        for _ in range(1500):
            Path("d").mkdir()
            os.chdir("d")
        Path("planted").symlink_to("/etc/passwd")
        os.chdir(tmp_path)
        assert len(list(walk_links(tmp_path))) <= 1, "paths above the kernel's limit are out of reach"
    finally:
        os.chdir(here)
        subprocess.run(["rm", "-rf", str(tmp_path / "d")], check=True)
