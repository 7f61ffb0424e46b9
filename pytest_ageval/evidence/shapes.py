"""What known tokens look like, so that a credential which nobody registered is masked too.

Each shape has literal `introducers` that a scanner can look for, a `whole` expression that matches
at an introducer (group 1, when there is one, is what to mask), and an `open` expression that
matches when the text ends inside something that may yet become the shape. All repeats are bounded,
and a token is only tried at its first character, so that scanning stays linear.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# A token starts where no token character stands before it; ``\n`` in a JSON text counts as space.
_START = r"(?:(?<![A-Za-z0-9_-])|(?<=\\[nrt]))"
_LIMIT = 2048


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of token."""

    introducers: tuple[str, ...]
    whole: re.Pattern[str]
    open: re.Pattern[str]


def _token(introducers: str, head: str, chars: str, least: int) -> Shape:
    """A token of `least` or more `chars` after `head`."""
    return Shape(
        tuple(introducers.split()),
        re.compile(f"{_START}{head}{chars}{{{least},{_LIMIT}}}"),
        re.compile(f"{_START}[A-Za-z]{{2,6}}[-_A-Za-z]{chars}{{0,{_LIMIT}}}\\Z"),
    )


_KEY = (
    r"(?:(?:ant|proj|svcacct|admin|or-v1)-[A-Za-z0-9_-]{12,2048}"
    r"|(?=[A-Za-z_]*[0-9])[A-Za-z0-9_]{16,2048})"
)
_BEARER = r"[A-Za-z0-9._~+/=-]"
_QUOTE = r"[\"'\\]{0,2}"
_PEM = r"(?:[A-Z0-9]{1,10} ){0,3}PRIVATE KEY-----"
_BODY = r"(?:[^-]|-(?!----))"

SHAPES: tuple[Shape, ...] = (
    Shape(
        ("sk-",),
        re.compile(f"{_START}sk-{_KEY}"),
        re.compile(rf"{_START}sk-[A-Za-z0-9_-]{{0,{_LIMIT}}}\Z"),
    ),
    _token("ghp_ gho_ ghu_ ghs_ ghr_", "gh[pousr]_", "[A-Za-z0-9]", 20),
    _token("github_pat_", "github_pat_", "[A-Za-z0-9_]", 22),
    _token("glpat-", "glpat-", "[A-Za-z0-9_-]", 20),
    _token("hf_", "hf_", "[A-Za-z0-9]", 30),
    _token("xoxa- xoxb- xoxe- xoxo- xoxp- xoxr- xoxs-", "xox[abeoprs]-", "[A-Za-z0-9-]", 10),
    _token("AIza", "AIza", "[A-Za-z0-9_-]", 35),
    Shape(
        ("AKIA", "ASIA"),
        re.compile(f"{_START}A[KS]IA[A-Z0-9]{{16}}(?![A-Za-z0-9])"),
        re.compile(rf"{_START}A[KS]IA[A-Z0-9]{{0,16}}\Z"),
    ),
    Shape(
        ("eyJ",),
        re.compile(_START + r"eyJ[A-Za-z0-9_-]{8,2048}\.eyJ[A-Za-z0-9_-]{8,4096}\.[A-Za-z0-9_-]{8,2048}"),
        re.compile(rf"{_START}eyJ[A-Za-z0-9_.-]{{0,8192}}\Z"),
    ),
    Shape(
        ("uthorization", "UTHORIZATION"),
        re.compile(
            rf"(?i:uthorization){_QUOTE}\s{{0,4}}[:=]\s{{0,4}}{_QUOTE}"
            rf"(?i:bearer|basic|token)\s{{1,4}}({_BEARER}{{8,{_LIMIT}}})"
        ),
        re.compile(
            rf"(?i:uthorization){_QUOTE}\s{{0,4}}(?:[:=]\s{{0,4}}{_QUOTE}"
            rf"(?:[A-Za-z]{{1,6}}(?:\s{{1,4}}{_BEARER}{{0,{_LIMIT}}})?)?)?\Z"
        ),
    ),
    Shape(
        ("earer", "EARER"),
        re.compile(
            r"(?<=[Bb])(?i:earer)\s{1,4}(?=[A-Za-z._~+/=-]{0,2048}[0-9])"
            rf"({_BEARER}{{16,{_LIMIT}}})"
        ),
        re.compile(rf"(?<=[Bb])(?i:earer)\s{{1,4}}{_BEARER}{{0,{_LIMIT}}}\Z"),
    ),
    Shape(
        ("-api-key", "-Api-Key", "-API-KEY"),
        re.compile(
            rf"(?<=[xX])(?i:-api-key){_QUOTE}\s{{0,4}}[:=]\s{{0,4}}{_QUOTE}"
            rf"(?=[A-Za-z._~+/=-]{{0,2048}}[0-9])({_BEARER}{{16,{_LIMIT}}})"
        ),
        re.compile(
            rf"(?<=[xX])(?i:-api-key){_QUOTE}\s{{0,4}}(?:[:=]\s{{0,4}}{_QUOTE}"
            rf"{_BEARER}{{0,{_LIMIT}}})?\Z"
        ),
    ),
    # The password of a URL: postgres://user:password@host. A reference such as ${NAME} is none.
    Shape(
        ("://",),
        re.compile(r"://[^\s/?#:@\"'<>\\]{0,128}:(?![$<{\[])([^\s/?#@\"'<>\\]{1,256})(?=@[A-Za-z0-9\[])"),
        re.compile(r"://[^\s/?#:@\"'<>\\]{0,128}(?::[^\s/?#@\"'<>\\]{0,256}@?)?\Z"),
    ),
    # A block to its end, or, when it was cut off, its lines.
    Shape(
        ("-----BEGIN ",),
        re.compile(
            f"-----BEGIN {_PEM}(?:{_BODY}{{1,20000}}-----END {_PEM}"
            r"|(?:(?:\s|\\[nr]){1,8}[A-Za-z0-9+/=]{32,80}){1,400}(?:\s{1,2}[A-Za-z0-9+/=]{1,31}\Z)?)"
        ),
        re.compile(
            rf"-----BEGIN [A-Z0-9 ]{{0,44}}(?:-{{0,4}}\Z"
            rf"|(?<=PRIVATE KEY)-----{_BODY}{{0,20000}}"
            r"(?:-{0,5}|-----E?N?D?[A-Z0-9 ]{0,44}-{0,4})\Z)"
        ),
    ),
)
