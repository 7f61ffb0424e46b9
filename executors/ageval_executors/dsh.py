"""The executor ``dsh``: the DeepSeek Harness in the box, over ACP."""

from __future__ import annotations

import asyncio
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec

from ageval_executors._pypi import PyPackages, ensure_packages, find_installed
from ageval_executors.acp import AcpExecutor
from ageval_executors.acp.launch import DUMMY_KEY, is_loopback
from ageval_executors.acp.peer import require_library
from ageval_executors.acp.results import dead_result
from pytest_ageval.box import HOME, Box
from pytest_ageval.errors import ExecutorError
from pytest_ageval.executor import AgentResult, Executor, ModelSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_ageval.executor import Session

VERSION = "0.2.1rc2"
FOLDER = f"{HOME}/.ageval-dsh"

#: The provider that we define in the harness's configuration, and the variable with its key.
PROVIDER = "ageval"
KEY_NAME = "AGEVAL_DSH_KEY"


class DshOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Options of ``dsh``.

    `version` is the exact version of ``deepseek-harness-sdk``. `permission` is the harness's own sandbox;
    by default the box is the only one. `provider` is its route when there is no ``base_url``. `api` is the
    form in which a model behind ``base_url`` is asked. `python` names the interpreter that it is installed
    with. `start_timeout_seconds` is for each step of the start.
    """

    version: Annotated[str, msgspec.Meta(pattern=r"^\d+\.\d+\.\d+([a-z]+\d+)?$")] = VERSION
    permission: Literal["read-only", "workspace-write", "danger-full-access"] = "danger-full-access"
    provider: str = "deepseek-official"
    api: Literal["openai-completions", "openai-responses", "anthropic-messages"] = "openai-completions"
    python: str | None = None
    start_timeout_seconds: Annotated[float, msgspec.Meta(gt=0)] = 180.0

    @property
    def packages(self) -> PyPackages:
        """What is installed for these options."""
        pins = {"deepseek-harness-sdk": self.version, "deepseek-harness-runtime-bin": self.version}
        return PyPackages("dsh", pins)


class DshExecutor(Executor):
    """The profile ``acp`` of the DeepSeek Harness, driven as ``acp`` drives its agents.

    A turn is one prompt of that protocol, with its usage (``not_reported``: the harness tells the size of
    the context only). Telemetry is turned off.
    """

    kind: ClassVar[str] = "dsh"
    requires_box: ClassVar[frozenset[str]] = frozenset({"attach_stdio", "exec", "upload"})
    supported_model_fields: ClassVar[frozenset[str]] = frozenset({"timeout", "watchdog"})
    requires_model: ClassVar[bool] = True
    default_api_key_name: ClassVar[str | None] = "DEEPSEEK_API_KEY"
    Options = DshOptions

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.options: DshOptions
        self._inner: AcpExecutor | None = None

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> str | None:
        """The protocol library and a Python that fits are here, for a box on this machine."""
        asked = msgspec.convert(dict(options), DshOptions)
        try:
            require_library()
            asyncio.run(find_installed(asked.packages, asked.python))
        except ExecutorError as error:
            extra = error.title == "acp_extra_missing"
            return f"{error.message}\n" + (
                "pip install 'pytest-ageval[acp]'" if extra else "install Python 3.11"
            )
        return None

    @classmethod
    async def prepare(cls, session: Session) -> None:
        """Install the harness, and refuse what the run would refuse."""
        executor = cls(session)
        require_library()
        executor._key()
        options = executor.options
        await ensure_packages(options.packages, executor._box(), python=options.python, may_install=True)
        raw = {"type": "agent_runtime", "entry": cls.kind, "packages": dict(options.packages.pins)}
        session.emit({"kind": "opaque", "raw": raw})

    async def open(self) -> None:
        """Write its configuration, start it, and open its session."""
        require_library()
        box, key = self._box(), self._key()
        runtime = await ensure_packages(
            self.options.packages, box, python=self.options.python, may_install=False
        )
        await self._configure(box)
        folder = box.visible_path(FOLDER)
        command = [runtime.python, f"{runtime.directory}/bin/dsh", "--profile", "acp"]
        env = {
            **runtime.env,
            "DSH_HOME": folder,
            "DSH_PERMISSION_MODE": self.options.permission,
            KEY_NAME if self.session.base_url is not None else "DEEPSEEK_API_KEY": key,
        }
        given = {
            "command": [*command, "--patch", f"{folder}/patch.yml"],
            "env": env,
            "start_timeout_seconds": self.options.start_timeout_seconds,
        }
        # The model is in the configuration: the protocol's own choice knows the vendor's only.
        spec = self.session.model
        model = ModelSpec(timeout=spec.timeout, watchdog=spec.watchdog)
        self._inner = AcpExecutor(replace(self.session, options=given, model=model))
        await self._inner.open()

    def _box(self) -> Box:
        if self.session.box is None:
            raise ExecutorError("dsh_box_missing", "the DeepSeek Harness runs in a box, and there is none")
        return self.session.box

    def _key(self) -> str:
        key = self.session.api_key
        if key is None and is_loopback(self.session.base_url):
            return DUMMY_KEY
        if key is None:
            name = self.session.api_key_name or self.default_api_key_name
            raise ExecutorError("dsh_credentials_missing", f"the variable {name} is not set")
        return key

    def patch(self) -> list[dict[str, Any]]:
        """What is laid over the harness's profile: its provider and model, and no telemetry."""
        name, model, url = self.options.provider, self.session.model.id, self.session.base_url
        rows: list[dict[str, Any]] = [{"id": "session-telemetry-otel", "disabled": True}]
        if url is not None:
            name = PROVIDER
            row = {"api": self.options.api, "baseURL": url, "apiKeyEnv": KEY_NAME, "models": [{"id": model}]}
            rows.append({"id": "llm-pi-ai", "config": {"providers": {PROVIDER: row}}})
        chosen = {"provider": name, "model": model}
        return [*rows, *({"id": part, "config": chosen} for part in ("agent-default-model", "acp"))]

    async def _configure(self, box: Box) -> None:
        with tempfile.TemporaryDirectory(prefix="ageval-dsh-") as folder:
            copy = Path(folder, "patch.yml")
            # JSON is YAML.
            await asyncio.to_thread(copy.write_text, json.dumps(self.patch()), "utf-8")
            await box.upload(copy, f"{FOLDER}/patch.yml")

    async def invoke(
        self,
        prompt: str,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
    ) -> AgentResult:
        """One prompt turn; see `AcpExecutor`."""
        if self._inner is None:
            return dead_result("the session is not open")
        result = await self._inner.invoke(prompt, tools=tools, messages=messages)
        return replace(result, model=result.model or self.session.model.id)

    async def cancel(self) -> None:
        """End the running turn."""
        if self._inner is not None:
            await self._inner.cancel()

    async def close(self) -> None:
        """End the harness and everything it started."""
        if self._inner is not None:
            await self._inner.close()
