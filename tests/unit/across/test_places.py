"""Paths and command lines on two machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ageval.across.arguments import Arguments
from pytest_ageval.across.places import Places
from pytest_ageval.across.specs import HostError, check, is_remote, key_of, prepare
from pytest_ageval.across.tree import Tree

PLACES = Places("/tmp/ageval-x")
ARGUMENTS = Arguments(PLACES.there, lambda path: path.is_relative_to("/proj"))


@pytest.mark.parametrize(
    ("word", "there"),
    [
        ("datasets", "datasets"),
        ("datasets/a/task.yaml::a[codex-1]", "datasets/a/task.yaml::a[codex-1]"),
        ("/proj/datasets", "/tmp/ageval-x/proj/datasets"),
        ("/proj/t/task.yaml::a[codex/x-1]", "/tmp/ageval-x/proj/t/task.yaml::a[codex/x-1]"),
        ("--profiles=/other/p.yaml", "--profiles=/tmp/ageval-x/other/p.yaml"),
        ("--ageval-dir=/data/evidence/", "--ageval-dir=/tmp/ageval-x/data/evidence"),
        ("--html=/www/report.html", "--html=/tmp/ageval-x/www/report.html"),
        ("--other=/proj/x", "--other=/tmp/ageval-x/proj/x"),
        ("--other=/usr/bin/x", "--other=/usr/bin/x"),
        ("-c/proj/pytest.ini", "-c/tmp/ageval-x/proj/pytest.ini"),
        ("--set=/limits/wall_time_seconds=3", "--set=/limits/wall_time_seconds=3"),
        ("--agent=codex", "--agent=codex"),
        ("-k", "-k"),
    ],
)
def test_a_word_of_the_command_line(word: str, there: str) -> None:
    assert ARGUMENTS.mapped([word]) == [there]


def test_the_word_after_an_option() -> None:
    words = ["--ageval-dir", "/data/x", "--set", "/limits/a=1", "-c", "/etc/pytest.ini"]
    assert ARGUMENTS.mapped(words) == [
        *("--ageval-dir", "/tmp/ageval-x/data/x", "--set", "/limits/a=1"),
        *("-c", "/tmp/ageval-x/etc/pytest.ini"),
    ]


def test_variables() -> None:
    assert ARGUMENTS.environment("AGEVAL_DIR", "/data/x") == "/tmp/ageval-x/data/x"
    assert ARGUMENTS.environment("AGEVAL_AGENT", "codex /proj") == "codex /proj"
    assert ARGUMENTS.environment("AGEVAL_MATRIX", "/a/b '/c d'") == "/tmp/ageval-x/a/b '/tmp/ageval-x/c d'"
    assert ARGUMENTS.environment("PYTEST_ADDOPTS", "-v /proj/d") == "-v /tmp/ageval-x/proj/d"


def test_what_leaves_a_host_names_the_controllers_paths() -> None:
    told = {
        "a": ["/tmp/ageval-x/proj/f", ("see /tmp/ageval-x/proj/g.", 1)],
        "/tmp/ageval-x/k": None,
        "b": b"/",
    }
    assert PLACES.shown(told) == {"a": ["/proj/f", ("see /proj/g.", 1)], "/k": None, "b": b"/"}
    assert PLACES.here("/tmp/ageval-x/proj") == Path("/proj")
    assert PLACES.here("/tmp/ageval-xy/proj") == Path("/tmp/ageval-xy/proj")
    assert PLACES.there(PLACES.there("/proj")) == "/tmp/ageval-x/proj"


def test_what_travels(tmp_path: Path) -> None:
    root, other = tmp_path / "root", tmp_path / "other"
    for name in (
        *("ds/ageval.yaml", "ds/.env", "ds/tasks/a/task.yaml", "ds/tasks/a/data/.env", "ds/tasks/a/venv/x"),
        *(
            "ds/tasks/venv/task.yaml",
            "ds/.ageval/runs/1/result.json",
            ".git/config",
            ".env",
            "node_modules/x",
        ),
        *(
            "env/pyvenv.cfg",
            "env/bin/x",
            "ds/tasks/a/__pycache__/x.pyc",
            "out/runs/1/x",
            "big.bin",
            "keep/big.txt",
        ),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    other.mkdir()
    (other / "data").touch()
    (root / "link").symlink_to(other)
    (root / "system").symlink_to("/usr/bin")
    tree = Tree([root], frozenset([root / "out"]), ["*.bin"])
    names = {name for path, name in tree.entries() if path.is_file() or path.is_symlink()}
    assert {name.removeprefix(f"{str(tmp_path).lstrip('/')}/") for name in names} == {
        *("root/ds/ageval.yaml", "root/ds/tasks/a/task.yaml", "root/ds/tasks/a/data/.env"),
        *("root/ds/tasks/a/venv/x", "root/ds/tasks/venv/task.yaml", "root/keep/big.txt"),
        *("root/link", "root/system", "other/data"),
    }
    assert tree.env_files == [root / ".env", root / "ds/.env"]
    assert tree.travels(other / "data")
    assert not tree.travels(Path("/usr/bin"))


GOOD = {"python": [3, 12, 1], "executable": "/v/bin/python", "pytest": pytest.__version__, "xdist": "3.8.0"}


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ({**GOOD, "python": [3, 9, 2]}, "h: /v/bin/python is Python 3.9.2, 3.11 or newer is needed"),
        (
            {**GOOD, "pytest_ageval": "0.0.1"},
            "h: pytest-ageval is 0.0.1 there and .* pip install 'pytest-ageval",
        ),
        (
            {**GOOD, "pytest_ageval": None, "why": "no"},
            r"h: /v/bin/python has no pytest_ageval \(no\); there: ",
        ),
        ({**GOOD, "pytest_ageval": "=", "pytest": "7.0"}, "h: pytest is 7.0 there and "),
    ],
)
def test_a_host_with_other_versions_is_refused(versions: dict[str, object], said: str) -> None:
    from pytest_ageval import __version__

    if versions.get("pytest_ageval") == "=":
        versions["pytest_ageval"] = __version__
    with pytest.raises(HostError, match=said):
        check("h", versions)


def test_specs(tmp_path: Path) -> None:
    execnet = pytest.importorskip("execnet")
    own = tmp_path / "own"
    specs = [
        execnet.XSpec(text) for text in ("ssh=a//python=p", "ssh=a//python=p", f"ssh=b//ssh_config={own}")
    ]
    for spec in specs:
        spec.chdir = "pyexecnetcache"
        prepare(spec, tmp_path)
    assert [spec.chdir for spec in specs] == [None] * 3
    assert key_of(specs[0]) == key_of(specs[1]) != key_of(specs[2])
    assert f'Include "{own}"' in Path(specs[2].ssh_config).read_text()
    assert "ServerAliveInterval" in Path(specs[0].ssh_config).read_text()
    assert is_remote(specs[0])
    assert not is_remote(execnet.XSpec("popen//via=p"))
