"""The rules of the proxy that closes a docker box, and what it lets through by them."""

from __future__ import annotations

import pytest

from ageval_boxes.docker_box._egress import rules
from ageval_boxes.docker_box._proxy import allowed, parse


@pytest.mark.parametrize(
    ("extra", "host", "port", "passes"),
    [
        ("a.example", "a.example", 443, True),
        ("a.example", "A.EXAMPLE.", 80, True),
        ("a.example", "b.a.example", 443, False),
        ("*.a.example", "b.a.example", 443, True),
        ("a.example:8080", "a.example", 443, False),
        ("10.0.0.0/8", "10.1.2.3", 80, True),
        ("10.0.0.0/8", "11.1.2.3", 80, False),
        ("10.0.0.0/8", "10.1.2.3", 8080, False),
        ("10.0.0.0/8", "ten.example", 80, False),
        ("fd00::/8", "fd00::1", 443, True),
        ("fd00::/8", "fe80::1", 443, False),
        ("fd00::1", "fd00::1", 443, True),
        ("fd00::1", "fd00::2", 443, False),
    ],
)
def test_who_passes(extra: str, host: str, port: int, passes: bool) -> None:
    assert allowed(host, port, parse(rules((), [extra]))) is passes


@pytest.mark.parametrize("extra", ["10.0.0.1/8", "a/b", "http://a", ""])
def test_what_is_no_rule(extra: str) -> None:
    with pytest.raises(ValueError):
        rules((), [extra])
