"""A real sshd on loopback with keys of its own, for tests of the ssh box."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAM = "/usr/sbin/sshd"
MISSING = None if os.path.exists(PROGRAM) and shutil.which("ssh-keygen") else "needs OpenSSH's sshd"


@dataclass
class Sshd:
    """The running server; `options` are those of a box that uses it."""

    directory: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def options(self) -> dict[str, Any]:
        return {
            "host": "127.0.0.1",
            "port": self.port,
            "key_file": str(self.directory / "user"),
            "known_hosts": str(self.directory / "known_hosts"),
            "root": str(self.directory / "boxes"),
        }

    def roots(self) -> list[str]:
        """Directories of boxes that are there now."""
        boxes = self.directory / "boxes"
        return sorted(path.name for path in boxes.iterdir()) if boxes.exists() else []

    def cut(self) -> None:
        """Cut every connection; what runs in the boxes goes on."""
        mine = {self.process.pid}
        parents = {pid: _parent(pid) for pid in (int(name) for name in os.listdir("/proc") if name.isdigit())}
        # A connection is one or two processes of sshd below the listener.
        for _ in range(2):
            mine |= {
                pid for pid, parent in parents.items() if parent in mine and _name(pid).startswith("sshd")
            }
        for pid in mine - {self.process.pid}:
            os.kill(pid, 9)

    def stop(self) -> None:
        """End the server with all connections."""
        self.cut()
        self.process.terminate()
        self.process.wait()


def _parent(pid: int) -> int:
    try:
        raw = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0
    return int(raw[raw.rindex(b")") + 2 :].split()[1])


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def sshd(directory: Path, *, port: int | None = None, **config: str) -> Iterator[Sshd]:
    """An sshd whose files are in `directory`; `config` are lines of its configuration."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in ("host", "user"):
        if not (directory / name).exists():
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)]
            subprocess.run(command, check=True)
    port = port or _free_port()
    public = (directory / "host.pub").read_text().split()
    (directory / "known_hosts").write_text(f"[127.0.0.1]:{port} {public[0]} {public[1]}\n")
    shutil.copy(directory / "user.pub", directory / "authorized_keys")
    Path("/run/sshd").mkdir(exist_ok=True)
    lines = {
        "Port": str(port),
        "ListenAddress": "127.0.0.1",
        "HostKey": str(directory / "host"),
        "PidFile": "none",
        "AuthorizedKeysFile": str(directory / "authorized_keys"),
        "StrictModes": "no",
        "UsePAM": "no",
        "PasswordAuthentication": "no",
        "PermitRootLogin": "prohibit-password",
        # bash would read ~/.bashrc before every command; of the developer's, which may be slow.
        "SetEnv": f"SHLVL=5 XDG_CACHE_HOME={directory / 'cache'}",
        **config,
    }
    (directory / "config").write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
    with open(directory / "log", "ab") as log:
        process = subprocess.Popen([PROGRAM, "-D", "-e", "-f", str(directory / "config")], stderr=log)
    server = Sshd(directory, port, process)
    try:
        _wait_for(server)
        yield server
    finally:
        server.stop()


def _wait_for(server: Sshd) -> None:
    for _ in range(100):
        if server.process.poll() is not None:
            break
        try:
            socket.create_connection(("127.0.0.1", server.port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError((server.directory / "log").read_text())
