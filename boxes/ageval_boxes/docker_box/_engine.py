"""The Docker engine: where it is, one client for each process, and its errors in our words.

The SDK blocks; every call of it runs in a thread of a pool of its own. Streams of commands do not go
through the SDK (its socket can lose what arrives together with the response's head): `_stream`.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import socket
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from pytest_ageval.errors import BoxError

if TYPE_CHECKING:
    import docker

T = TypeVar("T")

#: Seconds that one call of the engine may take. Builds have their own.
CALL_SECONDS = 60
#: Calls of the engine at the same time, for each process.
THREADS = 32

_lock = threading.Lock()
_clients: dict[tuple[int, str], Engine] = {}


@dataclass(frozen=True, slots=True)
class Image:
    """An image of the engine: its id, and the user and working directory that it names."""

    id: str
    user: str
    workdir: str


@dataclass(slots=True)
class Memory:
    """What this process has found on the engine and does not ask for again, box after box.

    Whoever is refused because of it forgets it and looks anew.
    """

    images: dict[str, Image] = field(default_factory=dict)
    #: The network of boxes, and why it is not one on which they cannot reach each other.
    bridge: tuple[str, str | None] | None = None

    def is_outdated(self, error: BoxError) -> bool:
        """The refusal is about an image or a network that was there."""
        words = error.message.lower()
        network = "" if self.bridge is None else f"network {self.bridge[0]} not found"
        return "no such image" in words or (network != "" and network in words)

    def forget(self) -> None:
        """Know nothing."""
        self.images.clear()
        self.bridge = None


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine: the SDK's client, and what is known of the engine."""

    client: docker.DockerClient
    host: str
    tls: ssl.SSLContext | None
    info: dict[str, Any]
    memory: Memory = field(default_factory=Memory)

    @property
    def socket(self) -> str | None:
        """The path of the engine's Unix socket; None where it is reached by TCP."""
        return self.host.removeprefix("unix://") if self.host.startswith("unix://") else None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port where it is reached by TCP."""
        parts = urlsplit(self.host)
        return parts.hostname or "localhost", parts.port or (2376 if self.tls else 2375)

    @property
    def version(self) -> str:
        """The version of the API that is spoken."""
        return str(self.client.api.api_version)

    def _security(self, name: str) -> bool:
        return any(row.split(",")[0] == f"name={name}" for row in self.info.get("SecurityOptions") or ())

    @property
    def own_uid(self) -> int | None:
        """The user in a container that is the user who runs us on the host; None where there is none."""
        if self._security("userns"):
            return None
        if self._security("rootless"):
            return 0
        return os.geteuid()


def engine_host() -> str:
    """``DOCKER_HOST``, else the endpoint of the current Docker context, else the usual socket."""
    named = os.environ.get("DOCKER_HOST")
    if named:
        return named
    from docker.context import ContextAPI

    context = ContextAPI.get_current_context()
    return str(context.Host) if context is not None and context.Host else "unix:///var/run/docker.sock"


def connect() -> Engine:
    """This process's client of the engine; made when first asked for.

    Raises BoxError ``environment_preflight_failed`` without the SDK, and
    ``environment_daemon_unreachable``.
    """
    try:
        import docker
        from docker.errors import DockerException
    except ImportError as error:
        raise BoxError(
            "environment_preflight_failed",
            "the kind docker needs the Docker SDK; pip install 'pytest-ageval[docker]'",
        ) from error
    host = engine_host()
    with _lock:
        known = _clients.get((os.getpid(), host))
        if known is not None:
            return known
        _check_host(host)
        try:
            _knock(host)
            tls = _tls(host)
            client = docker.DockerClient(
                base_url=host, tls=tls or False, timeout=CALL_SECONDS, max_pool_size=THREADS, version="auto"
            )
            info = client.info()
        except (DockerException, OSError) as error:
            raise unreachable(host, error) from error
        found = Engine(client, host, _context(tls), info)
        _clients[os.getpid(), host] = found
        return found


def ping(seconds: float) -> None:
    """Ask the engine whether it is there, with a client that is not kept.

    Raises BoxError as `connect` does.
    """
    import docker
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    host = engine_host()
    _check_host(host)
    try:
        _knock(host, seconds)
        client = docker.DockerClient(base_url=host, tls=_tls(host) or False, timeout=seconds, version="auto")
        try:
            client.ping()
        finally:
            client.close()
    except (DockerException, RequestException, OSError) as error:
        raise unreachable(host, error) from error


def _check_host(host: str) -> None:
    if not host.startswith(("unix://", "tcp://", "http://", "https://")):
        raise BoxError(
            "environment_preflight_failed", f"the engine {host}: only unix:// and tcp:// are supported"
        )


def _knock(host: str, seconds: float = 10) -> None:
    """Connect and go: the SDK leaves a socket open for each try at an engine that is not there."""
    if host.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(seconds)
            probe.connect(host.removeprefix("unix://"))


def _tls(host: str) -> Any:
    if host.startswith("unix://") or not os.environ.get("DOCKER_TLS_VERIFY"):
        return None
    from docker.tls import TLSConfig

    certificates = Path(os.environ.get("DOCKER_CERT_PATH") or Path.home() / ".docker")
    pair = (str(certificates / "cert.pem"), str(certificates / "key.pem"))
    return TLSConfig(client_cert=pair, ca_cert=str(certificates / "ca.pem"), verify=True)


def _context(tls: Any) -> ssl.SSLContext | None:
    if tls is None:
        return None
    context = ssl.create_default_context(cafile=tls.ca_cert)
    context.load_cert_chain(*tls.cert)
    return context


@functools.cache
def _threads(_pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix="ageval-docker")


async def call(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Run a blocking call of the SDK in a thread. Raises BoxError for what the engine refuses."""
    loop = asyncio.get_running_loop()
    work = functools.partial(translated, function, *args, **kwargs)
    return await loop.run_in_executor(_threads(os.getpid()), work)


def translated(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call `function`; what goes wrong is a BoxError with the engine's own words."""
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    try:
        return function(*args, **kwargs)
    except (DockerException, RequestException, OSError) as error:
        raise failure(error) from error


def unreachable(host: str, error: BaseException) -> BoxError:
    """The engine does not answer."""
    return BoxError(
        "environment_daemon_unreachable",
        f"no Docker engine at {host}: {error}; start one, or set DOCKER_HOST",
    )


#: What the engine says, in lower case, and what it means.
_WORDS = (
    ("no space left on device", "environment_disk_full"),
    ("is not running", "environment_gone"),
    ("no such container", "environment_gone"),
    ("no such exec instance", "environment_gone"),
    ("no such image", "environment_image_unresolved"),
    ("pull access denied", "environment_image_unresolved"),
    ("manifest unknown", "environment_image_unresolved"),
    ("no matching manifest", "environment_image_unresolved"),
    ("could not select device driver", "environment_gpu_unavailable"),
    ("address pools have been fully subnetted", "environment_networks_used_up"),
    ("could not find an available, non-overlapping ipv4 address pool", "environment_networks_used_up"),
)


def failure(error: BaseException, title: str = "environment_start_failed") -> BoxError:
    """The BoxError for an exception of the SDK; `title` where the engine's words say nothing better."""
    from docker.errors import APIError
    from requests.exceptions import ConnectionError as NoConnection
    from requests.exceptions import Timeout

    if isinstance(error, BoxError):
        return error
    if isinstance(error, (NoConnection, Timeout)):
        return unreachable(engine_host(), error)
    words = str(error.explanation or error) if isinstance(error, APIError) else str(error)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return BoxError("environment_disk_full", words)
    low = words.lower()
    for part, known in _WORDS:
        if part in low:
            return BoxError(known, words)
    return BoxError(title, words)
