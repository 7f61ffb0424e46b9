"""Names of tasks and tags as parts of node ids and as marks."""

from __future__ import annotations

import re
import unicodedata

#: Tags that would change what pytest does with the item; they become ``tag_<name>``.
RESERVED_MARKS = frozenset(
    (
        *("ageval", "anyio", "asyncio", "filterwarnings", "flaky", "parametrize", "repeat", "skip"),
        *("skipif", "timeout", "trylast", "tryfirst", "usefixtures", "xdist_group", "xfail"),
    )
)


def safe(text: str) -> str:
    """`text` as a part of a node id: letters, digits, ``.``, ``_`` and ``-``."""
    return re.sub(r"[^\w.-]", "_", text) or "_"


def mark_name(text: str) -> str:
    """`text` as the name of a mark: an identifier that means nothing else to pytest."""
    name = re.sub(r"\W", "_", unicodedata.normalize("NFKC", text)) or "_"
    odd = name in RESERVED_MARKS or name[0].isdigit() or name[0] == "_"  # pytest takes no `_name`
    return f"tag_{name}" if odd else name


def mark_names(text: str) -> list[str]:
    """`mark_name`, and `text` itself if ``-m`` can read it: ``box_agent`` and ``box-agent``."""
    name = mark_name(text)
    return list(dict.fromkeys((name, text))) if re.fullmatch(r"[^\W\d][\w-]*-[\w-]*", text) else [name]
