"""A terminal in the box: one tmux server of our own, driven by short commands."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_ageval.errors import BoxError, ExecutorError

if TYPE_CHECKING:
    from pytest_ageval.box import Box, ExecResult

#: Lines that the terminal keeps above the screen.
HISTORY_LINES = 50_000

#: Seconds for one command to tmux, which does no work of its own.
TMUX_SECONDS = 60.0

#: A text that is a key by tmux's name: C-c, M-x, Escape, F5.
_KEY = re.compile(
    r"(?:[CMS]-){1,3}\S+|\^[A-Za-z\[\\\]_]|Enter|Escape|Tab|BTab|BSpace|Space|Up|Down|Left|Right|Home|End|"
    r"PageUp|PgUp|PPage|PageDown|PgDn|NPage|DC|Delete|IC|Insert|F(?:[1-9]|1[0-2])"
)

# Prints where the cursor is, counted from the first line the terminal ever showed, and then what was
# written since line $2, or the screen where that cannot be told: it was cleared, or a program draws on it.
_READ = """
state=$(tmux -L "$1" display-message -p -t main '#{history_size} #{cursor_y} #{alternate_on}') || exit 3
set -- "$1" "$2" $state
at=$(($3 + $4))
if [ "$5" = 1 ] || [ "$2" -lt 0 ] || [ "$at" -lt "$2" ] || [ "$3" -ge "$6" ]; then
    echo "screen $at"; exec tmux -L "$1" capture-pane -p -t main
fi
echo "new $at"; exec tmux -L "$1" capture-pane -p -t main -S $(($2 - $3))
"""
_START = (
    "command -v tmux >/dev/null || exit 9; shell=$(command -v bash || command -v sh);"
    ' exec tmux -u -L "$1" -f /dev/null start-server \\; set-option -g history-limit "$4" \\;'
    " set-option -g status off \\; set-option -s escape-time 0 \\;"
    ' new-session -d -s main -x "$2" -y "$3" "$shell"'
)


@dataclass(frozen=True, slots=True)
class View:
    """What the terminal shows. `new`: the output since the last view, not the screen."""

    text: str
    new: bool
    restarted: bool = False


class Terminal:
    """One terminal of `width` by `height` characters with a shell in the workspace."""

    def __init__(self, box: Box, width: int, height: int) -> None:
        self._box = box
        self._size = (str(width), str(height))
        self._name = f"ageval-{secrets.token_hex(6)}"
        self._seen = -1

    async def start(self) -> None:
        """Start it. Raises `ExecutorError` ``terminus_tmux_missing`` or ``terminus_tmux_failed``."""
        done = await self._sh(_START, *self._size, str(HISTORY_LINES))
        if done.exit_code == 9:
            raise ExecutorError(
                "terminus_tmux_missing",
                "the box has no tmux; install it in the task's environment/Dockerfile or setup.sh",
            )
        if not done.ok:
            raise ExecutorError("terminus_tmux_failed", f"tmux does not start: {done.stderr.strip()[-500:]}")
        self._seen = -1

    async def send(self, keys: str) -> bool:
        """Type `keys`; a text that is the name of a key presses it. False: the shell has ended."""
        if not keys:
            return True
        if _KEY.fullmatch(keys):
            done = await self._sh('exec tmux -L "$1" send-keys -t main -- "$2"', keys)
        else:
            # Pasted, since a line of send-keys may not be long; line ends become the Enter key.
            script = 'tmux -L "$1" load-buffer -b keys - && exec tmux -L "$1" paste-buffer -d -b keys -t main'
            done = await self._sh(script, stdin=keys.replace("\0", "").encode("utf-8", "replace"))
        return done.ok

    async def view(self) -> View:
        """What was written since the last view, or the screen. A shell that has ended is started again."""
        done = await self._sh(_READ, str(self._seen), str(HISTORY_LINES - HISTORY_LINES // 10))
        if not done.ok:
            await self.start()
            again = await self._sh(_READ, "-1", str(HISTORY_LINES))
            return View(self._take(again).text, new=False, restarted=True)
        return self._take(done)

    def _take(self, done: ExecResult) -> View:
        head, _, text = done.stdout.partition("\n")
        kind, _, at = head.partition(" ")
        if not at.isdigit():
            raise ExecutorError("terminus_tmux_failed", f"tmux cannot be read: {done.stderr.strip()[-500:]}")
        self._seen = int(at)
        return View(text.rstrip(), new=kind == "new")

    async def stop(self) -> None:
        """End it and all that runs in it. A box that is gone has ended it already."""
        try:
            await self._sh('exec tmux -L "$1" kill-server')
        except BoxError:
            return

    async def _sh(self, script: str, *arguments: str, stdin: bytes | None = None) -> ExecResult:
        argv = ["sh", "-c", script, "sh", self._name, *arguments]
        return await self._box.exec(argv, timeout=TMUX_SECONDS, stdin=stdin)
