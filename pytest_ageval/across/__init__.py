"""Runs over several machines: ``--tx N*ssh=HOST``. Task files travel to the hosts, evidence travels back.

A *host* is another machine, as ssh names it. The controller keeps one connection to each (`host`), at whose
other end an agent (`agent`) makes the copy, shares what the processes of a run share, and removes everything
at the end. pytest-xdist's workers have connections of their own (`link`), over which evidence arrives before
the report that names it. A path P of the controller is ``BASE + P`` on a host (`places`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_ageval.across.link import Link

_link: Link | None = None


def current() -> Link | None:
    """The link of this process to the controller; None in a process of the controller's own machine."""
    return _link


def shown(path: Path) -> str:
    """A path of the evidence as the controller knows it, where the evidence is in the end."""
    return str(path if _link is None else _link.places.here(path))


def install(link: Link) -> None:
    """Make it the link of this process."""
    global _link
    _link = link
