"""Connections to ssh hosts: one for each host, user and key in this process, a further one when full.

Everything here blocks and is meant for threads (`in_thread`); paramiko itself works with threads.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import getpass
import hashlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ageval_boxes._ssh_scripts import script_command
from pytest_ageval.box import BoundedStream
from pytest_ageval.errors import BoxError

if TYPE_CHECKING:
    from paramiko import Channel, SSHClient, Transport

#: Channels on one connection: sshd's own default of MaxSessions.
CHANNELS = 10
#: Connections to one host; the last one is for scripts, so that processes can always be ended.
CONNECTIONS = 17
#: Seconds between signs of life, and without an answer until a connection counts as lost.
KEEPALIVE = 15
SILENCE = 30.0

# Seconds after which a session that was refused is asked for again: one may be ending just now.
_REFUSED = 0.2

_PIECE = 128 * 1024
_T = TypeVar("_T")

# Without a handler of its own paramiko's tracebacks would go to stderr.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True)
class Address:
    """Where a host is, who we are there, and how it proves to be itself."""

    host: str
    user: str | None = None
    port: int = 22
    key: str | None = None
    known_hosts: str = "~/.ssh/known_hosts"
    host_key: str | None = None
    connect_timeout: float = 10.0

    def __str__(self) -> str:
        user = f"{self.user}@" if self.user else ""
        return f"{user}{self.host}" + (f":{self.port}" if self.port != 22 else "")


@dataclass(frozen=True, slots=True)
class Done:
    """What a script did."""

    code: int
    stdout: str
    stderr: str


@dataclass(slots=True)
class _Connection:
    client: SSHClient
    transport: Transport
    used: int = 0
    #: When to ask for a session again, after one was refused.
    again: float = 0.0


#: What paramiko raises from a channel whose connection has just broken: its own thread may not know yet,
#: and then it is the acknowledgement of what was read, or the data to be sent, that finds no way out.
BROKEN = (OSError, EOFError)


def lost(address: Address, why: object) -> BoxError:
    """The error of a dropped connection."""
    return BoxError("environment_connection_lost", f"the connection to {address} was lost: {why}")


async def in_thread(work: Callable[[], _T], undo: Callable[[_T], object] | None = None) -> _T:
    """Run `work` in a thread of its own; `undo` gets its result if nobody waits for it any more.

    Not the event loop's pool: that is small, and what waits for a remote host may wait for long.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()

    def deliver(result: _T | None, error: BaseException | None) -> None:
        if future.done():
            if error is None and undo is not None:
                start_thread(lambda: undo(result))  # type: ignore[arg-type]
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: _T | None = None
        error: BaseException | None = None
        try:
            result = work()
        except BaseException as found:
            error = found
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(deliver, result, error)

    start_thread(run)
    return await future


def start_thread(work: Callable[[], object]) -> None:
    """Run `work` in a thread that holds up nobody's exit."""
    threading.Thread(target=work, name="ageval-ssh", daemon=True).start()


@dataclass
class Host:
    """All connections of this process to one address."""

    address: Address
    _connections: list[_Connection] = field(default_factory=list)
    _owners: dict[int, _Connection] = field(default_factory=dict)
    _connecting: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def open(self, command: str, *, script: bool = False, timeout: float = 60.0) -> Channel:
        """Start `command` on a channel of its own. Raises BoxError."""
        import paramiko

        deadline = time.monotonic() + timeout
        while True:
            connection = self._claim(script, deadline)
            try:
                channel = connection.transport.open_session(timeout=self.address.connect_timeout)
                with self._changed:
                    self._owners[id(channel)] = connection
            except (paramiko.SSHException, *BROKEN) as error:
                standing = connection.transport.is_active()
                self._give_back(connection, refused=standing)
                if not standing:
                    raise lost(self.address, error) from error
                # The server takes no more sessions on this connection just now; another may have room.
                if time.monotonic() > deadline:
                    raise BoxError(
                        "environment_exec_failed", f"{self.address} takes no session: {error}"
                    ) from error
                continue
            try:
                channel.exec_command(command.encode("utf-8", "surrogateescape"))
            except (paramiko.SSHException, *BROKEN) as error:
                self.release(channel)
                raise lost(self.address, error) from error
            return channel

    def release(self, channel: Channel) -> None:
        """Close a channel. Idempotent."""
        with contextlib.suppress(Exception):  # a lost connection: closed is what it is to be
            channel.close()
        with self._changed:
            connection = self._owners.pop(id(channel), None)
        if connection is not None:
            self._give_back(connection)

    def alive(self, channel: Channel) -> bool:
        """The connection of `channel` still stands."""
        transport = channel.get_transport()
        return bool(transport.is_active())

    def abandon(self, channel: Channel) -> None:
        """The connection of `channel` is broken, whether or not paramiko has noticed: never use it again."""
        channel.get_transport().close()

    def transport(self) -> Transport:
        """A connection that stands, made if there is none. Raises BoxError."""
        connection = self._claim(True, time.monotonic() + self.address.connect_timeout)
        self._give_back(connection)
        return connection.transport

    def _claim(self, script: bool, deadline: float) -> _Connection:
        """A place on a connection, which is made if need be."""
        most = CONNECTIONS if script else CONNECTIONS - 1
        with self._changed:
            while True:
                self._forget_lost()
                now = time.monotonic()
                for connection in self._connections:
                    if connection.used < CHANNELS and connection.again <= now:
                        connection.used += 1
                        return connection
                if not self._connecting and len(self._connections) < most:
                    self._connecting = True
                    break
                if now > deadline:
                    raise BoxError(
                        "environment_exec_failed", f"no free session on {self.address}: too many commands"
                    )
                self._changed.wait(_REFUSED)
        try:
            made = self._connect()
        finally:
            with self._changed:
                self._connecting = False
                self._changed.notify_all()
        with self._changed:
            made.used += 1
            self._connections.append(made)
            self._changed.notify_all()
        return made

    def _give_back(self, connection: _Connection, *, refused: bool = False) -> None:
        with self._changed:
            connection.used -= 1
            connection.again = time.monotonic() + _REFUSED if refused else 0.0
            self._changed.notify_all()

    def _forget_lost(self) -> None:
        for connection in [c for c in self._connections if not c.transport.is_active()]:
            self._connections.remove(connection)
            start_thread(connection.client.close)

    def _connect(self) -> _Connection:
        client = connect(self.address)
        transport = client.get_transport()
        assert transport is not None  # connect() succeeded
        transport.set_keepalive(KEEPALIVE)
        with contextlib.suppress(OSError):
            milliseconds = int(SILENCE * 1000)
            if isinstance(transport.sock, socket.socket):
                transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        return _Connection(client, transport)

    def close(self) -> None:
        """Close all connections; the next use makes new ones."""
        with self._changed:
            connections, self._connections = self._connections, []
        for connection in connections:
            connection.client.close()

    # -- scripts ---------------------------------------------------------------------------------

    def run(
        self,
        script: str,
        *args: str,
        container: str | None = None,
        feed: Callable[[Channel], object] | None = None,
        take: Callable[[Channel], object] | None = None,
        timeout: float = 60.0,
    ) -> Done:
        """Run one of our scripts to its end. `feed` writes its stdin, `take` reads its stdout.

        With `container` it runs in that container of the host.

        `timeout` is for the silence between two pieces. Raises BoxError ``environment_connection_lost``.
        """
        channel = self.open(script_command(script, args, container), script=True)
        errors, output = BoundedStream(), BoundedStream()
        try:
            channel.settimeout(timeout)
            reader = threading.Thread(target=_drain, args=(channel.recv_stderr, errors), daemon=True)
            reader.start()
            try:
                if feed is not None:
                    # The script may end early; its exit code then says why.
                    with contextlib.suppress(OSError):
                        feed(channel)
                channel.shutdown_write()
                if take is None:
                    _drain(channel.recv, output)
                else:
                    take(channel)
            except BROKEN as error:
                # `take` also fails for reasons of this machine, such as a full disk.
                if isinstance(error, EOFError | TimeoutError) or not self.alive(channel):
                    raise lost(self.address, error) from error
                raise
            if not channel.status_event.wait(timeout):
                raise lost(self.address, "no answer")
            reader.join(timeout)
            code = channel.recv_exit_status()
            if code < 0 and not self.alive(channel):
                raise lost(self.address, "while a script ran")
            return Done(code, output.text()[0], errors.text()[0])
        finally:
            self.release(channel)


def _drain(recv: Callable[[int], bytes], into: BoundedStream) -> None:
    with contextlib.suppress(*BROKEN):
        while data := recv(_PIECE):
            into.feed(data)


# -- connecting ------------------------------------------------------------------------------------


def connect(address: Address) -> SSHClient:
    """A connection whose host has proved itself. Raises BoxError with a title for each way it can fail."""
    try:
        import paramiko
    except ImportError as error:
        raise BoxError(
            "environment_preflight_failed", "the kind ssh needs paramiko: pip install 'pytest-ageval[ssh]'"
        ) from error
    client = paramiko.SSHClient()
    try:
        _trust(client, address)
        client.connect(
            address.host,
            port=address.port,
            username=address.user or getpass.getuser(),
            key_filename=address.key,
            allow_agent=address.key is None,
            look_for_keys=address.key is None,
            timeout=address.connect_timeout,
            banner_timeout=address.connect_timeout,
            auth_timeout=address.connect_timeout,
            transport_factory=_transport,
        )
    except BoxError:
        client.close()
        raise
    except Exception as error:
        client.close()
        raise _refused(address, error) from error
    return client


def _transport(*args: Any, **kwargs: Any) -> Transport:
    """A transport that prefers the ciphers that also authenticate: three times as fast in paramiko."""
    import paramiko

    transport = paramiko.Transport(*args, **kwargs)
    security = transport.get_security_options()
    security.ciphers = tuple(sorted(security.ciphers, key=lambda name: "gcm" not in name))
    return transport


def _refused(address: Address, error: Exception) -> BoxError:
    import paramiko

    if isinstance(error, paramiko.BadHostKeyException):
        return BoxError(
            "environment_host_key_refused",
            f"{address} showed another host key than the known one ({_fingerprint(error.key)}); if the host "
            "was set up anew, remove its line from known_hosts",
        )
    if isinstance(error, paramiko.AuthenticationException):
        return BoxError(
            "environment_login_refused",
            f"{address} did not let us in: {error}; check user, key_file, key_env",
        )
    if isinstance(error, paramiko.SSHException | EOFError | OSError):
        return BoxError("environment_start_failed", f"cannot connect to {address}: {error}")
    return BoxError(
        "environment_start_failed", f"cannot connect to {address}: {type(error).__name__}: {error}"
    )


def _trust(client: SSHClient, address: Address) -> None:
    """Tell `client` which host keys are right. There is no way to accept any key."""
    import paramiko

    if address.host_key is not None and address.host_key.startswith("SHA256:"):
        client.set_missing_host_key_policy(_only(address))
        return
    if address.host_key is not None:
        words = address.host_key.split()
        try:
            key = paramiko.PKey.from_type_string(words[0], base64.b64decode(words[1]))
        except Exception as error:
            raise BoxError(
                "environment_preflight_failed",
                f"the option host_key is neither SHA256:... nor a line like 'ssh-ed25519 AAAA...': {error}",
            ) from error
        name = address.host if address.port == 22 else f"[{address.host}]:{address.port}"
        client.get_host_keys().add(name, words[0], key)
    else:
        path = Path(address.known_hosts).expanduser()
        if path.is_file():
            client.load_host_keys(str(path))
    client.set_missing_host_key_policy(_only(address))


def _fingerprint(key: Any) -> str:
    digest = base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode("ascii").rstrip("=")
    return f"SHA256:{digest}"


def _only(address: Address) -> Any:
    """A policy that takes the key of the option `host_key` and refuses all others."""
    import paramiko

    class Only(paramiko.MissingHostKeyPolicy):
        def missing_host_key(self, client: SSHClient, hostname: str, key: Any) -> None:
            found = _fingerprint(key)
            if address.host_key == found:
                return
            wanted = "the option host_key" if address.host_key else address.known_hosts
            raise BoxError(
                "environment_host_key_refused",
                f"the host key of {address} ({key.get_name()} {found}) is not that of {wanted}; if it is the "
                f"right one, connect once with ssh, or set the option host_key to {found}",
            )

    return Only()


_hosts: dict[Address, Host] = {}
_hosts_lock = threading.Lock()


def host(address: Address) -> Host:
    """The connections of this process to `address`."""
    with _hosts_lock:
        return _hosts.setdefault(address, Host(address))
