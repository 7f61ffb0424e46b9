"""`DockerBox`: opening and closing a container; commands are in `_commands`, files in `_files`."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from ageval_boxes import _leftovers
from ageval_boxes._files import give, remove_tree
from ageval_boxes.docker_box import (
    _adopt,
    _bridge,
    _check,
    _compose,
    _container,
    _egress,
    _gateway,
    _images,
    _layers,
    _layout,
    _main,
    _owner,
    _phases,
)
from ageval_boxes.docker_box._commands import Commands, check_command
from ageval_boxes.docker_box._engine import Engine, call, connect, failure
from ageval_boxes.docker_box._files import BoxFiles
from ageval_boxes.docker_box._options import DockerOptions
from ageval_boxes.docker_box._transport import ExecTransport
from pytest_ageval.box import (
    WORKSPACE,
    BoxSpec,
    ExecResult,
    Leftover,
    NetworkMode,
    ProbeStatus,
    StdioTransport,
    check_path,
)
from pytest_ageval.errors import BoxError


class DockerBox(BoxFiles):
    """One container.

    `warnings` says what was asked for and not done, and what was noticed: files that were not copied,
    resources that are not enforced, processes that the kernel ended for want of memory.
    """

    kind = "docker"
    makes_images: ClassVar[bool] = True
    capabilities: ClassVar[frozenset[str]] = frozenset(
        {"exec", "upload", "download", "attach_stdio", "uid_gid", "path_views", "compose", "network_phases"}
    )
    Options = DockerOptions

    def __init__(self, spec: BoxSpec) -> None:
        super().__init__(spec)
        self._state: Literal["new", "starting", "started", "stopped"] = "new"
        self._engine: Engine | None = None
        self._commands: Commands | None = None
        self._compose: _compose.Project | None = None
        self._closed: str | None = None
        self._phases: _phases.Phases | None = None
        self._relays = _gateway.Relays()
        self._transports: list[ExecTransport] = []
        self._creating: asyncio.Future[tuple[str, list[str]]] | None = None
        #: The container is all that there is of the box on the engine.
        self._alone = False

    # -- opening -----------------------------------------------------------------------------------

    @classmethod
    def describe(cls, options: Mapping[str, Any]) -> str:
        """``docker (<image>)`` or ``docker``."""
        image = options.get("image") or options.get("docker_image")
        return f"docker ({image})" if image else "docker"

    async def preflight(self) -> None:
        """Refuse without the SDK, without an engine, without GPUs that were asked for.

        An engine that has answered this process is not asked again: the next request says it.
        """
        engine = await self._connect()
        _container.check_gpus(engine, self.spec.resources)

    async def _connect(self) -> Engine:
        if self._engine is None:
            self._engine = await asyncio.to_thread(connect)
        return self._engine

    async def start(self) -> None:
        """Make or find the image, start compose services if there are any, and the container."""
        if self._state != "new":
            raise BoxError("environment_already_started", f"this box is {self._state}")
        self._state = "starting"
        for layer in self.spec.layers:
            _layers.check(layer)
        await self.preflight()
        engine = await self._connect()
        self._choose_user(engine)
        try:
            await asyncio.to_thread(self._make_directories)
        except OSError as error:
            raise failure(error) from error
        image = await self._image(engine)
        await self._open_services(engine)
        await self._close_network(engine)
        image = await self._open_container(engine, image)
        user = None
        if self._foreign:
            user, self._user = await _layout.prepare(engine, self._container_id, image, self.options)
        self._begin(engine, user)
        if self.options.network_phases:
            await self.use_network(self.options.network_mode, self.options.egress_allow)
        more = self._compose is not None or self._closed is not None or self.options.network_phases
        self._alone = not more

    def _begin(self, engine: Engine, user: str | None = None) -> None:
        user = user or f"{self._user[0]}:{self._user[1]}"
        self._commands = Commands(engine, self._container_id, user, self._variables())
        self._state = "started"

    def _choose_user(self, engine: Engine) -> None:
        self._user, self._shared = _layout.user_of(engine, self.options)
        if asked := _container.not_enforced(self.spec.resources):
            self.warnings.append(f"docker boxes do not enforce {', '.join(asked)}")

    async def _image(self, engine: Engine) -> str:
        recipe, context = _images.recipe_of(self.spec.task_root, self.options)
        return await _images.resolve(
            engine,
            image=self.options.named_image,
            recipe=recipe,
            context=context,
            platform=self.options.platform,
            python_version=self.options.python_version,
            labels=self._image_labels(),
        )

    def _image_labels(self) -> dict[str, str]:
        # An image outlives its attempt: only who made it.
        return {k: v for k, v in self.spec.labels.items() if k == "ageval.run"}

    def _labels(self) -> dict[str, str]:
        return _owner.labels(self._id, self.spec.labels, self.spec.work_dir)

    async def _open_services(self, engine: Engine) -> None:
        file = _compose.find(self.spec.task_root) if self.options.services else None
        if file is None:
            if self.options.network.startswith("service:"):
                raise BoxError(
                    "environment_options_invalid",
                    f"network {self.options.network}: there are no compose services",
                )
            return
        await call(engine.client.ping)  # the Compose CLI would say it in words of its own
        self._compose = self._project(engine, file)
        try:
            await self._compose.up()
        except asyncio.CancelledError:
            # Whoever had no more patience should know for what.
            rows = self._compose.waiting.items()
            self.warnings += [f"the service {name} was not healthy yet: {said}" for name, said in rows]
            raise

    def _project(self, engine: Engine, file: Path) -> _compose.Project:
        variables = {**self.options.compose_environment, **self.options.environment}
        return _compose.Project(
            engine,
            file,
            f"ageval-{self._id[:10]}",
            self.spec.work_dir,
            self._labels(),
            {**_main.infrastructure(file.parent, self.options, self.spec.resources), **variables},
            internal=self.options.closes_services,
        )

    async def _close_network(self, engine: Engine) -> None:
        if self.options.network_phases and self._compose is not None and self._compose.containers:
            raise BoxError(
                "environment_options_invalid",
                "network_phases cannot be held to beside compose services: they are a way out",
            )
        if self.options.egress == "off" or self.options.network_phases:
            return
        if self._compose is not None and not self.options.closes_services:
            raise BoxError(
                "environment_options_invalid",
                "egress: llm cannot be enforced beside compose services: they are a way out",
            )
        labels = self._labels()
        base = await _images.base(engine, self.options.platform, None, self._image_labels())
        self._closed = await _egress.open_network(engine, f"ageval-{self._id}", labels)
        allowed = _egress.rules(self._model_urls(engine), self.options.egress_allow)
        await _egress.start_proxy(engine, base, self._closed, allowed, labels)

    def _model_urls(self, engine: Engine) -> Sequence[str]:
        """With the gateway the providers need not be reached: `forward` is the way out."""
        return () if self.spec.gateway and engine.socket is not None else self.spec.model_urls

    async def use_network(self, mode: NetworkMode, hosts: Sequence[str] = (), *, model: bool = False) -> None:
        """Change the network; see `Box.use_network`. A mode that `network_phases` names."""
        commands = self._running
        if self._phases is None:
            self._phases = _phases.Phases(
                commands.engine,
                f"ageval-{self._id}-{secrets.token_hex(2)}",
                self._labels(),
                self.options.platform,
                self.options.network_phases,
                self._image_labels(),
                (await _bridge.shared(commands.engine))[0],
            )
        urls = self._model_urls(commands.engine) if model else ()
        closed = await self._phases.use(commands, mode, _egress.rules(urls, hosts))
        await self._relays.close()
        self._relays, self._closed = _gateway.Relays(), closed
        commands.give(self._variables())

    async def _with_layers(self, engine: Engine, image: str) -> str:
        """`image` with the layers that are not shown from the host."""
        layers = [row for row in self.spec.layers if row.dest is None or not self._shared]
        labels = self._image_labels()
        return await _layers.stack(engine, image, layers, platform=self.options.platform, labels=labels)

    async def _open_container(self, engine: Engine, image: str) -> str:
        """Create and start the container; returns the name of its image."""
        try:
            await self._try_to_open(engine, image)
        except BoxError as error:
            if not engine.memory.is_outdated(error):
                raise BoxError(error.title, f"{image}: {error.message}", detail=error.detail) from error
            # Somebody has removed what an earlier box had.
            engine.memory.forget()
            if self._container_id:
                await call(_owner.remove_container, engine, self._container_id)
            image = await self._image(engine)
            await self._try_to_open(engine, image)
        return image

    async def _try_to_open(self, engine: Engine, image: str) -> None:
        if not await self._create(engine, await self._with_layers(engine, image)):
            # The engine is elsewhere, although its socket is here.
            self._shared = False
            await self._create(engine, await self._with_layers(engine, image))
        if not self._shared and not self._foreign:
            await call(_container.make_directories, engine, self._container_id, self._user)
        await call(engine.client.api.start, self._container_id)

    async def _create(self, engine: Engine, image: str) -> bool:
        """Create the container; False if the engine does not see the files that it is to share."""
        network, warning = await _bridge.shared(engine)
        plan = _container.Plan(
            image=image,
            name=f"ageval-{self._id}",
            options=self.options,
            resources=self.spec.resources,
            labels=self._labels(),
            files=self._files if self._shared else None,
            project=self._compose,
            bridge=network,
            closed=self._closed,
            working_dir="/" if self._foreign else WORKSPACE,
            shown=_layers.shown(self.spec.layers),
        )
        self._creating = asyncio.ensure_future(call(_container.create, engine, plan))
        try:
            # Shielded: a container that is being made when we are cancelled must be known to `stop`.
            self._container_id, said = await asyncio.shield(self._creating)
        except BoxError as error:
            if self._shared and "bind source path does not exist" in error.message:
                return False
            raise
        self.warnings += [*said, *([warning] if warning is not None and plan.uses_bridge else ())]
        return True

    @property
    def _foreign(self) -> bool:
        """The image has paths and users of its own."""
        return bool(self.options.layout == "image")

    def _variables(self) -> dict[str, str]:
        return _layout.variables(self.spec.attempt_id, self.options, closed=self._closed is not None)

    # -- what it is --------------------------------------------------------------------------------

    @property
    def expose(self) -> Callable[[Path], str] | None:
        """Shows an agent's runtime to the box and says where; None where no host file can be shown."""
        return _container.expose if self._shared else None

    async def forward(self, port: int) -> str | None:
        """Through a relay for this container alone; None without a network, or with an engine elsewhere."""
        commands = self._running
        return await self._relays.forward(commands.engine, self._container_id, self._closed, commands, port)

    # -- a box of another process --------------------------------------------------------------------

    def handle(self) -> dict[str, Any]:
        """Kind, container, work directory, labels, and what `attach` needs to know of how it was opened."""
        return {
            "kind": self.kind,
            "id": self._id,
            "container": self._container_id,
            "work_dir": str(self.spec.work_dir),
            "labels": self._labels(),
            "user": list(self._user),
            "shared": self._shared,
            "network": self._closed,
            "compose": None if self._compose is None else str(self._compose.file),
        }

    async def probe(self, handle: Mapping[str, Any]) -> ProbeStatus:
        """See `Box.probe`. Without ``background: keep`` any process but the container's own makes it busy."""
        return await call(_adopt.probe, await self._connect(), handle, self.kind, keep=self._keeps)

    async def attach(self, handle: Mapping[str, Any]) -> None:
        """Take over; see `Box.attach`. The work directory, user and network are those of the handle.

        A container that has stopped, as with its engine, is started again.
        """
        if self._state != "new":
            raise BoxError("environment_already_started", f"this box is {self._state}")
        _adopt.refuse_other(handle, self.kind)
        engine = await self._connect()
        note = self._note(handle["id"])
        await call(_adopt.take_over, engine, handle, self.kind, note, keep=self._keeps)
        # From here on `stop` removes it.
        self._state, self._owned = "starting", True
        self._id, self._container_id = handle["id"], handle["container"]
        self.spec = replace(self.spec, work_dir=Path(handle["work_dir"]))
        self._files, self._staging = self.spec.work_dir / "box", self.spec.work_dir / "staging"
        self._shared = bool(handle.get("shared"))
        uid, gid = handle.get("user") or self._user
        self._user = (int(uid), int(gid))
        self._closed = handle.get("network")
        if handle.get("compose"):
            self._compose = self._project(engine, Path(handle["compose"]))
            await self._compose.find()
        self._begin(engine)

    async def discard(self, handle: Mapping[str, Any]) -> None:
        """Remove; see `Box.discard`."""
        _adopt.refuse_other(handle, self.kind)
        await call(_adopt.discard, await self._connect(), handle, self.kind)

    @property
    def _running(self) -> Commands:
        if self._commands is None or self._state != "started":
            word = "was stopped" if self._state == "stopped" else "was not started"
            raise BoxError("environment_not_started", f"this box {word}")
        return self._commands

    # -- commands ----------------------------------------------------------------------------------

    async def exec(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        user: str | None = None,
        service: str | None = None,
        stdin: bytes | None = None,
    ) -> ExecResult:
        """Run `argv` to its end; see `Box.exec`. With `service`, in that compose service's container.

        BoxError ``environment_oom_killed`` when the command was killed because the box used up its
        memory, ``environment_gone`` when the container is no longer there.
        """
        commands = self._running
        check_command(argv, env, user)
        if service is not None:
            target = await self._service(service)
            commands = commands.of(target)
            place = cwd
        else:
            place = WORKSPACE if cwd is None else str(check_path(cwd))
        try:
            return await commands.run(argv, cwd=place, env=env, timeout=timeout, user=user, stdin=stdin)
        except BoxError as error:
            if self._state == "stopped":
                raise BoxError("environment_not_started", "this box was stopped") from error
            raise

    async def attach_stdio(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> StdioTransport:
        """Start a long-lived process; see `Box.attach_stdio`."""
        commands = self._running
        check_command(argv, env, user)
        place = WORKSPACE if cwd is None else str(check_path(cwd))
        if self._gives_to is not None:
            # What run.py wrote into the workspace as root, the agent must be able to change.
            work = self._files / "workspace"
            await asyncio.to_thread(give, work, self._gives_to, of=0)
        transport = await commands.attach(argv, cwd=place, env=env, user=user, keep=self._keeps)
        self._transports.append(transport)
        return transport

    @property
    def _keeps(self) -> bool:
        return bool(self.options.background == "keep")

    async def _service(self, name: str) -> str:
        if name == "main":
            return self._container_id
        if self._compose is None:
            raise BoxError("environment_service_missing", f"the task has no compose services (asked: {name})")
        return await self._compose.container(name)

    # -- closing -----------------------------------------------------------------------------------

    async def quiesce(self) -> list[str]:
        """Kill everything in the container but what keeps it open, verify, and say what was killed.

        With ``background: keep``, what has detached itself (a server that the task asked for) goes on.
        """
        commands = self._running
        # With a limit of memory a command must look what the kernel has ended; else the engine knows.
        idle = not self.spec.resources.get("memory_mb") and await commands.idle()
        ended = [] if idle else await commands.end("", 0.5, keep=self._keeps)
        for transport in self._transports:
            await transport.wait(2.0)
            await transport.close()
        self._transports.clear()
        if commands.ooms:
            self.warnings.append(f"the kernel ended {commands.ooms} process(es) for want of memory")
        return ended

    async def stop(self, *, delete: bool = True) -> None:
        """Remove all of it by force: container, services, networks, volumes and, with `delete`, the files."""
        interrupted = self._state == "starting"
        self._state = "stopped"
        engine = self._engine
        await self._relays.close()
        if engine is not None and self._owned:
            if self._creating is not None:
                await asyncio.wait({self._creating}, timeout=5)
            if self._alone:
                await call(_owner.remove_container, engine, self._container_id)
            else:
                await call(_owner.remove_all, engine, self._id)
            if interrupted:
                # What the engine was still making when `start` was cancelled.
                await asyncio.sleep(0.5)
                await call(_owner.remove_all, engine, self._id)
        for transport in self._transports:
            await transport.close()
        self._transports.clear()
        if self._commands is not None:
            await self._commands.close()
        if not self._owned:
            return
        work = self.spec.work_dir
        if delete:
            try:
                await asyncio.to_thread(remove_tree, work)
            except OSError as error:
                raise BoxError("environment_stop_failed", f"{work}: {error}") from error
        else:
            with contextlib.suppress(FileNotFoundError):
                (work / _leftovers.MARKER).unlink()

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> str | None:
        """The SDK is missing, or no engine answers."""
        return _check.why_not()

    @classmethod
    def leftovers(cls, labels: Mapping[str, str]) -> list[Leftover]:
        """A row for each box: its containers, networks, volumes and its directory on this host."""
        return _owner.leftovers(cls.kind, labels)

    @classmethod
    def reap(cls, labels: Mapping[str, str]) -> list[str]:
        """Remove what boxes with these labels left on the engine, and their directories.

        Boxes of another process that still runs are spared. No engine: nothing is left.
        """
        try:
            return _owner.reap(cls.kind, labels)
        except BoxError as error:
            if error.title in ("environment_daemon_unreachable", "environment_preflight_failed"):
                return []
            raise
