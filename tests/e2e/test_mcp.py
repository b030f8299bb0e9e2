"""A study on the engine, driven by the MCP SDK's own client: over stdio until that server is
killed, then over HTTP beside another client."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from sweeper.engine import lifecycle

pytestmark = pytest.mark.e2e

GRID = """\
recipe: sft
service: local
base: {{model_name: tiny/qwen3, task: sorting, max_steps: 2, eval_every: 2}}
grid: {{learning_rate: [{rate}]}}
seeds: 2
metric: {{name: test/nll, goal: minimize}}
launch: {{backend: local, max_parallel: 2}}
"""
TOKEN = "a-token-for-the-tests-of-http"


class Servers:
    """Servers of agents over one root."""

    def __init__(self, folder: Path, engine: lifecycle.EngineInfo) -> None:
        self.folder = folder
        self.environment = {**os.environ, "SWEEPER_HOME": engine.home, "SWEEPER_MCP_TOKEN": TOKEN}
        more = ("--root", str(folder / "root"), "--grids", str(folder), "--budget", "runs=4")
        self.command = [sys.executable, "-P", "-m", "sweeper", "mcp", *more]

    def stdio(self) -> StdioServerParameters:
        note = f'echo $$ > {self.folder}/pid; exec "$@"'
        words = ["-c", note, "sh", *self.command]
        return StdioServerParameters(command="sh", args=words, env=self.environment)

    def http(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*self.command, "--http", "0"],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )


async def ask(client: Client, tool: str, **given: Any) -> dict[str, Any]:
    found = await client.call_tool(tool, given)
    assert not found.is_error, found.content
    assert found.structured_content is not None
    return found.structured_content


async def until_over(client: Client, sweep: str) -> dict[str, Any]:
    found = await ask(client, "wait", sweep=sweep, seconds=60)
    while found["at_work"]:
        found = await ask(client, "wait", sweep=sweep, seconds=60, changed=found["changed"])
    return found


async def begin(servers: Servers) -> None:
    """The baseline is planned and launched, and the server killed while it runs."""
    client = Client(servers.stdio())
    stack = AsyncExitStack()
    with pytest.raises(BaseException):  # noqa: B017 - however the SDK says that it has gone
        async with stack:
            await stack.enter_async_context(client)
            planned = await ask(client, "plan", grid="baseline.yaml")
            assert (planned["runs_to_start"], planned["budget_left"]) == (2, {"runs": 4})
            started = await ask(client, "launch", grid="baseline.yaml", why="what is to be beaten")
            assert (started["launched"], started["budget_left"]) == (True, {"runs": 2})
            os.kill(int((servers.folder / "pid").read_text()), signal.SIGKILL)
            await asyncio.wait_for(ask(client, "status", sweep="baseline"), 10)


async def go_on(url: str) -> None:
    """Two clients of one server over HTTP, which has seen nothing of it before."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with AsyncExitStack() as stack:
        clients: list[Client] = []
        for _ in range(2):
            http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=90))
            transport = streamable_http_client(url, http_client=http)
            clients.append(await stack.enter_async_context(Client(transport)))
        one, other = clients
        both = await asyncio.gather(until_over(one, "baseline"), until_over(other, "baseline"))
        assert [found["states"] for found in both] == [{"succeeded": 2}] * 2  # the sweep went on
        again = await ask(one, "plan", grid="again.yaml")
        assert (again["runs_to_start"], len(again["reused"])) == (0, 2)
        assert (await ask(one, "launch", grid="higher.yaml", why="a higher rate"))["launched"]
        refused = await other.call_tool("launch", {"grid": "more.yaml"})
        assert refused.is_error and "more than is left: runs 0" in refused.content[0].text  # type: ignore[union-attr]
        assert (await until_over(other, "higher"))["states"] == {"succeeded": 2}
        verdict = await ask(one, "verdict", sweep="higher")
        assert verdict["text"].startswith("higher: ")
        runs = await ask(one, "runs", sweep="higher")
        cell = runs["runs"][0]["cell"]
        base = (await ask(one, "runs", sweep="baseline"))["runs"][0]["cell"]
        claim = {"better": f"higher/{cell}", "worse": f"baseline/{base}"}
        found = await ask(other, "record_result", claim="higher is better", **claim)
        assert found["better"]["n"] == found["worse"]["n"] == 2 and found["holds"] in (True, None)
        noted = await ask(one, "note", target="higher", text="seen by both", tag=["study"])
        assert len(noted["notes"]) == 3 and noted["tags"] == ["study"]


def test_a_study_over_two_servers(tmp_path: Path, engine: lifecycle.EngineInfo) -> None:
    for name, rate in (("baseline", "1e-4"), ("again", "1e-4"), ("higher", "3e-2"), ("more", 1)):
        (tmp_path / f"{name}.yaml").write_text(GRID.format(rate=rate))
    servers = Servers(tmp_path, engine)
    asyncio.run(begin(servers))
    with servers.http() as server:
        try:
            assert server.stderr is not None
            url = server.stderr.readline().split()[1].rstrip(";")
            assert httpx2.post(url, json={}).status_code == 401
            asyncio.run(go_on(url))
        finally:
            server.terminate()
