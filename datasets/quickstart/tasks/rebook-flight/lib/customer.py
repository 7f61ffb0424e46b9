"""The simulated customer: a script that reacts to the agent's words and to the reservations."""

from __future__ import annotations

import re

from lib.airline import Airline

CODE, OTHER_CODE = "KD72WF", "MN34OP"
OPENING = (
    f"Hello, my reservation is {CODE}. I can only fly a day later, on 2 May 2024. "
    "Please move me to the cheapest flight that leaves before noon that day."
)
NAME = "My last name is Okafor."
REPEAT = f"It is reservation {CODE}: the cheapest flight before noon on 2 May 2024, please."
CONSENT = "Yes, I agree, please go ahead."
SECOND = f"Great. I also do not need {OTHER_CODE} any more. Please cancel it and refund me."
CLOSING = "I see. Thank you, that is all."

ASKS_NAME = re.compile(r"\bname\b", re.IGNORECASE)
ASKS_CONSENT = re.compile(
    r"confirm|go ahead|proceed|shall i|should i|would you like|do you want|agree|consent"
    r"|AZ\d{3}.*\?",
    re.IGNORECASE | re.DOTALL,
)


class Customer:
    """One customer. `agreed` says whether consent to the change was given."""

    def __init__(self, airline: Airline) -> None:
        self._airline = airline
        self._flight = airline.reservations[CODE]["flight"]
        self._told_name = False
        self._asked_second = False
        self.agreed = False

    def answer(self, text: str) -> str | None:
        """The answer to one message of the agent; None when the customer has left."""
        if self._asked_second:
            return None
        if self._airline.reservations[CODE]["flight"] != self._flight:
            self._asked_second = True
            return SECOND
        parts = []
        if not self._told_name and ASKS_NAME.search(text):
            self._told_name = True
            parts.append(NAME)
        if self._told_name and not parts and ASKS_CONSENT.search(text):
            self.agreed = True
            parts.append(CONSENT)
        return " ".join(parts) or (f"{REPEAT} {NAME}" if self._told_name else REPEAT)
