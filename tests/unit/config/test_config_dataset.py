"""ageval.yaml, .env, and the digest of what a task can see."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from config_helpers import DataSet

from pytest_ageval.config import find_dataset_root, hashing, load_dataset, resolve_secret
from pytest_ageval.config.hashing import digest_of, tree_digest
from pytest_ageval.errors import ConfigError

HEAD = 'format: ageval.dataset/1\ndataset_id: demo/one\nversion: "1"\n'


def refusal(action: Callable[[], object]) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        action()
    return caught.value


def test_a_data_set(ds: DataSet) -> None:
    ds.task(name="b")
    ds.task(name="a")
    ds.write("tasks/README.md", "not a task")
    ds.write("tasks/.hidden/task.yaml", "")
    dataset = load_dataset(ds.root)
    assert (dataset.dataset_id, dataset.version) == ("demo/one", "1")
    assert dataset.task_ids() == ["a", "b"]
    assert find_dataset_root(ds.root / "tasks" / "a" / "task.yaml") == ds.root


@pytest.mark.parametrize(
    ("text", "code", "pointer", "words"),
    [
        (HEAD.replace("dataset/1", "dataset/2"), "invalid_format", "/format", "ageval.dataset/1"),
        (HEAD.replace('"1"', "1"), "invalid_schema", "/version", "put it in quotes"),
        (HEAD.replace("demo/one", "Demo"), "invalid_schema", "/dataset_id", "matching"),
        (HEAD.replace("demo/one", "a..b"), "invalid_schema", "/dataset_id", "'..'"),
        (HEAD + "limits: {}\n", "invalid_schema", "/limits", "belongs in task.yaml"),
        (HEAD + "task: {}\n", "invalid_schema", "/task", "did you mean 'tasks'"),
        (HEAD + "tasks: {root: ../x}\n", "path_outside_package", "/tasks/root", "inside"),
        (HEAD + "defaults: {max_concurrent_tasks: 0}\n", "invalid_schema",
         "/defaults/max_concurrent_tasks", ">= 1"),
        (HEAD + "assets: [{path: x, url: 'https://${HOST}/x', sha256: ''}]\n", "invalid_schema",
         "/assets/0/url", "not expanded"),
        (HEAD + "version: '2'\n", "invalid_yaml", None, "lines 3 and 4"),
    ],
)  # fmt: skip
def test_refused(text: str, code: str, pointer: str | None, words: str, ds: DataSet) -> None:
    ds.write("ageval.yaml", text)
    error = refusal(lambda: load_dataset(ds.root))
    assert words in str(error)
    assert (error.code, error.pointer, error.file) == (code, pointer, "ageval.yaml")


def test_no_manifest(tmp_path: Path) -> None:
    assert refusal(lambda: load_dataset(tmp_path)).code == "invalid_package"
    assert find_dataset_root(tmp_path / "x.py") is None


def test_assets_and_prepare_are_checked(ds: DataSet) -> None:
    digest = digest_of("x").removeprefix("sha256:")
    ds.write(
        "ageval.yaml",
        HEAD + f"assets: [{{path: big.bin, url: 'https://example.org/b', sha256: {digest}}}]\n"
        "prepare: get.sh\n",
    )
    dataset = load_dataset(ds.root)
    assert refusal(dataset.check_ready).code == "asset_missing"
    ds.write("big.bin", "y")
    assert refusal(dataset.check_ready).code == "asset_digest_mismatch"
    (ds.root / "big.bin").write_bytes(b'"x"')
    assert refusal(dataset.check_ready).code == "prepare_not_allowed"
    ds.write(".ageval-prepare.json", "{}")
    dataset.check_ready()


# -- .env ----------------------------------------------------------------------------------------


def test_the_caller_wins_over_the_data_set_over_rootdir(ds: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    ds.write("up/set/ageval.yaml", HEAD)
    ds.write("up/set/.env", "A=set\nB=set\n")
    ds.write("up/.env", "A=parent\nD=parent\n")
    ds.write("root/.env", "A=root\nB=root\nC=root\n")
    monkeypatch.setenv("A", "caller")
    dataset = load_dataset(ds.root / "up" / "set", ds.root / "root")
    found = {name: resolve_secret(name, dataset) for name in "ABCD"}
    assert found == {"A": "caller", "B": "set", "C": "root", "D": None}


def test_env_files(ds: DataSet) -> None:
    ds.write(
        ".env",
        "# c\n\nexport MY_KEY = plain # note\nQ=\"a\\n#b\" # c\nS='${X}'\nE=\nU=http://h/#frag\n",
    )
    dataset = load_dataset(ds.root)
    names = ("MY_KEY", "Q", "S", "E", "U")
    assert [resolve_secret(name, dataset) for name in names] == [
        "plain", "a\n#b", "${X}", None, "http://h/#frag",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "line"), [("A=1\nsk-secret-value\n", 2), ("A=1\nB=2\nA=sk-secret-value\n", 3)]
)
def test_a_broken_env_file_is_located_and_not_quoted(text: str, line: int, ds: DataSet) -> None:
    ds.write(".env", text)
    error = refusal(lambda: resolve_secret("NOT_SET_ANYWHERE", load_dataset(ds.root)))
    assert (error.code, error.file, error.line) == ("invalid_env_file", ".env", line)
    assert "sk-secret" not in str(error)


# -- digests -------------------------------------------------------------------------------------


def edit(path: Path) -> None:
    path.write_text(path.read_text() + "#")


@pytest.mark.parametrize(
    "change",
    [
        lambda root: edit(root / "a.txt"),
        lambda root: (root / "a.txt").rename(root / "b.txt"),
        lambda root: (root / "a.txt").chmod(0o755),
        lambda root: (root / "new").mkdir(),
        lambda root: (root / "link").unlink() or (root / "link").symlink_to("elsewhere"),
        lambda root: (root / "d" / "x").unlink(),
    ],
    ids=["content", "name", "mode", "empty directory", "link", "removal"],
)
def test_every_change_of_a_tree_changes_its_digest(change: Callable[[Path], object], tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for name in ("a.txt", "d/x"):
        (tmp_path / name).write_text(name)
    (tmp_path / "link").symlink_to("/nonexistent")
    before = tree_digest(tmp_path)
    assert tree_digest(tmp_path) == before
    change(tmp_path)
    assert tree_digest(tmp_path) != before


def test_caches_of_python_and_git_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text("x")
    before = tree_digest(tmp_path)
    for name in ("__pycache__", ".git"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text("y")
    (tmp_path / "run.pyc").write_text("z")
    assert tree_digest(tmp_path) == before


def test_a_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    real = hashing.hashlib.file_digest
    monkeypatch.setattr(hashing.hashlib, "file_digest", lambda s, n: reads.append(s.name) or real(s, n))
    (tmp_path / "a").write_text("x")
    os.utime(tmp_path / "a", (1, 1))  # one that was changed just now is read again
    tree_digest(tmp_path)
    tree_digest(tmp_path)
    assert len(reads) == 1


def test_a_pipe_in_a_task_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert refusal(lambda: tree_digest(tmp_path)).code == "unreadable_file"


def test_shared_files_count(ds: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("pytest_ageval.config.dataset.time.monotonic", lambda: now[0])
    dataset = load_dataset(ds.root)
    before = dataset.shared_digest
    ds.write("shared/lib.py", "x")
    assert dataset.shared_digest == before  # walked a moment ago
    now[0] = 2.0
    assert dataset.shared_digest != before


def test_the_description_is_no_part_of_the_shared_digest(ds: DataSet) -> None:
    before = load_dataset(ds.root).shared_digest
    ds.write("ageval.yaml", HEAD + "description: hello\n")
    assert load_dataset(ds.root).shared_digest == before
    ds.write("ageval.yaml", HEAD.replace('"1"', '"2"'))
    assert load_dataset(ds.root).shared_digest != before
