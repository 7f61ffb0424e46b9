"""Agents from PyPI: which Python, one install for many, failures; with real installers and no index."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
from acp_kit import local_box

from ageval_executors import _pypi
from ageval_executors._pypi import MARKER, PyPackages, ensure_packages, find_installed, find_python
from pytest_ageval.errors import ExecutorError

HERE = sys.version_info[:2]


@pytest.fixture(autouse=True)
def _own_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only packages there are: one wheel, in a directory."""
    wheel = tmp_path / "index" / "tiny_agent-1.2.3-py3-none-any.whl"
    wheel.parent.mkdir()
    info = "tiny_agent-1.2.3.dist-info"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("tiny_agent.py", "def main():\n    print('tiny agent runs')\n")
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-agent\nVersion: 1.2.3\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/entry_points.txt", "[console_scripts]\ntiny-agent = tiny_agent:main\n")
        file.writestr(f"{info}/RECORD", "")
    for tool in ("UV", "PIP"):
        monkeypatch.setenv(f"{tool}_FIND_LINKS", str(wheel.parent))
        monkeypatch.setenv(f"{tool}_NO_INDEX", "1")
        for name in ("INDEX_URL", "EXTRA_INDEX_URL", "INDEX", "DEFAULT_INDEX"):
            monkeypatch.delenv(f"{tool}_{name}", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def packages(version: str = "1.2.3", floor: tuple[int, int] = HERE) -> PyPackages:
    return PyPackages("tiny", {"tiny-agent": version}, python=floor, below=(floor[0], floor[1] + 1))


def ensure(tmp_path: Path, wanted: PyPackages, *, isolation: str = "auto", **more: object) -> str:
    """Install, and run the agent's script in a box; its output."""

    async def run() -> str:
        async with local_box(tmp_path / "work", isolation) as box:
            found = await ensure_packages(wanted, box, may_install=True, **more)
            script = f"{found.directory}/bin/tiny-agent"
            done = await box.exec([found.python, script], env=found.env, timeout=60)
            return done.stdout + done.stderr

    return asyncio.run(run())


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_install_runs_in_a_box_that_shows_nothing_else(tmp_path, monkeypatch, installer):
    if installer == "pip":
        monkeypatch.setattr(_pypi, "find_uv", lambda: None)
    elif _pypi.find_uv() is None:
        pytest.skip("uv is not installed")
    assert ensure(tmp_path, packages()) == "tiny agent runs\n"
    folder = asyncio.run(find_installed(packages()))
    note = json.loads((folder / MARKER).read_bytes())
    assert note["packages"] == {"tiny-agent": "1.2.3"}
    assert "tiny-agent==1.2.3" in note["resolved"]
    assert list(folder.rglob("tiny_agent.*.pyc")), "not compiled"
    assert not list(folder.parent.glob(".*.part"))


def test_many_at_once_install_once(tmp_path, monkeypatch):
    ran: list[str] = []
    real = _pypi._run

    async def counted(argv, cwd, seconds):
        ran.append(" ".join(argv))
        return await real(argv, cwd, seconds)

    monkeypatch.setattr(_pypi, "_run", counted)

    async def run() -> None:
        async with local_box(tmp_path / "work") as box:
            await asyncio.gather(*(ensure_packages(packages(), box, may_install=True) for _ in range(3)))

    asyncio.run(run())
    assert len([argv for argv in ran if "install" in argv.split()]) == 1


def test_nothing_is_installed_in_the_timed_run(tmp_path):
    async def run() -> None:
        async with local_box(tmp_path / "work") as box:
            await ensure_packages(packages(), box, may_install=False)

    with pytest.raises(ExecutorError) as caught:
        asyncio.run(run())
    assert caught.value.title == "agent_packages_missing"


def test_failure_names_the_packages_and_leaves_nothing(tmp_path):
    with pytest.raises(ExecutorError) as caught:
        ensure(tmp_path, packages("9.9.9"))
    assert caught.value.title == "agent_install_failed"
    assert "tiny-agent==9.9.9" in caught.value.message
    assert caught.value.detail
    assert asyncio.run(find_installed(packages("9.9.9"))) is None
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_dir() and ".part" in path.name]


def test_python_that_does_not_fit_is_refused_with_what_was_seen():
    with pytest.raises(ExecutorError) as caught:
        asyncio.run(find_python(packages(floor=(3, 99))))
    assert caught.value.title == "agent_python_missing"
    assert f"is {HERE[0]}.{HERE[1]}" in caught.value.message
    with pytest.raises(ExecutorError, match="/nowhere/python is no Python"):
        asyncio.run(find_python(packages(), "/nowhere/python"))


def test_box_without_the_hosts_files_gets_an_install_of_its_own(tmp_path):
    async def run() -> tuple[str, str, str]:
        async with local_box(tmp_path / "work") as box:
            box.expose = None  # type: ignore[assignment, method-assign]
            config = f"[global]\nno-index = true\nfind-links = {tmp_path / 'index'}\n"
            await box.exec(
                ["sh", "-c", "mkdir -p ~/.config/pip && cat > ~/.config/pip/pip.conf"], stdin=config.encode()
            )
            first = await ensure_packages(packages(), box, python=sys.executable, may_install=True)
            again = await ensure_packages(packages(), box, python=sys.executable, may_install=False)
            done = await box.exec([first.python, f"{first.directory}/bin/tiny-agent"], timeout=60)
            return first.directory, again.directory, done.stdout

    first, again, said = asyncio.run(run())
    assert first == again
    assert "/home/.ageval-runtime/" in first or first.startswith(str(tmp_path))
    assert said == "tiny agent runs\n"


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
@pytest.mark.parametrize("own", ["none", "started by a script"])
def test_python_and_view_run_where_the_install_is_shown_elsewhere(tmp_path, monkeypatch, own):
    """As docker shows it: the cache under another path. Without a Python of its own the box gets a copy."""
    host = asyncio.run(find_python(packages()))
    shim = tmp_path / "shims" / host.name
    shim.parent.mkdir()
    shim.write_text("#!/bin/sh\n" + ("exit 127" if own == "none" else f'exec {host.program} "$@"') + "\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(shim.parent), prepend=os.pathsep)

    async def run() -> tuple[str, str]:
        async with local_box(tmp_path / "work", "auto") as box:
            real, root = box.expose, _pypi.cache_root() / "agents"
            real(shim.parent)
            real(host.prefix)
            # A link in the workspace plays the mount.
            await asyncio.to_thread(root.mkdir, parents=True)
            real(root)
            await box.exec(["ln", "-s", str(root), "agents"])

            def expose(path: Path) -> str:
                return f"/attempt/workspace/agents/{path.relative_to(root)}"

            box.expose = expose  # type: ignore[assignment, method-assign]
            found = await ensure_packages(packages(), box, may_install=True)
            done = await box.exec([found.python, f"{found.directory}/bin/tiny-agent"], env=found.env)
            script = "import sys; print(sys.prefix, sys.base_prefix)"
            where = await box.exec([found.python, "-c", script], env=found.env)
            return done.stdout + done.stderr, where.stdout

    said, where = asyncio.run(run())
    assert said == "tiny agent runs\n"
    prefix, base = where.split()
    assert prefix.startswith("/attempt/workspace/agents/tiny-")
    assert (base == str(host.prefix)) == (own != "none")
