"""What the YAML reader accepts, types and refuses, with libyaml and without."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from pytest_ageval.config import yamlio
from pytest_ageval.config.yamlio import find_line, load_yaml, parse_yaml
from pytest_ageval.errors import ConfigError


@pytest.fixture(params=["c", "python"], autouse=True)
def composer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        monkeypatch.setattr(yamlio, "_composer", yamlio.PythonComposer)
    elif yamlio._composer is yamlio.PythonComposer:
        pytest.skip("PyYAML has no libyaml here")


def refusal(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "task.yaml")
    return caught.value


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("true", True),
        ("FALSE", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("0", 0),
        ("-12", -12),
        ("360.0", 360.0),
        (".5", 0.5),
        ("-1.5e3", -1500.0),
        ('"1"', "1"),
        ("!!str 12", "12"),
        ("!!float 2", 2.0),
    ],
)
def test_typed_scalars(written: str, value: object) -> None:
    found = parse_yaml(f"x: {written}", "f")["x"]
    assert (found, type(found)) == (value, type(value))


TEXTS = """
    no yes on off y NO 010 08 0x1F 0o17 +1 1_000 12:30 2024-01-01 1e3 .inf .nan = 1. -a 1.10.2 a:b
"""


@pytest.mark.parametrize("written", TEXTS.split())
def test_everything_else_is_text(written: str) -> None:
    assert parse_yaml(f"x: {written}", "f") == {"x": written}


def test_keys_are_the_text_that_is_written() -> None:
    assert parse_yaml("on: 1\n010: 2\nnull: 3\n1.10: 4", "f") == {
        "on": 1,
        "010": 2,
        "null": 3,
        "1.10": 4,
    }


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "'a' is in this mapping twice: lines 1 and 3"),
        ("x:\n  A: 1\n  A: 2\n", 3, "'A' is in this mapping twice: lines 2 and 3"),
        ("1: a\n'1': b\n", 2, "'1' is in this mapping twice"),
        ("b: &b {x: 1}\nc:\n  <<: *b\n  <<: *b\n", 4, "'<<' is in this mapping twice"),
        ("a: 1\nx: !function utils.f\n", 2, "the tag !function is not supported"),
        ("x: !!python/object/apply:os.system ['touch pwned']\n", 1, "os.system is not supported"),
        ("x: !!binary aGk=\n", 1, "the tag !!binary is not supported"),
        ("x: !env HOME\n", 1, "the tag !env is not supported"),
        ("x: !!int hello\n", 1, "'hello' is not of the type !!int"),
        ("a:\n\tb: 1\n", 2, "cannot start any token"),
        ("a: 1\n---\nb: 2\n", 2, "another document"),
        ("", 1, "empty"),
        ("# only a comment\n", 1, "empty"),
        ("[]", 1, "must be a mapping, found a list"),
        ("null", 1, "must be a mapping"),
        ("just text", 1, "must be a mapping, found the text 'just text'"),
        ("? [a]\n: 1\n", 1, "a key must be text"),
        ("a: x\nb: c\x07d\n", 2, "'\\x07' is not allowed"),
        ("a: 1.5e999\n", 1, "out of range"),
        ("a: " + "9" * 500, 1, "500 digits"),
        ("a: &a [*a]\n", 1, "too large"),
        ("a: " + "[" * 150 + "]" * 150, 1, "too large"),
        ("a: *b\n", 1, "undefined alias"),
        ("a: {<<: 3}\n", 1, "'<<' takes a mapping"),
    ],
)
def test_refused_with_file_and_line(
    text: str, line: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    error = refusal(text)
    assert words in str(error)
    assert (error.code, error.file, error.line) == ("invalid_yaml", "task.yaml", line)
    assert os.listdir(tmp_path) == []  # nothing was executed


def test_nesting_beyond_any_stack_is_an_ordinary_error() -> None:
    assert refusal("a: " + "[" * 100_000).code == "invalid_yaml"


def test_merge_then_override_is_no_duplicate() -> None:
    text = "base: &b {x: 1, y: 2}\nmore: &m {y: 3, z: 4}\nt: {<<: [*b, *m], x: 9}\n"
    assert parse_yaml(text, "f")["t"] == {"x": 9, "y": 2, "z": 4}


def test_aliases_cannot_multiply_without_bound() -> None:
    rows = ["a0: &a0 [x,x,x,x,x,x,x,x,x]"]
    rows += [f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    started = time.monotonic()
    assert "too large" in refusal("\n".join(rows)).message
    assert time.monotonic() - started < 5


def test_a_long_text_cannot_be_multiplied_by_aliases() -> None:
    text = f"a: &a '{'x' * 1_000_000}'\nb: [{','.join(['*a'] * 100)}]"
    assert "too large" in refusal(text).message


@pytest.mark.parametrize(
    "text",
    [
        'instruction: |\n  return {"a": 1}, {}, {{x}}, 100%, ${HOME}, `id`\n',
        "instruction: |-\n  all:\n  \tcc -o x\n  zero\u200bwidth   \n  no newline at the end\n",
        "instruction: |\n" + "  a line of text\n" * 20_000,
    ],
)
def test_block_text_is_kept_exactly(text: str) -> None:
    lines = text.split("\n", 1)[1].split("\n")
    expected = "\n".join(line.removeprefix("  ") for line in lines)
    if text.startswith("instruction: |-"):
        expected = expected.rstrip("\n")
    assert parse_yaml(text, "f")["instruction"] == expected


@pytest.mark.parametrize(
    ("data", "code", "line", "words"),
    [
        (b"\xef\xbb\xbfa: 1\n", None, None, ""),
        ("a: 1\n".encode("utf-16"), "invalid_encoding", 1, "UTF-16"),
        ("a: 1\n".encode("utf-16-le"), "invalid_encoding", 1, "UTF-16"),
        (b"a: 1\nb: caf\xe9\n", "invalid_encoding", 2, "must be UTF-8"),
    ],
)
def test_encodings(data: bytes, code: str | None, line: int | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "task.yaml"
    path.write_bytes(data)
    if code is None:
        assert load_yaml(path) == {"a": 1}
        return
    with pytest.raises(ConfigError, match=words) as caught:
        load_yaml(path)
    assert (caught.value.code, caught.value.line) == (code, line)


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "task.yaml"
    with path.open("wb") as stream:
        stream.truncate(200 * 1024 * 1024)  # sparse: reading it would still fill the memory
    with pytest.raises(ConfigError) as caught:
        load_yaml(path)
    assert caught.value.code == "file_too_large"


def test_a_pipe_in_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "task.yaml")
    with pytest.raises(ConfigError, match="not a regular file"):
        load_yaml(tmp_path / "task.yaml")


@pytest.mark.parametrize(
    ("pointer", "line"),
    [("/b/1/x~1y", 5), ("/b/0", 3), ("/a", 1), ("/b/1/missing", 4), ("", 1), ("/nope", 1)],
)
def test_lines_of_pointers(pointer: str, line: int, tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("a: 1\nb:\n- one\n- q: 1\n  x/y: 2\n")
    assert find_line(path, pointer) == line
