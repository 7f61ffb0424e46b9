"""The cache of results, and what is said of two locks that differ."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from pytest_ageval.errors import ConfigError
from pytest_ageval.suite import Settled
from pytest_ageval.suite.cache import ResultCache, check_directory
from pytest_ageval.suite.changes import differences


def row(status: Any = "PASS", attempt: int = 1, name: str = "one", **more: Any) -> Settled:
    known = {"slot": "s", "task_id": "t", "digest": "sha256:ab", "attempt_dir": f"runs/{name}", **more}
    return Settled(status=status, attempt=attempt, attempt_id=name, **known)


def test_attempts_are_distinct_results_and_errors_none(tmp_path: Path) -> None:
    cache = ResultCache(tmp_path / "cache")
    assert cache.get("sha256:ab", 1) is None
    assert cache.put(row(), tmp_path)
    assert cache.put(row("FAIL", attempt=2, name="two"), tmp_path)
    assert not cache.put(row("ERROR", attempt=3), tmp_path)
    assert not cache.put(row(attempt=4, source="reused"), tmp_path)
    one, two = cache.get("sha256:ab", 1), cache.get("sha256:ab", 2)
    assert one is not None
    assert two is not None
    assert (one.attempt_id, two.attempt_id, two.status) == ("one", "two", "FAIL")
    assert one.attempt_dir == str(tmp_path / "runs" / "one")
    assert cache.get("sha256:cd", 1) is None
    assert cache.get("sha256:ab", 3) is None


def test_the_first_result_stays_unless_it_is_replaced(tmp_path: Path) -> None:
    cache = ResultCache(tmp_path)
    cache.put(row(name="one"), tmp_path)
    assert not cache.put(row(name="two"), tmp_path)
    assert cache.get("sha256:ab", 1).attempt_id == "one"  # type: ignore[union-attr]
    assert cache.put(row(name="two"), tmp_path, replace=True)
    assert cache.get("sha256:ab", 1).attempt_id == "two"  # type: ignore[union-attr]
    cache.forget(row(name="one"))
    assert cache.get("sha256:ab", 1) is not None
    cache.forget(row(name="two"))
    assert cache.get("sha256:ab", 1) is None


def test_of_many_writers_one_is_first(tmp_path: Path) -> None:
    written: list[str] = []

    def write(name: str) -> None:
        if ResultCache(tmp_path).put(row(name=name), tmp_path):
            written.append(name)

    threads = [threading.Thread(target=write, args=(f"n{i}",)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(written) == 1
    assert ResultCache(tmp_path).get("sha256:ab", 1).attempt_id == written[0]  # type: ignore[union-attr]
    assert [path.name for path in (tmp_path / "results" / "ab").iterdir()] == ["1.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "ageval.cached_result/1"}', '{"schema": "x"}'])
def test_an_entry_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    cache = ResultCache(tmp_path)
    path = cache.path("sha256:ab", 1)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert cache.get("sha256:ab", 1) is None


def test_an_entry_of_another_lock_is_not_taken(tmp_path: Path) -> None:
    cache = ResultCache(tmp_path)
    cache.put(row(), tmp_path)
    cache.path("sha256:cd", 1).parent.mkdir(parents=True)
    cache.path("sha256:ab", 1).rename(cache.path("sha256:cd", 1))
    assert cache.get("sha256:cd", 1) is None


def test_a_data_set_is_no_cache(tmp_path: Path) -> None:
    check_directory(tmp_path / "new", "--reuse")
    check_directory(tmp_path, "--reuse")
    (tmp_path / "ageval.yaml").touch()
    with pytest.raises(ConfigError, match="holds other files, so it is no cache"):
        check_directory(tmp_path, "--reuse")
    (tmp_path / "results").mkdir()
    check_directory(tmp_path, "--reuse")


def test_differences_are_named() -> None:
    before = {
        "files": {"run.py": "1", "old.txt": "1", "same": "1"},
        "locked": {"eval_digest": "1", "limits": {"a": 1, "b": 2}, "x/y": None, "artifacts": []},
    }
    after = {
        "files": {"run.py": "2", "new.txt": "1", "same": "1"},
        "locked": {"eval_digest": "2", "limits": {"a": 1, "b": 3}, "more": "z" * 100, "artifacts": ()},
    }
    found = differences(before, after)
    assert found[:3] == ["new.txt is new", "old.txt was removed", "run.py has changed"]
    assert found[3:] == ["/limits/b: 2 -> 3", f'/more: nothing -> "{"z" * 59}...', "/x~1y: null -> nothing"]


def test_a_change_outside_of_the_task_is_named_as_such() -> None:
    files = {"run.py": "1"}
    before, after = {"locked": {"eval_digest": "1"}}, {"locked": {"eval_digest": "2"}}
    assert differences({**before, "files": files}, {**after, "files": files}) == [
        "ageval.yaml or shared/ has changed"
    ]
    assert differences(before, after) == ["a file of the task has changed"]
    many = {"locked": {str(n): 0 for n in range(20)}}, {"locked": {str(n): 1 for n in range(20)}}
    assert differences(*many)[-1] == "and 12 more"
