"""MCP servers for agents, and their clients from the MCP SDK."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from sweeper.engine import lifecycle

TOKEN = "a-token-for-the-tests-of-http"


class Servers:
    """Servers for agents over one root."""

    def __init__(self, folder: Path, engine: lifecycle.EngineInfo, runs: int = 4) -> None:
        self.folder = folder
        self.environment = {**os.environ, "SWEEPER_HOME": engine.home, "SWEEPER_MCP_TOKEN": TOKEN}
        more = ("--root", str(folder / "root"), "--grids", str(folder), "--budget", f"runs={runs}")
        self.command = [sys.executable, "-P", "-m", "sweeper", "agent", "mcp", *more]

    def stdio(self) -> StdioServerParameters:
        note = f'echo $$ > {self.folder}/pid; exec "$@"'
        words = ["-c", note, "sh", *self.command]
        return StdioServerParameters(command="sh", args=words, env=self.environment)

    def kill(self) -> None:
        """Kill the server over stdio."""
        os.kill(int((self.folder / "pid").read_text()), signal.SIGKILL)

    def http(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*self.command, "--http", "0"],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )


async def ask(client: Client, tool: str, **given: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, given)
    assert not result.is_error, result.content
    assert result.structured_content is not None
    return result.structured_content


@contextmanager
def served(servers: Servers) -> Iterator[str]:
    """Start a server over HTTP; yields its address."""
    with servers.http() as server:
        try:
            assert server.stderr is not None
            words = server.stderr.readline().split()
            yield next(word for word in words if word.startswith("http://")).rstrip(";")
        finally:
            server.terminate()


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Client]:
    """Connect a client to a server over HTTP."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=180) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        yield client
