"""Secrets stay out of text, in every encoding, wherever a stream is cut; ordinary text stays whole."""

import base64
import json
import random
import string
import time
import urllib.parse

import pytest

from pytest_ageval.evidence import Redactor, scrub_file, scrub_tree

SECRET = "sk-TESTabcdef0123456789"
ODD = 'p/+w "quo\\te" & ünï%40'


@pytest.fixture
def redactor():
    found = Redactor()
    found.add("SECRET_TOKEN", SECRET)
    found.add("ODD", ODD)
    return found


def streamed(redactor, pieces):
    stream = redactor.stream()
    return "".join([*(stream.feed(piece) for piece in pieces), stream.flush()])


def test_the_mask_names_the_secret_and_the_text_around_stays(redactor):
    assert redactor.text(f"a {SECRET}, b") == "a [REDACTED:SECRET_TOKEN], b"


def test_no_part_of_a_short_secret_survives():
    redactor = Redactor()
    redactor.add("K", "abcd1234efgh5678")
    assert redactor.text("x=abcd1234efgh5678;") == "x=[REDACTED:K];"


@pytest.mark.parametrize("value", [SECRET, ODD])
@pytest.mark.parametrize(
    "encode",
    [
        str,
        lambda value: json.dumps({"k": value}),
        lambda value: json.dumps({"k": value}, ensure_ascii=False),
        lambda value: json.dumps(json.dumps({"k": value})),
        lambda value: value.encode().hex(),
        lambda value: value.encode().hex().upper(),
        lambda value: urllib.parse.quote(value, safe=""),
        lambda value: urllib.parse.quote_plus(value),
        lambda value: urllib.parse.urlencode({"q": value}),
    ],
)
def test_encoded_forms(redactor, value, encode):
    text = redactor.text(encode(value))
    assert "[REDACTED:" in text
    assert encode(value)[10:16] not in text


@pytest.mark.parametrize("before", ["", "u", "u:", "u:p", "user:"])
@pytest.mark.parametrize("after", ["", "x", "\n"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_base64_at_every_alignment(redactor, before, after, encode):
    for value in (SECRET, ODD):
        text = encode(f"{before}{value}{after}".encode()).decode()
        left = redactor.text(f"data: {text} end").removeprefix("data: ").removesuffix(" end")
        assert "[REDACTED:" in left
        # What is left decodes to nothing of the value but a few bits at its edges.
        assert len(left.replace("[REDACTED:SECRET_TOKEN]", "").replace("[REDACTED:ODD]", "")) <= 16


PEM = (
    "-----BEGIN RSA PRIVATE KEY-----\n"
    + "\n".join(base64.b64encode(random.Random(number).randbytes(48)).decode() for number in range(8))
    + "\n-----END RSA PRIVATE KEY-----"
)

TEXTS = [
    f"hello {SECRET} end",
    f"{SECRET}{SECRET}{ODD}",
    f"{SECRET[:-1]}z {SECRET[:9]}",
    f"pre {PEM} post",
    json.dumps({"key": PEM, "n": 1}),
    "Authorization: Bearer abcdefgh12345678 ok",
    'curl -H "authorization: Basic dXNlcjpwYXNz" x',
    "x-api-key: abcdefgh12345678abcd done",
    "postgres://u:hunter2@db/x https://a.b:80/c@d",
    "AKIAIOSFODNN7EXAMPLE end ghp_" + "a1" * 15 + ".",
    "sk-ant-api03-abcdefghijklmnop and xoxb-1234567890-abc",
    "AIza" + "b3" * 18 + " eyJabcdefghij.eyJabcdefghij.abcdefghij!",
    "the token: abc is fine; task-sk-1 passed: true -----",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_stream_is_safe_at_every_split(redactor, text):
    whole = redactor.text(text)
    assert streamed(redactor, text) == whole  # one character at a time
    for cut in range(len(text) + 1):
        assert streamed(redactor, [text[:cut], text[cut:]]) == whole


def test_random_streams_equal_the_whole_text(redactor):
    choose = random.Random(7)
    for _ in range(200):
        words = choose.choices([*TEXTS, "word ", SECRET[:12], ODD[:5], "sk-", "\n", "://"], k=6)
        text = "".join(words)
        pieces, at = [], 0
        while at < len(text):
            size = choose.choice([1, 2, 5, 40, 400])
            pieces.append(text[at : at + size])
            at += size
        assert streamed(redactor, pieces) == redactor.text(text)


def test_a_stream_holds_back_no_more_than_it_must(redactor):
    stream = redactor.stream()
    assert stream.feed("plain prose goes out at once. ") == "plain prose goes out at once. "
    assert stream.feed("key sk-TESTab") == "key "
    assert stream.feed("out nothing.") == "sk-TESTabout nothing."


@pytest.mark.parametrize("text", TEXTS[:-1])
def test_token_shapes_are_masked_without_being_registered(text):
    assert "[REDACTED:token]" in Redactor().text(text)


@pytest.mark.parametrize(
    "text",
    [
        "the token: abc is fine",
        "password: the one you chose",
        "Bearer of good tidings, an sk-learn model, task-sk-abc",
        "-----BEGIN PRIVATE KEY----- is a header",
        "docs say Authorization: Bearer <token> or Bearer $TOKEN",
        "postgres://${USER}:${PASSWORD}@host/db",
        "https://example.com:8080/a@b?c=d:e@f",
        "passed failed true false null completed",
        "us-east-1 docker production",
    ],
)
def test_prose_is_not_masked(redactor, text):
    assert redactor.text(text) == text


@pytest.mark.parametrize("value", ["", "a", "true", "{\n}\n", "us-east-1", "aaaaaaaaaaaa", "password"])
def test_values_that_say_nothing_are_not_looked_for_and_warned_of_once(value):
    redactor = Redactor()
    redactor.add("NAME", value)
    redactor.add("NAME", value)
    text = json.dumps({"status": "passed", "ok": True, "password": "e", "region": "us-east-1"})
    assert redactor.text(text) == text
    assert len(redactor.warnings) == 1
    assert "NAME" in redactor.warnings[0]
    assert len(value) < 3 or value not in redactor.warnings[0]


def test_the_fields_and_lines_of_a_json_secret():
    body = "MIIabc123DEF456ghi"
    secret = {"private_key": f"-----BEGIN KEY-----\n{body}\n-----END KEY-----", "id": "1"}
    redactor = Redactor()
    redactor.add("CREDS", json.dumps(secret))
    for text in (json.dumps(secret), secret["private_key"], body, f"line {body}!"):
        assert body not in redactor.text(text)
    assert redactor.text("id 1 of 1") == "id 1 of 1"


def test_json_values_keep_their_keys_numbers_and_types(redactor):
    found = redactor.value({"n": 1.5, "list": [SECRET, True, None], SECRET: "x", "status": "passed"})
    assert found == {
        "n": 1.5,
        "list": ["[REDACTED:SECRET_TOKEN]", True, None],
        "[REDACTED:SECRET_TOKEN]": "x",
        "status": "passed",
    }


def test_segments_cut_a_secret_that_reaches_over_them(redactor):
    for cut in range(1, len(SECRET)):
        parts = redactor.segments(["a ", SECRET[:cut], SECRET[cut:] + " b", " c"])
        assert parts == ["a ", "[REDACTED:SECRET_TOKEN]", " b", " c"]
    assert redactor.segments([*SECRET, "!"])[-1] == "!"
    assert "".join(redactor.segments([*SECRET, "!"])) == "[REDACTED:SECRET_TOKEN]!"


def test_a_longer_secret_that_begins_like_another():
    redactor = Redactor()
    redactor.add("SHORT", "abcd1234")
    redactor.add("LONG", "abcd1234efgh5678")
    assert redactor.text("abcd1234efgh5678 abcd1234") == "[REDACTED:LONG] [REDACTED:SHORT]"
    assert streamed(redactor, "abcd1234efgh5678 abcd1234") == "[REDACTED:LONG] [REDACTED:SHORT]"


def test_ten_megabytes_take_less_than_a_second(redactor):
    for number in range(5):
        redactor.add(f"KEY{number}", f"sk-ant-{number}" + "qX7" * 20)
    choose = random.Random(1)
    words = ["".join(choose.choices(string.ascii_lowercase, k=6)) for _ in range(2000)]
    text = " ".join(choose.choices(words, k=1_430_000))
    assert len(text) > 10_000_000
    begun = time.process_time()
    redactor.text(text)
    assert time.process_time() - begun < 1.0


def test_hostile_text_takes_linear_time(redactor):
    def seconds(text):
        begun = time.process_time()
        redactor.text(text)
        return time.process_time() - begun

    for unit in ("sk-", "eyJ", "://a:", "-----BEGIN PRIVATE KEY-----", "Bearer ", "eyJaaaaaaaaa."):
        small = seconds(unit * (200_000 // len(unit)))
        large = seconds(unit * (800_000 // len(unit)))
        assert large < 12 * small + 0.05, unit


def test_scrubbing_a_file_changes_nothing_else(redactor, tmp_path):
    path = tmp_path / "vendor.log"
    around = b"\xff\x00\xfe" + "ü".encode() * 700_000
    path.write_bytes(around + SECRET.encode() + b"\0" + ODD.encode() + around)
    path.chmod(0o640)
    assert scrub_file(path, redactor)
    assert path.read_bytes() == (around + b"[REDACTED:SECRET_TOKEN]\0[REDACTED:ODD]" + around)
    assert path.stat().st_mode & 0o777 == 0o640
    assert not scrub_file(path, redactor)


def test_scrubbing_a_tree_does_not_follow_links(redactor, tmp_path):
    outside = tmp_path / "outside"
    outside.write_text(SECRET)
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "link").symlink_to(outside)
    (tree / "sub" / "log").write_text(SECRET)
    assert scrub_tree(tree, redactor) == [tree / "sub" / "log"]
    assert outside.read_text() == SECRET
    assert sorted(path.name for path in tree.rglob("*")) == ["link", "log", "sub"]
