"""The client side of one ACP connection: requests to the agent, and answers to the agent's requests.

The protocol library (PyPI ``agent-client-protocol``) gives the JSON-RPC connection and the schema of
what we send. What agents send is read as plain objects: its models refuse unknown stop reasons,
option kinds and update kinds, and those must be kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ageval_executors.acp import files
from ageval_executors.acp.outcome import RpcFailure
from ageval_executors.acp.permissions import CANCELLED, Decision, decide, pick, usable_options
from pytest_ageval.errors import ExecutorError

if TYPE_CHECKING:
    from acp.connection import Connection
    from pydantic import BaseModel

    from ageval_executors.acp.wire import Wire
    from pytest_ageval.executor import PermissionPolicy, Session

log = logging.getLogger("pytest_ageval.acp")

OnPermission = Callable[[Mapping[str, Any], Decision, str], None]


class RpcError(Exception):
    """The agent answered a request with an error."""

    def __init__(self, failure: RpcFailure) -> None:
        self.failure = failure
        super().__init__(f"{failure.code}: {failure.text}")


def require_library() -> None:
    """Raises `ExecutorError` ``acp_extra_missing`` if the protocol library is not installed."""
    try:
        import acp.connection  # noqa: F401
    except ImportError as error:
        raise ExecutorError(
            "acp_extra_missing",
            f"agents over ACP need the package agent-client-protocol ({error}); "
            "install it with: pip install 'pytest-ageval[acp]'",
        ) from error


class Peer:
    """One connection to one agent. Made by `Peer.connect`."""

    def __init__(
        self, wire: Wire, session: Session, policy: PermissionPolicy, on_permission: OnPermission
    ) -> None:
        self.wire = wire
        self.requests: dict[str, int] = {}
        #: The MCP servers of the session, as the protocol has them.
        self.servers: list[Any] = []
        self._session = session
        self._policy = policy
        self._on_permission = on_permission
        self._cancel = asyncio.Event()
        self._connection: Connection = _connect(self._handle, wire)

    async def close(self) -> None:
        """End the connection and the agent."""
        self._cancel.set()
        await self._connection.close()

    # -- requests to the agent ---------------------------------------------------------------------

    async def call(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and wait for its result; anything but an object counts as an empty one.

        Raises `RpcError`, or ConnectionError when the wire has ended (then ask `Wire.ending`).
        """
        from acp.exceptions import RequestError

        try:
            found = await self._connection.send_request(method, dict(params))
        except RequestError as error:
            raise RpcError(RpcFailure(error.code, str(error), error.data)) from error
        return found if isinstance(found, dict) else {}

    async def initialize(self) -> dict[str, Any]:
        """The handshake. No file system and no terminal is offered: the agent has its own in the box."""
        from acp import PROTOCOL_VERSION, schema

        from pytest_ageval._version import __version__

        request = schema.InitializeRequest(
            protocol_version=PROTOCOL_VERSION,
            client_capabilities=schema.ClientCapabilities(),
            client_info=schema.Implementation(
                name="pytest-ageval", title="pytest-ageval", version=__version__
            ),
        )
        result = await self.call("initialize", _dump(request))
        self.wire.ready = True
        return result

    async def new_session(self, cwd: str) -> dict[str, Any]:
        """``session/new``."""
        from acp import schema

        request = schema.NewSessionRequest(cwd=cwd, mcp_servers=self.servers)
        return await self.call("session/new", _dump(request))

    async def load_session(self, cwd: str, session_id: str) -> dict[str, Any]:
        """``session/load``."""
        from acp import schema

        request = schema.LoadSessionRequest(cwd=cwd, mcp_servers=self.servers, session_id=session_id)
        return await self.call("session/load", _dump(request))

    async def resume_session(self, cwd: str, session_id: str) -> dict[str, Any]:
        """``session/resume``: as `load_session`, and the agent replays nothing."""
        params = {"cwd": cwd, "mcpServers": self.servers, "sessionId": session_id}
        return await self.call("session/resume", params)

    async def prompt(self, session_id: str, text: str) -> dict[str, Any]:
        """``session/prompt``: the whole turn."""
        from acp import schema

        block = schema.TextContentBlock(type="text", text=text.encode("utf-8", "replace").decode())
        request = schema.PromptRequest(session_id=session_id, prompt=[block])
        return await self.call("session/prompt", _dump(request))

    async def set_option(self, session_id: str, option: str, value: str) -> dict[str, Any]:
        """``session/set_config_option``."""
        return await self.call(
            "session/set_config_option",
            {"sessionId": session_id, "configId": option, "value": value},
        )

    async def set_mode(self, session_id: str, mode: str) -> dict[str, Any]:
        """``session/set_mode``."""
        return await self.call("session/set_mode", {"sessionId": session_id, "modeId": mode})

    async def cancel(self, session_id: str, timeout: float) -> None:
        """Answer open permission requests with ``cancelled``, then send ``session/cancel``.

        In this order: at least one agent does not end its turn while a request of it is open.
        """
        self._cancel.set()
        await self.wire.answers_sent(timeout / 2)
        notification = self._connection.send_notification("session/cancel", {"sessionId": session_id})
        await asyncio.wait_for(notification, timeout / 2)

    def begin_turn(self) -> None:
        """Permission requests are answered by the policy again."""
        self._cancel.clear()

    # -- requests of the agent ---------------------------------------------------------------------

    async def _handle(self, method: str, params: Any, is_notification: bool) -> Any:
        """Every request gets an answer: an agent that waits for one would hang the turn."""
        from acp.exceptions import RequestError

        self.requests[method[:80]] = self.requests.get(method[:80], 0) + 1
        found = params if isinstance(params, dict) else {}
        if method == "session/request_permission":
            return await self._permission(found)
        if method in ("fs/read_text_file", "fs/write_text_file"):
            return await self._file(method, found)
        log.info("the agent asked for %s, which no client capability offers", method[:80])
        raise RequestError.method_not_found(method)

    async def _permission(self, params: dict[str, Any]) -> dict[str, Any]:
        options = usable_options(params)
        if self._cancel.is_set():
            decision = CANCELLED
        elif self._policy == "ask":
            decision = await self._ask(params, options)
        else:
            decision = decide(self._policy, options)
        self._on_permission(params, decision, self._policy)
        return {"outcome": decision.outcome}

    async def _ask(self, params: dict[str, Any], options: list[dict[str, Any]]) -> Decision:
        question = asyncio.ensure_future(self._session.ask(params))
        cancelled = asyncio.ensure_future(self._cancel.wait())
        try:
            await asyncio.wait({question, cancelled}, return_when=asyncio.FIRST_COMPLETED)
            if not question.done():
                return CANCELLED
            return pick(question.result(), options)
        except Exception as error:
            # The agent must get an answer; what went wrong in the hook is told in the event.
            log.exception("the permission hook failed")
            return Decision(note=f"the hook failed: {type(error).__name__}: {error}")
        finally:
            question.cancel()
            cancelled.cancel()

    async def _file(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        from acp.exceptions import RequestError

        box = self._session.box
        if box is None:
            raise RequestError.method_not_found(method)
        act = files.read_text_file if method == "fs/read_text_file" else files.write_text_file
        try:
            return await act(box, params)
        except files.FileRequestError as error:
            if error.missing:
                raise RequestError.resource_not_found(str(params.get("path"))) from error
            raise RequestError.invalid_params({"details": str(error)}) from error


def _connect(handler: Callable[[str, Any, bool], Any], wire: Wire) -> Connection:
    from acp.connection import Connection

    return Connection(handler, wire)


def _dump(model: BaseModel) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)
