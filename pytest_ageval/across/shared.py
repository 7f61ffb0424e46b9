"""What all processes of a run know, on several machines: what was spent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from pytest_ageval.accounting.budget import Account, Spent


class HostLedger:
    """The ledger file of one machine, into which what the other machines spent is written too.

    The processes of the machine see the sum of all in it, and know nothing of other machines.
    """

    def __init__(self, path: Path) -> None:
        self._ledger = Account(path)
        self._foreign = Spent()
        self._told = Spent()

    def own(self) -> Spent:
        """What the processes of this machine have spent."""
        return minus(self._ledger.spent(), self._foreign)

    def news(self) -> dict[str, Any] | None:
        """`own`, if it is not what was told last."""
        own = self.own()
        if own == self._told:
            return None
        self._told = own
        return asdict(own)

    def others(self, spent: Mapping[str, Any]) -> None:
        """What the others have spent by now."""
        total = Spent(**spent)
        more = minus(total, self._foreign)
        if more != Spent():
            self._ledger.add(more)
            self._foreign = total


class Purse:
    """The controller's view: what each machine has spent. `tell` gives a machine the sum of the others."""

    def __init__(self, path: Path) -> None:
        self._local = HostLedger(path)
        self._hosts: dict[str, Spent] = {}
        self._told: dict[str, Spent] = {}

    def spent(self, host: str, values: Mapping[str, Any]) -> None:
        """A host tells what its processes have spent. It stays spent when the host is lost."""
        self._hosts[host] = Spent(**values)

    def share(self, tell: Mapping[str, Callable[[dict[str, Any]], object]]) -> None:
        """Let every machine know what the others have spent, if that has changed."""
        own = self._local.own()
        hosts = dict(self._hosts)
        self._local.others(asdict(_sum(hosts.values())))
        for name, function in tell.items():
            others = own.plus(_sum(spent for host, spent in hosts.items() if host != name))
            if self._told.get(name, Spent()) != others:
                self._told[name] = others
                function(asdict(others))


def minus(one: Spent, other: Spent) -> Spent:
    """The difference; sums of money are rounded to what a float can tell apart here."""
    values: dict[str, Any] = {}
    for each in fields(Spent):
        value = getattr(one, each.name) - getattr(other, each.name)
        values[each.name] = round(value, 9) if isinstance(value, float) else value
    return Spent(**values)


def _sum(rows: Any) -> Spent:
    total = Spent()
    for row in rows:
        total = total.plus(row)
    return total
