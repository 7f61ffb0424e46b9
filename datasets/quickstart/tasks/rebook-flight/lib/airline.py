"""The reservations and the tools that work on them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ageval_sdk import Tool, ToolSet

_CODE = {"code": {"type": "string", "description": "reservation code of six characters"}}


def _function(name: str, description: str, properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"name": name, "description": description, "parameters": parameters}


#: The tools as the agent is told of them.
FUNCTIONS = (
    _function(
        "find_reservation",
        "Look up one reservation.",
        {**_CODE, "last_name": {"type": "string"}},
    ),
    _function(
        "search_flights",
        "All flights of one route on one day.",
        {
            "origin": {"type": "string", "description": "airport code"},
            "destination": {"type": "string", "description": "airport code"},
            "date": {"type": "string", "description": "YYYY-MM-DD"},
        },
    ),
    _function(
        "rebook",
        "Move a reservation to another flight and charge the customer.",
        {
            **_CODE,
            "flight": {"type": "string"},
            "charge_eur": {"type": "number", "description": "difference of fare plus fee"},
        },
    ),
    _function("cancel", "Cancel a reservation and refund its fare.", _CODE),
)


class Airline:
    """The state of one attempt. Tools answer with an object; what they refuse holds ``error``."""

    def __init__(self) -> None:
        text = Path(__file__).with_name("initial_state.json").read_text(encoding="utf-8")
        state = json.loads(text)
        self.flights: dict[str, dict[str, Any]] = state["flights"]
        self.reservations: dict[str, dict[str, Any]] = state["reservations"]

    def tools(self) -> ToolSet:
        """The tools bound to this state."""
        found = ToolSet()
        for function in FUNCTIONS:
            name = function["name"]
            found.add(Tool(name, getattr(self, name), function["parameters"]))
        return found

    def find_reservation(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The reservation, if code and last name belong together."""
        code = _text(arguments, "code").upper()
        found = self.reservations.get(code)
        name = _text(arguments, "last_name").casefold()
        if found is None or found["last_name"].casefold() != name:
            return {"error": "no reservation with this code and last name"}
        return {"code": code, **found, "route": self._route(found["flight"])}

    def search_flights(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The flights of a route on a day."""
        route = _text(arguments, "origin").upper(), _text(arguments, "destination").upper()
        flights = {
            name: flight
            for name, flight in self.flights.items()
            if (flight["origin"], flight["destination"]) == route
            and flight["departs"].startswith(f"{_text(arguments, 'date')}T")
        }
        return {"flights": flights}

    def rebook(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Move a reservation; the airline's system checks seats, not the policy."""
        reservation = self.reservations.get(_text(arguments, "code").upper())
        name, charge = _text(arguments, "flight").upper(), arguments["charge_eur"]
        flight = self.flights.get(name)
        if reservation is None or reservation["cancelled"]:
            return {"error": "no such reservation"}
        if flight is None or flight["free_seats"] < 1:
            return {"error": "no such flight, or no free seat on it"}
        if isinstance(charge, bool) or not isinstance(charge, int | float) or not 0 <= charge < 1e6:
            return {"error": "charge_eur must be a number that is not negative"}
        self.flights[reservation["flight"]]["free_seats"] += 1
        flight["free_seats"] -= 1
        reservation["flight"] = name
        reservation["charged_eur"] += charge
        return {"rebooked": reservation}

    def cancel(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Cancel a reservation; the airline's system does not check the policy."""
        reservation = self.reservations.get(_text(arguments, "code").upper())
        if reservation is None or reservation["cancelled"]:
            return {"error": "no such reservation"}
        reservation["cancelled"] = True
        self.flights[reservation["flight"]]["free_seats"] += 1
        return {"cancelled": reservation}

    def _route(self, name: str) -> str:
        flight = self.flights[name]
        return f"{flight['origin']}-{flight['destination']} {flight['departs']}"


def _text(arguments: Mapping[str, Any], name: str) -> str:
    return str(arguments[name]).strip()
