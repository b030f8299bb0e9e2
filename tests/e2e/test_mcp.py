"""A study by the MCP SDK's client: over stdio until the server is killed, then over HTTP."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from support import agents

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


async def until_over(client: Client, sweep: str) -> dict[str, Any]:
    answer = await agents.ask(client, "wait", sweep=sweep, seconds=60)
    while answer["at_work"]:
        answer = await agents.ask(
            client, "wait", sweep=sweep, seconds=60, changed=answer["changed"]
        )
    return answer


async def begin(servers: Any) -> None:
    """Plan and launch the baseline; the server is killed while it runs."""
    client = Client(servers.stdio())
    stack = AsyncExitStack()
    with pytest.raises(BaseException):  # noqa: B017 - however the SDK says that it has gone
        async with stack:
            await stack.enter_async_context(client)
            planned = await agents.ask(client, "plan", grid="baseline.yaml")
            assert (planned["runs_to_start"], planned["budget_left"]) == (2, {"runs": 8})
            assert planned["estimate"]["tokens"] > 0
            started = await agents.ask(
                client, "launch", grid="baseline.yaml", why="what is to be beaten"
            )
            assert (started["launched"], started["budget_left"]) == (True, {"runs": 6})
            servers.kill()
            await asyncio.wait_for(agents.ask(client, "status", sweep="baseline"), 10)


async def go_on(url: str, grids: Path) -> None:
    """Continue with two clients of a new server over HTTP."""
    async with agents.connected(url) as client, agents.connected(url) as other:
        both = await asyncio.gather(until_over(client, "baseline"), until_over(other, "baseline"))
        # The sweep continued after the kill.
        assert [answer["states"] for answer in both] == [{"succeeded": 2}] * 2
        again = await agents.ask(client, "plan", grid="again.yaml")
        assert (again["runs_to_start"], len(again["reused"])) == (0, 2)
        higher = await agents.ask(client, "launch", grid="higher.yaml", why="a higher rate")
        assert higher["launched"]
        assert (await until_over(other, "higher"))["states"] == {"succeeded": 4}
        verdict = await agents.ask(client, "verdict", sweep="higher")
        assert ">higher: " in verdict["text"] and verdict["best"] == "lr=3e-2"
        cell = verdict["best"]
        # The report proposes the next grid, since the best rate is at the edge. With more seeds, it
        # exceeds the budget.
        (grids / "next.yaml").write_text(verdict["next_grid"])
        more = {"grid": "next.yaml", "overrides": ["seeds=4"]}
        refused = await other.call_tool("launch", more)
        beyond = "exceed what is left of the budget: runs 2"
        assert refused.is_error and beyond in refused.content[0].text  # type: ignore[union-attr]
        assert (await agents.ask(other, "launch", grid="next.yaml"))["runs_started"] == 2
        assert (await until_over(other, "higher"))["states"] == {"succeeded": 6}
        base = (await agents.ask(client, "runs", sweep="baseline"))["runs"][0]["cell"]
        claim = {"better": f"higher/{cell}", "worse": f"baseline/{base}"}
        answer = await agents.ask(other, "record_result", claim="higher is better", **claim)
        assert answer["better"]["n"] == answer["worse"]["n"] == 2 and answer["holds"] in (
            True,
            None,
        )
        noted = await agents.ask(
            client, "note", target="higher", text="seen by both", tag=["study"]
        )
        assert len(noted["notes"]) == 3 and noted["tags"] == ["study"]


def test_a_study_over_two_servers(tmp_path: Path, engine: lifecycle.EngineInfo) -> None:
    for name, rate in (("baseline", "1e-4"), ("again", "1e-4"), ("higher", "1e-3, 3e-2")):
        (tmp_path / f"{name}.yaml").write_text(GRID.format(rate=rate))
    servers = agents.Servers(tmp_path, engine, runs=8)
    asyncio.run(begin(servers))
    with agents.served(servers) as url:
        assert httpx2.post(url, json={}, timeout=120).status_code == 401
        asyncio.run(go_on(url, tmp_path))
