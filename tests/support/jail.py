"""A sandbox on this machine for the servers that stand in for vendors' clouds.

A directory is the root of the file system, writable; this machine's programs are mounted read-only
below it. All processes of a jail are in a pid namespace of their own, whose end is the end of them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ageval_boxes import _bubblewrap

#: bwrap's child dies with the thread that started it; requests are served by threads that end.
_spawner = ThreadPoolExecutor(1, "jails")

PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"

#: uid and gid of the users that a jail has, where we may choose.
USERS = {"root": 0, "user": 1000}


def unusable() -> str | None:
    """Why there can be no jail here."""
    if shutil.which("nsenter") is None:
        return "nsenter (util-linux) is not installed"
    return _bubblewrap.unusable()


class Jail:
    """One sandbox, with its files below `directory`, which is removed in the end.

    `template`: a directory whose files it begins with.
    """

    def __init__(self, directory: Path, template: Path | None = None) -> None:
        self.directory = directory
        self.root = directory / "root"
        if template is not None:
            subprocess.run(["cp", "-a", str(template), str(self.root)], check=True)
        for name, mode, owner in (
            ("", 0o755, 0),
            ("tmp", 0o1777, 0),
            ("srv", 0o755, 0),
            ("home/user", 0o755, USERS["user"]),
        ):
            path = self.root / name
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(mode)
            if os.geteuid() == 0:
                os.chown(path, owner, owner)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.boot()

    def boot(self) -> None:
        """Start the machine: again, after `halt`."""
        for path in self.root.iterdir():
            if path.is_symlink():  # of an earlier start, as bwrap made it and will make it again
                path.unlink()
        self._holder, self._pid = _spawner.submit(self._hold).result()

    def _hold(self) -> tuple[subprocess.Popen[bytes], int]:
        receive, give = os.pipe()
        argv = [
            _bubblewrap.bwrap() or "bwrap",
            "--unshare-pid",
            "--as-pid-1",
            "--die-with-parent",
            "--new-session",
        ]
        argv += [
            "--bind",
            str(self.root),
            "/",
            *_bubblewrap._system()[2:],
            "--proc",
            "/proc",
            "--dev",
            "/dev",
        ]
        argv += ["--json-status-fd", str(give), "--", "/bin/sh", "-c", _bubblewrap._INIT]
        # Its environment can be read in the jail: nothing of ours.
        holder = subprocess.Popen(
            argv, env={"PATH": PATH}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, pass_fds=(give,)
        )
        os.close(give)
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"up\n"
        holder.stdout.close()
        with os.fdopen(receive, "rb") as status:
            return holder, int(json.loads(status.readline())["child-pid"])

    def argv(self, argv: Sequence[str], cwd: str, user: str) -> list[str]:
        """The command of this machine that runs `argv` in the jail."""
        enter = ["nsenter", "-t", str(self._pid), "-m", "-p", "-r"]
        if os.geteuid() == 0:
            enter += ["-S", str(USERS[user]), "-G", str(USERS[user])]
        else:
            enter += ["-U", "--preserve-credentials"]
        return [*enter, "/bin/sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", cwd, *argv]

    def start(
        self, argv: Sequence[str], *, cwd: str = "/", env: Mapping[str, str], user: str = "user", stdin: bool
    ) -> subprocess.Popen[bytes]:
        """Start a process in the jail with pipes for its streams."""
        full = {"PATH": PATH, **env}
        process = subprocess.Popen(
            self.argv(argv, cwd, user),
            env=full,
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def path(self, path: str) -> Path:
        """Where a file of the jail is on this machine. For paths that the tests' own code chose."""
        found = Path(os.path.normpath(f"{self.root}/{path}"))
        if self.root not in found.parents:
            raise ValueError(f"{path} leads out of the jail")
        return found

    def owns(self, path: Path, user: str) -> None:
        """Give a file to a user of the jail."""
        if os.geteuid() == 0:
            os.chown(path, USERS[user], USERS[user])

    def halt(self) -> None:
        """End all processes. The files stay."""
        for pid in (self._pid, self._holder.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._holder.wait(10)
        for process in self.processes:
            process.wait(10)
        self.processes.clear()

    def destroy(self) -> None:
        """End all processes and remove all files."""
        self.halt()
        shutil.rmtree(self.directory, ignore_errors=True)
