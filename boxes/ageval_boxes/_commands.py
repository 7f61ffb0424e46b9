"""How a local box starts commands and finds their processes again: plainly, or behind bubblewrap."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ageval_boxes._bubblewrap import FIRST_KERNEL, Namespace, View, bwrap, privileges
from ageval_boxes._leftovers import in_box
from ageval_boxes._processes import (
    COOKIE,
    Child,
    Proc,
    all_procs,
    end_processes,
    environ_holds,
    family,
    pid_namespace,
    read_proc,
)
from pytest_ageval.box import ROOT
from pytest_ageval.errors import BoxError

# What a shell would have said; run in place of a program that is not there.
_COMPLAIN = 'echo "$1: $2" >&2; exit "$3"'


@dataclass(frozen=True, slots=True)
class Run:
    """One command of a box. `started` is in clock ticks since boot."""

    child: Child
    number: int
    started: int

    @property
    def live(self) -> set[int]:
        """The process id of its leader on the host, while it runs."""
        return set() if self.child.exited.done() else {self.child.pid}


class Commands:
    """Commands of a box without isolation. `visible` is what they see as ``/attempt``."""

    def __init__(self, box_id: str, files: Path, tmp: Path) -> None:
        self.box_id = box_id
        self.files = files
        self.tmp = tmp
        self.runs: list[Run] = []
        self._numbers = itertools.count(1)

    @property
    def visible(self) -> str:
        """The box's ``/attempt`` as its processes spell it."""
        return str(self.files)

    @property
    def visible_tmp(self) -> str:
        """The box's directory for temporary files, as its processes spell it."""
        return str(self.tmp)

    @property
    def path(self) -> str:
        """PATH of a command."""
        return os.environ.get("PATH", os.defpath)

    def translate(self, path: str) -> str:
        """`path` (below ``/attempt``) as a process in the box spells it."""
        return self.visible + path.removeprefix(ROOT)

    async def start(self, argv: Sequence[str], *, cwd: str, env: Mapping[str, str], stdin: int) -> Run:
        """Start `argv`. Raises BoxError ``environment_exec_invalid`` for what can never start."""
        number = next(self._numbers)
        full = {**env, COOKIE: f"{self.box_id}:{number}"}
        try:
            child = await self._spawn(argv, cwd=cwd, env=full, stdin=stdin)
        except (OSError, ValueError) as error:
            raise BoxError("environment_exec_invalid", f"{argv[0]}: {error}") from error
        found = read_proc(child.pid)
        run = Run(child, number, 0 if found is None else found.start)
        self.runs.append(run)
        child.exited.add_done_callback(lambda _done: self.runs.remove(run))
        return run

    async def _spawn(self, argv: Sequence[str], *, cwd: str, env: Mapping[str, str], stdin: int) -> Child:
        place = self.translate(cwd)
        if not os.path.isdir(place):  # noqa: ASYNC240, PTH112 - one stat call
            raise BoxError("environment_exec_invalid", f"the directory {cwd} does not exist")
        try:
            try:
                return Child(argv, env=env, cwd=place, stdin=stdin)
            except OSError as error:
                named = argv[0] if "/" in argv[0] else shutil.which(argv[0], path=env.get("PATH"))
                if error.errno != errno.ENOEXEC or named is None:
                    raise
                # A script without "#!" is for the shell, as execvp has it.
                return Child(["/bin/sh", named, *argv[1:]], env=env, cwd=place, stdin=stdin)
        except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
            missing = not isinstance(error, PermissionError)
            says = ("command not found", "127") if missing else ("permission denied", "126")
            complain = ["/bin/sh", "-c", _COMPLAIN, "sh", argv[0], *says]
            return Child(complain, env=env, cwd=place, stdin=stdin)

    def exit_code(self, code: int, stderr: bytes) -> int:
        """The command's exit code (negative: the signal) from that of our child."""
        return code

    def everyone(self) -> list[Proc]:
        """Every living process of the box."""
        return in_box(self.box_id)

    def of_run(self, run: Run) -> list[Proc]:
        """Every living process that `run` started, also those that detached themselves."""
        needle = f"{COOKIE}={self.box_id}:{run.number}\0".encode()
        procs = all_procs()
        first = {proc.pid for proc in procs if environ_holds(proc.pid, needle)}
        members = family(procs, first | run.live)
        return [proc for proc in procs if proc.pid in members and proc.alive]

    def attached(self, run: Run) -> list[Proc]:
        """The living leader of `run` and its descendants that still have their parents."""
        procs = all_procs()
        members = family(procs, run.live, sessions=False)
        return [proc for proc in procs if proc.pid in members and proc.alive]

    async def end_everyone(self, grace: float) -> tuple[list[str], list[str]]:
        """End every process of the box; the labels of those ended and of those who would not go."""
        return await end_processes(self.everyone, grace)

    def kill(self) -> None:
        """SIGKILL what can be killed without waiting; `end_everyone` still has to verify."""


class IsolatedCommands(Commands):
    """Commands of a box behind bubblewrap, all in one pid namespace that is made when first needed."""

    def __init__(self, box_id: str, files: Path, tmp: Path, view: View) -> None:
        super().__init__(box_id, files, tmp)
        self.view = view
        self._space = Namespace()
        self._opening = asyncio.Lock()

    @property
    def visible(self) -> str:
        return ROOT

    @property
    def visible_tmp(self) -> str:
        return "/tmp"  # noqa: S108 - the box's own

    @property
    def path(self) -> str:
        return self.view.path

    async def _open(self) -> Namespace:
        async with self._opening:
            if not self._space.alive:
                await self._space.close()
                self._space = Namespace()
                mounts = self.view.arguments(self.files, self.tmp, FIRST_KERNEL)
                env = {"PATH": self.path, COOKIE: f"{self.box_id}:0"}
                await self._space.start(mounts, env)
            return self._space

    async def _spawn(self, argv: Sequence[str], *, cwd: str, env: Mapping[str, str], stdin: int) -> Child:
        space = await self._open()
        # The dynamic linker's variables are for the command, not for bwrap itself.
        linker = {name: value for name, value in env.items() if name.startswith("LD_")}
        full = [bwrap() or "bwrap", *space.join(), *privileges(), *self.view.arguments(self.files, self.tmp)]
        full += ["--new-session", "--chdir", cwd]
        for name, value in linker.items():
            full += ["--setenv", name, value]
        rest = {name: value for name, value in env.items() if name not in linker}
        return Child([*full, "--", *argv], env=rest, cwd="/", stdin=stdin, pass_fds=space.fds)

    def exit_code(self, code: int, stderr: bytes) -> int:
        """As bwrap gives it: 128+n is read as signal n, since bwrap tells no difference."""
        if code == 1 and stderr.startswith(b"bwrap: execvp "):
            return 126 if b": Permission denied" in stderr[:4096] else 127
        return 128 - code if 128 < code <= 128 + 64 else code

    def _inside(self) -> list[Proc]:
        """The processes in the namespace, without our own first one."""
        number, first = self._space.number, self._space.pid
        procs = [p for p in all_procs() if p.alive and number and pid_namespace(p.pid) == number]
        own = {p.session for p in procs if p.pid == first}
        return [p for p in procs if p.pid != first and p.session not in own]

    def everyone(self) -> list[Proc]:
        return self._inside()

    def of_run(self, run: Run) -> list[Proc]:
        """As without isolation, and also whoever came later and belongs to no other command."""
        inside = self._inside()
        # The leaders on the host are parents of the first processes inside.
        every = [*inside, *(p for r in self.runs if (p := read_proc(r.child.pid)) is not None)]
        exact = f"{COOKIE}={self.box_id}:{run.number}\0".encode()
        any_run = f"{COOKIE}={self.box_id}:".encode()
        mine = {p.pid for p in inside if environ_holds(p.pid, exact)} | run.live
        known = {p.pid for p in inside if environ_holds(p.pid, any_run)}
        known |= {pid for other in self.runs for pid in other.live}
        claimed = family(every, known | mine)
        members = family(every, mine)
        members |= {p.pid for p in inside if p.pid not in claimed and p.start >= run.started}
        return [proc for proc in inside if proc.pid in members]

    def attached(self, run: Run) -> list[Proc]:
        found = super().attached(run)
        return [proc for proc in found if pid_namespace(proc.pid) == self._space.number]

    async def end_everyone(self, grace: float) -> tuple[list[str], list[str]]:
        ended: list[str] = []
        left: list[str] = []
        if self._space.alive and grace > 0:
            ended, left = await end_processes(self._inside, grace)
        if not await self._space.close():
            return ended, left or [f"the first process of the box (pid {self._space.pid})"]
        self._space = Namespace()
        return ended, []

    def kill(self) -> None:
        self._space.kill()
