"""A well-behaved agent on the protocol's Python SDK: writes the prompt to a file, and says so."""

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import acp
from acp import schema


class FileAgent(acp.Agent):
    def __init__(self) -> None:
        self.client: acp.Client
        self.folders: dict[str, str] = {}

    def on_connect(self, conn: acp.Client) -> None:
        self.client = conn

    async def initialize(self, protocol_version: int, **kwargs: Any) -> acp.InitializeResponse:
        return acp.InitializeResponse(
            protocol_version=protocol_version,
            agent_info=schema.Implementation(name="file-agent", version="1.0"),
        )

    async def new_session(self, cwd: str, **kwargs: Any) -> acp.NewSessionResponse:
        session = uuid4().hex
        self.folders[session] = cwd
        return acp.NewSessionResponse(session_id=session)

    async def prompt(self, session_id: str, prompt: list[Any], **kwargs: Any) -> acp.PromptResponse:
        text = prompt[0].text
        call = acp.start_tool_call("call-1", "Write answer.txt", kind="edit", status="in_progress")
        await self.client.session_update(session_id=session_id, update=call)
        Path(self.folders[session_id], "answer.txt").write_text(text)  # noqa: ASYNC240 - small
        done = acp.update_tool_call("call-1", status="completed")
        await self.client.session_update(session_id=session_id, update=done)
        chunk = acp.update_agent_message_text(f"wrote {len(text)} characters")
        await self.client.session_update(session_id=session_id, update=chunk)
        usage = schema.Usage(input_tokens=10, output_tokens=5, total_tokens=15)
        return acp.PromptResponse(stop_reason="end_turn", usage=usage)


asyncio.run(acp.run_agent(FileAgent()))
