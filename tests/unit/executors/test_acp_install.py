"""How agents are installed: Node's floor, npm's failures, the cache, one install for many."""

from __future__ import annotations

import asyncio
import json
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from acp_kit import Log, local_box, make_session

from ageval_executors.acp import AcpExecutor, pypi
from ageval_executors.acp.entries import ENTRIES, Entry, Python
from ageval_executors.acp.install import (
    ensure_runtime,
    find_toolchain,
    install_name,
    install_on_host,
    parse_version,
    platform_name,
)
from pytest_ageval.errors import ExecutorError

PLATFORM = platform_name(platform.machine())

# Plays Node and npm: writes what npm would have installed, and counts its calls.
NPM = """#!/bin/sh
echo call >> "{log}"
echo "npm error 404 no such package" >&2
{body}
"""
GOOD = """
sleep 0.3
mkdir -p node_modules/@zed-industries/codex-acp
echo '{"version": "0.16.0"}' > node_modules/@zed-industries/codex-acp/package.json
"""


def toolchain(folder: Path, version: str = "v24.1.0", body: str = GOOD) -> Path:
    bin_ = folder / "tools" / "bin"
    bin_.mkdir(parents=True)
    node, npm = bin_ / "node", bin_ / "npm"
    node.write_text(f"#!/bin/sh\necho {version}\n")
    npm.write_text(NPM.replace("{log}", str(folder / "npm.log")).replace("{body}", body))
    for file in (node, npm):
        file.chmod(0o755)
    return node


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def prepare(work: Path, node: Path | None, *, times: int = 1, entry: str = "codex") -> None:
    async def run() -> None:
        async with local_box(work) as box:
            options = {"entry": entry, **({"node": str(node)} if node else {})}
            session = make_session(box, Log(), options, api_key="k", api_key_name="K")
            await asyncio.gather(*(AcpExecutor.prepare(session) for _ in range(times)))

    asyncio.run(run())


def test_many_that_want_an_agent_install_it_once(tmp_path: Path) -> None:
    node = toolchain(tmp_path)

    prepare(tmp_path, node, times=4)

    [installed] = (tmp_path / "cache" / "pytest-ageval" / "agents").glob("codex-*")
    assert installed.name == install_name(ENTRIES["codex"], PLATFORM, 24)
    wanted = json.loads((installed / "package.json").read_text())["dependencies"]
    assert wanted == {"@zed-industries/codex-acp": "0.16.0"}
    assert (tmp_path / "npm.log").read_text() == "call\n"


def test_the_name_of_an_install_follows_what_is_in_it() -> None:
    codex = ENTRIES["codex"]

    names = {
        install_name(codex, PLATFORM, 20),
        install_name(codex, PLATFORM, 24),
        install_name(codex, "linux-other", 20),
        install_name(ENTRIES["opencode"], PLATFORM, 20),
    }

    assert len(names) == 4


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("exit 7", "exit code 7"),
        ("true", "@zed-industries/codex-acp is None, not 0.16.0"),
        (GOOD.replace("0.16.0", "0.15.0"), "is 0.15.0, not 0.16.0"),
    ],
)
def test_an_install_that_fails_leaves_nothing(tmp_path: Path, body: str, told: str) -> None:
    node = toolchain(tmp_path, body=body)

    with pytest.raises(ExecutorError) as caught:
        prepare(tmp_path, node)

    assert caught.value.title == "acp_runtime_install_failed"
    assert told in caught.value.message
    if "exit" in body:
        assert caught.value.detail == "npm error 404 no such package"
    agents = tmp_path / "cache" / "pytest-ageval" / "agents"
    assert [path.name for path in agents.iterdir() if path.is_dir()] == []


def test_a_node_below_the_floor_is_refused_with_a_remedy(tmp_path: Path) -> None:
    node = toolchain(tmp_path, version="v20.20.2")

    with pytest.raises(ExecutorError) as caught:
        prepare(tmp_path, node, entry="pi")

    assert caught.value.title == "acp_runtime_node"
    assert "pi needs Node >= 22.19" in caught.value.message
    assert f"{node} is 20.20" in caught.value.message


def test_no_node_at_all(tmp_path: Path) -> None:
    with pytest.raises(ExecutorError) as caught:
        asyncio.run(find_toolchain(ENTRIES["codex"], str(tmp_path / "none")))

    assert caught.value.title == "acp_runtime_missing"
    assert "install Node" in caught.value.message


def test_nothing_is_installed_in_the_run(tmp_path: Path) -> None:
    node = toolchain(tmp_path)

    async def run() -> None:
        async with local_box(tmp_path) as box:
            await ensure_runtime(ENTRIES["codex"], box, runtime=None, node=str(node), may_install=False)

    with pytest.raises(ExecutorError) as caught:
        asyncio.run(run())

    assert caught.value.title == "acp_runtime_missing"
    assert not (tmp_path / "npm.log").exists()


def test_a_runtime_that_is_there_is_taken(tmp_path: Path) -> None:
    node = toolchain(tmp_path)
    (tmp_path / "mine" / "node_modules").mkdir(parents=True)

    async def run() -> str:
        async with local_box(tmp_path) as box:
            found = await ensure_runtime(
                ENTRIES["codex"],
                box,
                runtime=str(tmp_path / "mine"),
                node=str(node),
                may_install=False,
            )
            return found.directory

    assert asyncio.run(run()) == str(tmp_path / "mine")


@pytest.mark.parametrize(
    ("text", "version"), [("v20.20.2\n", (20, 20)), ("22.1.0", (22, 1)), ("none", None), ("", None)]
)
def test_versions(text: str, version: tuple[int, int] | None) -> None:
    assert parse_version(text) == version


def test_a_missing_key_is_told_before_the_run(tmp_path: Path) -> None:
    async def run() -> None:
        async with local_box(tmp_path) as box:
            session = make_session(box, Log(), {"entry": "codex"}, api_key_name="OPENAI_API_KEY")
            await AcpExecutor.prepare(session)

    with pytest.raises(ExecutorError, match="OPENAI_API_KEY is not set"):
        asyncio.run(run())


# -- agents of PyPI --------------------------------------------------------------------------------

# Plays uv: writes what it would have installed into the interpreter that it is given.
UV = """#!/bin/sh
echo call >> "{log}"
while [ "$1" != --python ]; do shift; done
site=$("$2" -I -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
{body}
"""
INSTALLED = """
mkdir -p "$site/some_agent-1.2.3.dist-info"
cd "$site/some_agent-1.2.3.dist-info"
printf 'Metadata-Version: 2.1\\nName: some-agent\\nVersion: 1.2.3\\n' > METADATA
"""
SNAKE = Entry(
    name="snake",
    argv=("{runtime}/bin/python3",),
    packages={"some-agent": "1.2.3"},
    python=Python((sys.version_info.major, sys.version_info.minor), (4, 0)),
)


def fake_uv(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str = INSTALLED) -> None:
    bin_ = folder / "uv"
    bin_.mkdir()
    uv = bin_ / "uv"
    uv.write_text(UV.replace("{log}", str(folder / "uv.log")).replace("{body}", body))
    uv.chmod(0o755)
    monkeypatch.setattr(pypi, "find_uv", lambda: str(uv))


def ensure(work: Path, entry: Entry, *, may_install: bool = True) -> Path:
    async def run() -> str:
        async with local_box(work) as box:
            return await pypi.ensure(entry, box, None, may_install=may_install)

    return Path(asyncio.run(run()))


@pytest.mark.skipif(
    sys.base_prefix == "/usr", reason="the distribution's Python looks for packages elsewhere"
)
def test_an_install_from_pypi_holds_its_own_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_uv(tmp_path, monkeypatch)

    found = ensure(tmp_path, SNAKE)
    assert ensure(tmp_path, SNAKE, may_install=False) == found
    assert (tmp_path / "uv.log").read_text() == "call\n"
    # It runs from another place too.
    moved = found.rename(tmp_path / "elsewhere")
    code = "import sys, importlib.metadata as m; print(sys.prefix, m.version('some-agent'))"
    done = subprocess.run(
        [moved / "bin" / "python3", "-I", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(moved), "1.2.3"]


@pytest.mark.parametrize(
    ("body", "told"),
    [("echo no such package; exit 3", "exit code 3"), ("true", "cannot be used")],
)
def test_an_install_from_pypi_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, told: str
) -> None:
    fake_uv(tmp_path, monkeypatch, body)

    with pytest.raises(ExecutorError) as caught:
        ensure(tmp_path, SNAKE)
    assert caught.value.title == "acp_runtime_install_failed"
    assert told in caught.value.message
    agents = tmp_path / "cache" / "pytest-ageval" / "agents"
    assert [path.name for path in agents.iterdir() if path.is_dir()] == []


def test_a_python_out_of_range_is_refused(tmp_path: Path) -> None:
    entry = replace(SNAKE, python=Python((4, 0), (4, 1)))

    with pytest.raises(ExecutorError) as caught:
        ensure(tmp_path, entry)
    assert caught.value.title == "acp_runtime_python"
    assert "needs Python >= 4.0 and < 4.1" in caught.value.message


def test_a_python_that_is_missing_is_not_mended_with_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    reason, remedy = (AcpExecutor.check({"entry": "vibe"}) or "").splitlines()
    assert "vibe needs Python >= 3.12" in reason
    assert remedy == "uv python install 3.12, or the system's package python3.12"


def test_the_last_step_of_an_npm_install(tmp_path: Path) -> None:
    node = toolchain(tmp_path)
    node.write_text('#!/bin/sh\ncase "$1" in -e) echo "$2" > finished;; *) echo v24.1.0;; esac\n')

    async def run() -> Path:
        tools = await find_toolchain(ENTRIES["codex"], str(node))
        entry = replace(ENTRIES["codex"], finish="the step")
        return await install_on_host(entry, tools, may_install=True)

    assert (asyncio.run(run()) / "finished").read_text() == "the step\n"
