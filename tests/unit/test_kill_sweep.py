"""The parts of the kill-anywhere sweep are all of it, and what is known is not tried again."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.kill_sweep import Points, Sweep

POINTS: list[Points] = [(number,) for number in range(1, 24)]


def test_the_parts_are_the_whole() -> None:
    parts = [Sweep.of({"AGEVAL_KILL_ANYWHERE": f"{n}/5"}) for n in range(1, 6)]
    assert sorted(point for part in parts for point in part.share(POINTS)) == POINTS
    assert Sweep.of({"AGEVAL_KILL_ANYWHERE": "all"}).share(POINTS) == POINTS
    assert not Sweep.of({}).everything
    with pytest.raises(ValueError, match="PART/PARTS"):
        Sweep.of({"AGEVAL_KILL_ANYWHERE": "6/5"})


def test_what_was_lost_or_torn_is_tried_again(tmp_path: Path) -> None:
    file = tmp_path / "state"
    sweep = Sweep.of({"AGEVAL_KILL_STATE": str(file)})
    assert sweep.known() == {}
    sweep.note("1", "survived")
    sweep.note("2", "lost: AssertionError: x")
    with file.open("ab") as stream:
        stream.write(b'\n{"3": "surv')
    sweep.note("40+12", "settled")
    assert sweep.known() == {"1": "survived", "40+12": "settled"}
    sweep.note("2", "survived")
    assert sweep.known()["2"] == "survived"
