"""The controller's part of a run over several machines: hooks of pytest-xdist."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ageval.across import specs
from pytest_ageval.across.arguments import PATHS, Arguments, roots
from pytest_ageval.across.host import Host, in_parallel, signals_held
from pytest_ageval.across.shared import Purse
from pytest_ageval.across.shipping import Intake
from pytest_ageval.across.specs import HostError
from pytest_ageval.across.tree import Tree, below_any
from pytest_ageval.across.words import Incoming, Words, whole
from pytest_ageval.across.worker import INPUT
from pytest_ageval.inflight.limits import HERE

if TYPE_CHECKING:
    from pytest_ageval.job import Job

#: Seconds between two looks at what was spent, and between two signs of life.
SHARE_SECONDS = 0.2
SIGN_SECONDS = 20.0

#: Seconds that pytest-xdist gives its workers at the end, and that we give those that it has left.
EXIT_SECONDS = 40.0
WORKERS_SECONDS = 20.0

#: Seconds within which a host must answer when one of its workers is gone.
ANSWER_SECONDS = 15.0


def configure(config: pytest.Config) -> None:
    """Take part in a run whose specs name other machines.

    With ``--rsyncdir`` pytest-xdist does it its own way.
    """
    given = config.getoption("tx", None) or ()
    if not any("ssh=" in text and "via=" not in text and "vagrant_ssh=" not in text for text in given):
        return
    if config.getoption("numprocesses", None) or config.getoption("collectonly", False):
        return
    if config.getoption("rsyncdir", None) or config.getini("rsyncdirs"):
        return
    words = config.invocation_params.args
    if config.getoption("dist") == "no" and not any(str(word).startswith("--dist") for word in words):
        config.option.dist = "load"
    config.pluginmanager.register(Across(config), "ageval-across")


class Across:
    """Hosts, and which worker is where."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.hosts: dict[specs.Key, Host] = {}
        self._workers: dict[str, Host] = {}
        self._channels: dict[str, Any] = {}
        self._input: dict[str, Any] = {}
        self._directory: Path | None = None
        self._given: pytest.Config.InvocationParams | None = None
        self._remote = False
        self._running = False
        self._named: list[Path] = []
        self._env_files: dict[str, str] = {}
        self._pushed: set[int] = set()
        self._evidence: list[Path] = []
        self._problems: list[str] = []
        self._purse: Purse | None = None
        self._stop = threading.Event()
        self.shipped: set[Path] = set()
        self.words = Words(config, self)

    # -- the beginning ---------------------------------------------------------------------------

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_xdist_setupnodes(self, config: pytest.Config, specs: Sequence[Any]) -> None:
        """Before the first worker: reach every host, and bring the files there."""
        self._refuse_options()
        manager = config.pluginmanager.getplugin("dsession").nodemanager
        manager.roots = []  # nothing is copied that is installed there
        manager.EXIT_TIMEOUT = EXIT_SECONDS
        manager.group.makegateway = self._makegateway(manager.group.makegateway)
        self._directory = Path(tempfile.mkdtemp(prefix="ageval-ssh-"))
        self._find_hosts(specs)
        hosts = list(self.hosts.values())
        self._open_purse()
        self._or_refuse(in_parallel(hosts, self._connect))
        self._send_files(hosts)
        threading.Thread(target=self._share, name="ageval-hosts", daemon=True).start()

    def _refuse_options(self) -> None:
        from pytest_ageval.options import resolve

        if resolve(self.config, "record")[0] is not None:
            raise pytest.UsageError("--record writes on one machine: leave out --tx ssh=...")
        if Path(self.config.rootpath) in (Path.home(), Path("/")):
            raise pytest.UsageError(
                f"the rootdir {self.config.rootpath} would travel to the hosts whole: put a pytest.ini "
                "beside the data sets, or give --rootdir"
            )

    def _find_hosts(self, given: Sequence[Any]) -> None:
        assert self._directory is not None
        for spec in given:
            if specs.is_remote(spec):
                specs.prepare(spec, self._directory)
                key = specs.key_of(spec)
                if key not in self.hosts:
                    intake = self._intake()
                    self.hosts[key] = Host(len(self.hosts), spec, intake, self._spent)

    def _intake(self) -> Intake:
        return Intake(lambda: self._evidence, self._problems.append, self.shipped.add)

    @property
    def job(self) -> Job:
        """The session's job."""
        from pytest_ageval.job import Job

        return Job.of(self.config)

    def _connect(self, host: Host) -> None:
        from pytest_ageval.job import run_id

        host.connect(run_id(self.config), self._purse is not None)

    @staticmethod
    def _or_refuse(wrong: Sequence[str]) -> None:
        if wrong:
            raise pytest.UsageError("--tx: " + "\n".join(wrong))

    def _send_files(self, hosts: Sequence[Host]) -> None:
        from pytest_ageval.options import resolve

        without = {self.job.place(name) for name in ("dir", "record")}
        named = roots(self.config)
        ignored = resolve(self.config, "remote_ignore")[0] or ()
        trees = {host.number: Tree(named, frozenset(filter(None, without)), tuple(ignored)) for host in hosts}

        def send(host: Host) -> None:
            tree = trees[host.number]
            host.files = host.put(tree.entries(), self._directories(), self._links(host, tree))

        self._or_refuse(in_parallel(hosts, send))
        self._send_recorded(hosts, trees[hosts[0].number].datasets)
        for path in trees[hosts[0].number].env_files:
            with contextlib.suppress(OSError, UnicodeDecodeError):
                self._env_files[str(path)] = path.read_text("utf-8")
        self._named = named
        if self.config.get_verbosity() >= 0:
            for host in hosts:
                self.words.say(f"{host.name}: {host.files} files sent to {host.places.base}")

    def _send_recorded(self, hosts: Sequence[Host], datasets: Sequence[Path]) -> None:
        """With ``--regrade``: the work that is judged again."""
        from pytest_ageval.errors import AgevalError
        from pytest_ageval.options import resolve
        from pytest_ageval.suite.places import suites
        from pytest_ageval.suite.sources import find_recorded

        names = resolve(self.config, "regrade")[0]
        found: dict[Path, None] = {}
        for evidence in {self.job.evidence_root(root).absolute() for root in datasets} if names else ():
            with contextlib.suppress(AgevalError):  # the workers say it
                rows, _ = find_recorded(names, evidence)
                found.update(dict.fromkeys(row.directory for row in rows if row.directory is not None))
            found.update(dict.fromkeys(suites(evidence)))
        if found:
            self._or_refuse(in_parallel(hosts, lambda host: host.put(whole(found))))

    def _directories(self) -> list[str]:
        return [str(self.config.invocation_params.dir), str(self.config.rootpath)]

    @staticmethod
    def _links(host: Host, tree: Tree) -> Any:
        def links(path: Path, target: str) -> str:
            if not target.startswith("/"):
                return target
            return host.places.there(os.path.normpath(target)) if tree.travels(Path(target)) else target

        return links

    # -- workers ---------------------------------------------------------------------------------

    def _makegateway(self, make: Any) -> Any:
        """pytest-xdist's way to a worker: on another host when the one that is meant is gone."""

        def makegateway(spec: Any = None) -> Any:
            host = self.hosts.get(specs.key_of(spec)) if specs.is_remote(spec) else None
            while host is not None:
                if host.lost is None:
                    try:
                        with signals_held():
                            gateway = make(spec)
                        gateway.remote_exec("channel.send(1)").receive(timeout=specs.ANSWER_SECONDS)
                    except Exception as error:  # execnet has several words for it
                        if not self._running:
                            raise pytest.UsageError(f"--tx: {host.name}: no worker: {error!r}") from None
                        self._lose(host, f"no worker can be started: {error!r}")
                    else:
                        return gateway
                host = self._retarget(spec)
            return make(spec)

        return makegateway

    def _retarget(self, spec: Any) -> Host | None:
        """Let a spec name another host of the run; None when it is this machine now."""
        manager = self.config.pluginmanager.getplugin("dsession").nodemanager
        load = {
            each: sum(worker is host for worker in self._workers.values())
            for each in manager.specs
            if (host := self.hosts.get(specs.key_of(each))) is not None and host.lost is None
        }
        local = [each for each in manager.specs if each.popen and not each.via]
        if not load and not local:
            pytest.exit("no host is left; go on with --resume when one is back")
        donor = min(load, key=lambda each: load[each]) if load else local[0]
        kept = spec.id
        spec.__dict__.clear()
        spec.__dict__.update({**donor.__dict__, "id": kept})
        return self.hosts.get(specs.key_of(spec)) if specs.is_remote(spec) else None

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_newgateway(self, gateway: Any) -> None:
        """The arguments of a remote worker are ours to give; pytest-xdist would look for rsync roots."""
        self._remote = specs.is_remote(gateway.spec)
        if self._remote:
            given = self._given = self.config.invocation_params
            self.config.invocation_params = pytest.Config.InvocationParams(
                args=(), plugins=given.plugins, dir=given.dir
            )

    @pytest.hookimpl(optionalhook=True, trylast=True)
    def pytest_configure_node(self, node: Any) -> None:
        """A worker learns where it is."""
        if self._given is not None:
            self.config.invocation_params, self._given = self._given, None
        node.workerinput[HERE] = self._beside(node.gateway.spec)
        if not self._remote:
            return
        host = self.hosts[specs.key_of(node.gateway.spec)]
        gateway = node.gateway
        self._workers[gateway.id] = host
        channel = self._channels[gateway.id] = gateway.newchannel()
        incoming = Incoming(gateway.id, channel, self._intake(), node.workerinput)
        channel.setcallback(lambda message: self.words.take(incoming, message), endmarker=None)
        arguments = Arguments(host.places.there, lambda path: below_any(path, self._named))
        node.workerinput[INPUT] = {
            "base": host.places.base,
            "cwd": host.places.there(self.config.invocation_params.dir),
            "args": self._words_for(host, arguments),
            "environment": self._environment(arguments),
            "env_files": {host.places.there(path): text for path, text in self._env_files.items()},
            "channel": channel,
        }

    def _beside(self, spec: Any) -> int:
        """How many workers the machine of a spec has."""
        given = self.config.pluginmanager.getplugin("dsession").nodemanager.specs
        machines = [specs.key_of(each) if specs.is_remote(each) else None for each in given]
        return machines.count(specs.key_of(spec) if specs.is_remote(spec) else None)

    def _words_for(self, host: Host, arguments: Arguments) -> list[str]:
        config = self.config
        found = [f"--rootdir={host.places.there(config.rootpath)}"]
        if config.inipath is not None:
            found += ["-c", host.places.there(config.inipath)]
        return found + arguments.mapped([str(word) for word in config.invocation_params.args])

    def _environment(self, arguments: Arguments) -> dict[str, str]:
        """Variables that are options, and paths of the ini file that lie outside of what is relative."""
        from pytest_ageval.options import BY_NAME, resolve

        found = {
            name: arguments.environment(name, value)
            for name, value in os.environ.items()
            if name == "PYTEST_ADDOPTS" or name.removeprefix("AGEVAL_").lower() in BY_NAME
        }
        for name in PATHS:
            value, source = resolve(self.config, name)
            if source == "ini" and isinstance(value, str) and value[:1] in ("/", "~"):
                found[BY_NAME[name].env] = arguments.environment(BY_NAME[name].env, value)
        return found

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_xdist_getremotemodule(self) -> Any:
        """What a worker on a host starts with."""
        if not self._remote:
            return None
        from pytest_ageval.across import remote

        return remote

    # -- while it runs ---------------------------------------------------------------------------

    def owns(self, worker: str) -> Host | None:
        """The host of a worker; None for one of this machine."""
        return self._workers.get(worker)

    @pytest.hookimpl(optionalhook=True, trylast=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        """The suite runs are known: the workers learn of them, and get what is to be continued."""
        from pytest_ageval.suite_recorder import by_dataset, tasks_of

        self._running = True
        if not self._evidence:
            found = by_dataset(tasks_of(ids), self.config.rootpath)
            self._evidence += [self.job.evidence_root(root).absolute() for root in found]
        host = self.owns(node.gateway.id)
        if host is None:
            return
        places = self.job.suites.known()
        resumed = [place.root for place in places.values() if place.resumed]
        if resumed and host.number not in self._pushed:
            self._pushed.add(host.number)
            with contextlib.suppress(HostError):  # its workers are reported as lost
                self.words.push(host, resumed)
        rows = {evidence: [str(place.root), place.resumed] for evidence, place in places.items()}
        with contextlib.suppress(OSError):
            self._channels[node.gateway.id].send(("suites", rows))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Other machines know of a verdict too, for ``--attempts auto``."""
        self.words.verdict(report, self.owns(getattr(report, "worker_id", "")))

    def _open_purse(self) -> None:
        from pytest_ageval.errors import AgevalError
        from pytest_ageval.job import running_dir

        with contextlib.suppress(AgevalError, pytest.UsageError):  # said when the tasks are collected
            if self.job.ledger is not None:
                self._purse = Purse(running_dir(self.config) / "ledger")

    def _spent(self, host: Host, values: Any) -> None:
        if self._purse is not None:
            self._purse.spent(str(host.number), values)

    def _share(self) -> None:
        """In a thread of its own: what was spent, and signs of life."""
        quiet = 0.0
        while not self._stop.wait(SHARE_SECONDS):
            quiet += SHARE_SECONDS
            alive = [host for host in self.hosts.values() if host.here]
            if self._purse is not None:
                self._purse.share({str(host.number): self._telling(host) for host in alive})
            if quiet >= SIGN_SECONDS:
                quiet = 0.0
                for host in alive:
                    with contextlib.suppress(HostError):
                        host.send(("alive", None))

    @staticmethod
    def _telling(host: Host) -> Any:
        def tell(spent: dict[str, Any]) -> None:
            with contextlib.suppress(HostError):
                host.send(("call", 0, "others", (spent,)))

        return tell

    # -- workers that die ------------------------------------------------------------------------

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_testnodedown(self, node: Any, error: Any) -> None:
        """A worker is gone: find out whether its host is."""
        host = self.owns(node.gateway.id)
        if host is None or not error:
            return
        if host.lost is None and (why := host.answers(ANSWER_SECONDS)) is not None:
            self._lose(host, why)
        if host.lost is None:
            self.words.clear_up(host, node.gateway.id)

    def _lose(self, host: Host, why: str) -> None:
        from pytest_ageval.job import run_id

        host.lost = why
        self.words.say(f"the host {host.name} is lost: {why}")
        self.words.say(f"what its attempts left there: pytest-ageval clean --run {run_id(self.config)}")

    # -- the end ---------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self) -> Generator[None, Any, Any]:
        """After the workers are gone: fetch what they could not send, and leave nothing there."""
        try:
            return (yield)
        finally:
            self._stop.set()
            wrong = in_parallel([host for host in self.hosts.values() if host.here], self._leave)
            for line in (*wrong, *self._problems, *self._given_away()):
                self.words.say(line)
            in_parallel(list(self.hosts.values()), Host.close)
            if self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)

    def _given_away(self) -> Iterator[str]:
        """Which variables of the environment a host has got."""
        for host in self.hosts.values():
            workers = [worker for worker, where in self._workers.items() if where is host]
            names = set().union(*(self.words.given.get(worker, ()) for worker in workers))
            if names:
                yield f"{host.name} was given {', '.join(sorted(names))}"

    def _leave(self, host: Host) -> None:
        host.call("wait", WORKERS_SECONDS, seconds=2 * WORKERS_SECONDS)
        workers = {worker for worker, where in self._workers.items() if where is host}
        self.words.fetch(host, workers)
        for line in host.call("finish", self.words.kinds(workers)):
            self.words.say(f"{host.name}: {line}")
