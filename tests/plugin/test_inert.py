"""A project without tasks does not notice that the plugin is installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

#: Modules that only an evaluation needs.
HEAVY = re.compile(
    r"\b(yaml|httpx|aiohttp|anyio|msgspec|asyncio|xml\.etree|docker|acp|pytest_ageval\.config)\b"
)


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(
        test_one="""
        import warnings, pytest

        def test_pass(): pass
        def test_fail(): assert 1 == 2
        def test_warn(): warnings.warn("careful")
        @pytest.fixture
        def broken(): raise ValueError("no")
        def test_error(broken): pass
        """,
    )
    # A file with that name can belong to anybody.
    pytester.mkdir("deploy").joinpath("task.yaml").write_text("steps: [build]\n")
    pytester.mkdir("deploy/tests").joinpath("test_two.py").write_text("def test_two(): pass\n")
    return pytester


def shown(result: pytest.RunResult) -> str:
    """The output without times, and without the lines that list the plugins."""
    lists = ("plugins:", "metadata:")  # the second one is pytest-metadata's
    text = "\n".join(line for line in result.outlines if not line.startswith(lists))
    return re.sub(r"\d+\.\d+s", "N s", text)


def unordered(text: str) -> list[str]:
    """What two workers print, whichever of them was ready first."""
    lines = re.sub(r"\bgw\d\b", "gwN", text).split("\n")
    return sorted("".join(sorted(line)) if re.match(r"[.FE]+ +\[100%\]", line) else line for line in lines)


def files(root: Path) -> list[str]:
    names = (str(path.relative_to(root)) for path in root.rglob("*"))
    # pytester numbers the temporary directories of the runs that it starts.
    return sorted(name for name in names if not name.startswith("runpytest-"))


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("-v",),
        ("-q", "--strict-markers", "-p", "no:cacheprovider"),
        ("-W", "error", "--strict-config"),
        ("-n", "2", "-p", "no:cacheprovider"),
        ("--collect-only",),
        ("-p", "no:xdist", "-p", "no:html"),
    ],
    ids=" ".join,
)
def test_output_and_files_are_the_same_as_without_the_plugin(
    project: pytest.Pytester, args: tuple[str, ...]
) -> None:
    order = unordered if "-n" in args else str
    without = project.runpytest_subprocess(*args, "-p", "no:ageval", timeout=60)
    before = files(project.path)
    found = project.runpytest_subprocess(*args, timeout=60)
    assert found.ret == without.ret
    assert order(shown(found)) == order(shown(without))
    assert files(project.path) == before


def test_no_signal_handler_is_installed_and_no_thread_started(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import signal, threading

        def test_signals():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
            assert not [t.name for t in threading.enumerate() if "ageval" in t.name]
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_loading_imports_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import pytest_ageval.plugin"],
        capture_output=True,
        text=True,
        check=True,
    )
    code = (
        "import sys, pytest; before = set(sys.modules); import pytest_ageval.plugin; "
        "print(*sorted(set(sys.modules) - before))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours = loaded.stdout.split()
    assert "pytest_ageval.plugin" in ours
    assert [name for name in ours if HEAVY.search(name)] == []
    assert [line for line in done.stderr.splitlines() if HEAVY.search(line.split("|")[-1])] == []


def test_a_run_without_tasks_imports_nothing_heavy(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_one(): pass")
    code = (
        "import sys, pytest; "
        "assert pytest.main(['-q', '-p', 'no:cacheprovider', *sys.argv[1:]]) == 0; "
        "print(*sorted(sys.modules))"
    )

    def loaded(*args: str) -> set[str]:
        done = subprocess.run(
            [sys.executable, "-c", code, *args],
            cwd=pytester.path,
            env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        return set(done.stdout.splitlines()[-1].split())

    ours = loaded("-p", "pytest_ageval.plugin") - loaded()
    assert "pytest_ageval.plugin" in ours
    assert [name for name in sorted(ours) if HEAVY.search(name)] == []


def test_no_module_imports_pytests_private_ones() -> None:
    import pytest_ageval

    root = Path(pytest_ageval.__file__).parent
    private = re.compile(r"^\s*(from|import) _pytest", re.MULTILINE)
    assert [p.name for p in root.rglob("*.py") if private.search(p.read_text("utf-8"))] == []
