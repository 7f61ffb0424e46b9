"""The limit of open files that hundreds of attempts need."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import resource, sys
from pytest_ageval.inflight.files import allow_files
soft, hard, wanted = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
allow_files(wanted)
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("before", "wanted", "after"),
    [((256, 4000), 3000, "3000 4000"), ((256, 1000), 3000, "1000 1000"), ((512, 1000), 300, "512 1000")],
    ids=["raised", "as far as it goes", "never lowered"],
)
def test_files_are_allowed(before: tuple[int, int], wanted: int, after: str) -> None:
    words = [str(number) for number in (*before, wanted)]
    found = subprocess.run([sys.executable, "-c", CODE, *words], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == after
