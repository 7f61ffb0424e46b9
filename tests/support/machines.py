"""Other machines: an sshd in a network namespace of its own, with its own view of the files."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sshd import PROGRAM

#: What is missing here for `machine`; None when nothing is.
MISSING: str | None


def _missing() -> str | None:
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    for program in (PROGRAM, "ip", "unshare", "ssh", "ssh-keygen"):
        if shutil.which(program) is None:
            return f"needs {program}"
    script = "ip link add av0 type veth peer name av1 && mount -t tmpfs tmpfs /mnt"
    probe = subprocess.run(["unshare", "--net", "--mount", "sh", "-c", script], capture_output=True)
    return None if probe.returncode == 0 else "network namespaces cannot be made here"


MISSING = _missing()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@dataclass
class Machine:
    """One of them. `spec` is for ``--tx``; `directory` is its own, with ``tmp`` and ``home``."""

    name: str
    namespace: str
    address: str
    directory: Path
    config: Path
    #: This machine, as that one reaches it.
    gateway: str

    def spec(self, python: str = sys.executable) -> str:
        return f"ssh={self.name}//ssh_config={self.config}//python={python}"

    def cable(self, state: str) -> None:
        """``down`` or ``up``: packets are dropped while it is down."""
        _run("ip", "link", "set", self.namespace, state)

    def pids(self) -> list[int]:
        """Processes on the machine, its sshd included."""
        found = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True)
        return [int(pid) for pid in found.stdout.split()]

    def power_off(self) -> None:
        """Every process on it is gone."""
        for _ in range(50):
            pids = self.pids()
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not pids:
                return
            time.sleep(0.05)

    def left(self) -> list[str]:
        """What runs left in its directory for temporary files, in its home, and as processes of Python."""
        files = [str(path) for place in ("tmp", "home") for path in (self.directory / place).iterdir()]
        commands = []
        for pid in self.pids():
            try:
                commands.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return files + [command for command in commands if "sshd" not in command]


@contextmanager
def machine(name: str, number: int, directory: Path, hidden: Path) -> Iterator[Machine]:
    """A machine that sees all files of this one but those in `hidden`, where it has an empty directory.

    `number` is its own among those of a test; `directory` is outside of `hidden`.
    """
    namespace = f"av{os.getpid() % 100000}n{number}"
    block = (os.getpid() * 8 + number) % 16384
    prefix = f"10.{213 + block // 8192}.{block // 64 % 256}.{block % 64 * 4}".rsplit(".", 1)
    here, there = (f"{prefix[0]}.{int(prefix[1]) + n}" for n in (1, 2))
    for part in ("tmp", "home", "keys"):
        (directory / part).mkdir(parents=True, mode=0o700)
    found = Machine(name, namespace, there, directory, directory / "ssh_config", here)
    _configure(found)
    _run("ip", "netns", "add", namespace)
    server = None
    try:
        _run("ip", "link", "add", namespace, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _run("ip", "addr", "add", f"{here}/30", "dev", namespace)
        _run("ip", "link", "set", namespace, "up")
        for words in (
            ("addr", "add", f"{there}/30", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
            ("route", "add", "default", "via", here),
        ):
            _run("ip", "-n", namespace, *words)
        script = f"mount -t tmpfs tmpfs '{hidden}' && exec {PROGRAM} -D -e -f '{directory}/sshd_config'"
        with open(directory / "log", "ab") as log:
            server = subprocess.Popen(
                ["ip", "netns", "exec", namespace, "unshare", "--mount", "sh", "-c", script], stderr=log
            )
        _wait_for(found)
        yield found
    finally:
        found.power_off()
        if server is not None:
            server.wait()
        subprocess.run(["ip", "netns", "del", namespace], capture_output=True)
        subprocess.run(["ip", "link", "del", namespace], capture_output=True)


def _configure(machine: Machine) -> None:
    keys = machine.directory / "keys"
    for name in ("host", "user"):
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(keys / name))
    kind, key = (keys / "host.pub").read_text().split()[:2]
    (keys / "known_hosts").write_text(f"{machine.address} {kind} {key}\n")
    Path("/run/sshd").mkdir(exist_ok=True)
    environment = f"HOME={machine.directory}/home TMPDIR={machine.directory}/tmp SHLVL=5"
    lines = {
        "Port": "22",
        "ListenAddress": machine.address,
        "HostKey": str(keys / "host"),
        "PidFile": "none",
        "AuthorizedKeysFile": str(keys / "user.pub"),
        "StrictModes": "no",
        "UsePAM": "no",
        "PasswordAuthentication": "no",
        "PermitRootLogin": "prohibit-password",
        # bash would read ~/.bashrc before every command.
        "SetEnv": environment,
    }
    (machine.directory / "sshd_config").write_text("".join(f"{k} {v}\n" for k, v in lines.items()))
    machine.config.write_text(
        f"Host {machine.name}\n  HostName {machine.address}\n  User root\n  IdentityFile {keys}/user\n"
        f"  IdentitiesOnly yes\n  UserKnownHostsFile {keys}/known_hosts\n  ConnectTimeout 2\n"
        "  ServerAliveInterval 1\n  ServerAliveCountMax 3\n"
    )


def _wait_for(machine: Machine) -> None:
    command = ["ssh", "-F", str(machine.config), machine.name, "true"]
    for _ in range(100):
        if subprocess.run(command, capture_output=True).returncode == 0:
            return
        time.sleep(0.05)
    raise AssertionError((machine.directory / "log").read_text())
