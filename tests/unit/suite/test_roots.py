"""Where commands look for evidence: as configured for a run, by pytest's own reading."""

from __future__ import annotations

from pathlib import Path

import pytest
from suites import rows, write

from pytest_ageval.cli import main
from pytest_ageval.errors import ConfigError
from pytest_ageval.suite.roots import configured, evidence_roots


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    monkeypatch.chdir(root)
    for name in ("AGEVAL_DIR", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    return root


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("pytest.ini", "[pytest]\nageval_dir = kept/here\n"),
        ("pyproject.toml", '[tool.pytest.ini_options]\nageval_dir = "kept/here"\n'),
        ("tox.ini", "[pytest]\naddopts = --ageval-dir=kept/here\n"),
    ],
)
def test_the_configuration_of_the_project_is_read(project: Path, file: str, text: str) -> None:
    (project / file).write_text(text)
    (project / "conftest.py").write_text("raise RuntimeError('nobody runs me')\n")
    assert configured(project) == project / "kept" / "here"


def test_nothing_is_read_where_nothing_is_said(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "pytest.ini").write_text("[pytest]\nthis is no ini file\n")
    assert configured(project) is None
    monkeypatch.setenv("AGEVAL_DIR", "named")
    assert configured(project) == project / "named"


def test_the_environment_wins_over_the_ini_file_and_options_over_both(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "pytest.ini").write_text("[pytest]\nageval_dir = ini\n")
    below = project / "deep" / "down"
    below.mkdir(parents=True)
    assert configured(below) == project / "ini", "relative to the rootdir"
    monkeypatch.setenv("AGEVAL_DIR", "env")
    assert configured(below) == below / "env"
    monkeypatch.setenv("PYTEST_ADDOPTS", "--ageval-dir=opt")
    assert configured(below) == below / "opt"
    monkeypatch.setenv("PYTEST_ADDOPTS", "--ageval-dir=opt --no-such-option")
    with pytest.raises(ConfigError, match="invalid_option: pytest refused its options"):
        configured(below)


def test_every_command_finds_it(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "pytest.ini").write_text("[pytest]\nageval_dir = kept\n")
    (project / "data").mkdir()
    (project / "data" / "ageval.yaml").write_text("format: ageval.dataset/1\n")
    write(project / "kept", "aa", rows({"a": "P"}, agent="codex"))
    write(project / "kept", "bb", rows({"a": "F"}, agent="codex"), created_at="2026-02")
    write(project.parent / "elsewhere", "cc", rows({"a": "F"}, agent="codex"))
    assert evidence_roots(None, project) == [project / "kept"]
    for command, expected in (
        (["list"], "bb"),
        (["status", "aa"], "suite aa: complete, 1 of 1 settled"),
        (["gate", "last", "--max-errors", "0"], "gate max-errors: passed: 0 of 1"),
        (["compare", "aa", "bb"], "B - A"),
        (["compare", "data"], "bb"),
        (["analyze", "last"], ""),
        (["list", "--dir", "../elsewhere"], "cc"),
        (["gate", "cc", "--max-errors", "0", "--dir", "../elsewhere"], "0 of 1"),
    ):
        assert main(command) == 0, command
        assert expected in capsys.readouterr().out, command
