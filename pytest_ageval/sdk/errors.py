"""The error with which a script says in its own words why it cannot go on."""

from __future__ import annotations


class ScriptError(Exception):
    """The script cannot go on; the attempt becomes an ERROR that shows `title` and `message`.

    Raise it in ``run.py`` or ``evaluator.py`` for trouble that is nobody's answer (a user simulator
    that does not reply, gold that is broken). `title` is a token that stays the same from one
    occurrence to the next, so that reports can count it; `message` tells this one.
    Raises ValueError for a blank title and TypeError for a message that is not text.
    """

    def __init__(self, title: str, message: str) -> None:
        if not isinstance(title, str) or not title.strip():
            raise ValueError("the title of a ScriptError must be text and not blank")
        if not isinstance(message, str):
            raise TypeError("the message of a ScriptError must be text")
        super().__init__(message)
        self.title = title
        self.message = message

    def __reduce__(self) -> tuple[type[ScriptError], tuple[str, str]]:
        # The default would rebuild it from the message alone (concurrent.futures does this).
        return type(self), (self.title, self.message)
