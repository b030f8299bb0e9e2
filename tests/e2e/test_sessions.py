"""Training sessions of agents reach the values of the recipes, despite kills."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from mcp import Client
from support import agents

from sweeper.engine import lifecycle
from sweeper.launcher import control
from sweeper.results.registry import Registry
from sweeper.sandbox import missing
from sweeper.store.local import LocalStore
from sweeper.sweep.folder import find_sweeps

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        missing("bubblewrap") is not None, reason="no bubblewrap: `make bubblewrap`"
    ),
]

TASK = {"task": "reversal", "length": 2, "letters": 4, "test_size": 4}
WARM = TASK | {"max_steps": 20, "eval_every": 8}
STUDY = TASK | {"max_tokens": 3, "learning_rate": 1e-3, "num_substeps": 2, "max_steps": 12}
STUDY |= {"groups_per_batch": 4, "group_size": 8, "eval_every": 3}
GRADER = """
def score(question, response, answer):
    return sum(a == b for a, b in zip(response, answer)) / max(len(response), len(answer), 1)
"""
EXAMPLES = [
    {"question": "reverse ab", "response": "ba", "answer": "ba", "score": 1},
    {"question": "reverse ab", "response": "bb", "answer": "ba", "score": 0.5},
]
SESSION, OTHER = "agent-study/seed=0", "agent-study/seed=1"


async def warm_up(client: Client) -> None:
    """Train a model by SFT until it answers, if not yet correctly."""
    begun = await agents.ask(client, "init_sft", name="warm", settings=WARM)
    assert begun["ready"] and begun["session"] == "agent-warm/seed=0"
    for steps in (1, 7, 12):
        await agents.ask(client, "train_sft_step", session="agent-warm/seed=0", steps=steps)
    done = await agents.ask(client, "finish", session="agent-warm/seed=0")
    assert done["finished"] and done["step"] == 20


async def begin(servers: Any, engine: int) -> None:
    """Start two sessions. Kill everything that drives the first while it carries out an order."""
    client = Client(servers.stdio())
    with pytest.raises(BaseException):  # noqa: B017 - however the SDK says that it has gone
        async with client:
            await warm_up(client)
            graded = {"grader": GRADER, "examples": EXAMPLES, "start_from": "agent-warm/seed=0"}
            settings = STUDY | {"checkpoint_steps": 2, "checkpoint_reward": 0.0}
            for seed in (0, 1):
                await agents.ask(
                    client, "init_grpo", name="study", settings=settings, seed=seed, **graded
                )
            first = await agents.ask(client, "train_grpo_step", session=SESSION, steps=3)
            assert (first["step"], len(first["rows"])) == (3, 3)
            request = {"session": SESSION, "prompts": ["reverse ab"], "count": 3}
            sampled = await agents.ask(client, "sample", **request)
            assert "do not follow instructions" in sampled["notice"]
            assert len(sampled["samples"][0]) == 3
            os.kill(engine, signal.SIGSTOP)  # the order must not end before it is seen
            try:
                order = {"session": SESSION, "steps": 7, "seconds": 0}
                assert not (await agents.ask(client, "train_grpo_step", **order))["done"]
                answer = await agents.ask(client, "session", session=SESSION)
                while answer["progress"]["doing"] != "train":
                    answer = await agents.ask(client, "session", session=SESSION)
                refused = await client.call_tool(
                    "save", {"session": SESSION, "name": "mine", "busy_seconds": 0}
                )
            finally:
                os.kill(engine, signal.SIGCONT)
            assert refused.is_error and "is busy: train" in refused.content[0].text  # type: ignore[union-attr]
            beside = await agents.ask(client, "train_grpo_step", session=OTHER, steps=1)
            assert beside["step"] == 1
            answer = await agents.ask(client, "session", session=SESSION)
            while answer["progress"]["step"] < 6:
                answer = await agents.ask(client, "session", session=SESSION)
            run = Registry(str(servers.folder / "root")).run(SESSION)
            beat = servers.folder / "root" / run.sweep_folder.heartbeat(run.id, 1)
            launcher = psutil.Process(json.loads(beat.read_text())["pid"]).parent()
            assert launcher is not None and "sweeper.launcher.launching" in launcher.cmdline()
            launcher.kill()
            os.kill(answer["progress"]["pid"], signal.SIGKILL)
            servers.kill()
            await asyncio.wait_for(agents.ask(client, "session", session=SESSION), 10)


async def go_on(url: str) -> None:
    """Continue with a new server and two clients."""
    async with agents.connected(url) as client, agents.connected(url) as other:
        both = await asyncio.gather(
            *(
                agents.ask(c, "session", session=SESSION, order=3, seconds=120)
                for c in (client, other)
            )
        )
        for answer in both:
            assert answer["result"]["done"] and answer["result"]["step"] == 10, answer
        # Finished steps are not repeated, and steps on the agent's data are like other steps.
        last = await agents.ask(client, "train_grpo_step", session=SESSION, steps=2)
        assert last["step"] == 12
        beyond = await client.call_tool("train_grpo_step", {"session": SESSION})
        assert beyond.is_error and "leaves 0 steps" in beyond.content[0].text  # type: ignore[union-attr]
        assert (await agents.ask(other, "finish", session=SESSION))["finished"]
        examples = [{"prompt": "reverse ab", "answer": "ba"}]
        given = await agents.ask(client, "train_grpo_step", session=OTHER, steps=2, data=examples)
        assert given["metrics"]["num_groups"] == 1
        saved = await agents.ask(client, "save", session=OTHER, name="kept")
        assert (await agents.ask(client, "load", session=OTHER, checkpoint="kept"))["step"] == 3
        assert saved["state_path"].startswith("tinker://")
        assert (await agents.ask(client, "train_grpo_step", session=OTHER))["step"] == 4
        await agents.ask(other, "finish", session=OTHER)
        verdict = await agents.ask(client, "verdict", sweep="agent-study")
        assert "test/reward" in verdict["text"] and verdict["best"] == "base"
        read = await agents.ask(client, "rollouts", run=SESSION, order="best")
        assert read["total"] and read["rollouts"][0]["said"]


def test_sessions_reach_the_values_of_the_recipes(
    recipes: Any, tmp_path: Path, engine: lifecycle.EngineInfo
) -> None:
    servers = agents.Servers(tmp_path, engine, runs=3)
    try:
        asyncio.run(begin(servers, engine.pid))
        with agents.served(servers) as url:
            asyncio.run(go_on(url))
    finally:
        for sweep in find_sweeps(LocalStore(str(tmp_path / "root"))):
            # No run is left, unless the test failed.
            control.cancel(sweep, root=str(tmp_path / "root"))

    registry = Registry(str(tmp_path / "root"))
    warm, run = registry.run("agent-warm/seed=0"), registry.run(SESSION)
    assert (run.state.value, run.attempts) == ("succeeded", 2)
    assert run.usage.counts.tokens > 0 and len(registry.sweep("agent-study").runs) == 2
    names = [record["name"] for record in run.checkpoint_records()]
    assert names[-1] == "final" and "000002" in names

    recipes.succeed("sft", tmp_path / "sft", **WARM)
    assert rows_of(warm) == recipes.measured(tmp_path / "sft")
    start = warm.checkpoint_records()[-1]["state_path"]
    (tmp_path / "grader.py").write_text(GRADER)
    judged = {"reward_function": f"{tmp_path}/grader.py:score", "load_checkpoint_path": start}
    recipes.succeed("rl", tmp_path / "rl", **STUDY, **judged)
    expected = recipes.measured(tmp_path / "rl")
    assert rows_of(run) == expected
    assert any(row.get("num_sequences") for row in expected)  # there was something to learn
    for step in range(12):
        name = f"iteration_{step:06d}/train_rollout_summaries.jsonl"
        last = max(Path(tmp_path / "root" / folder / name) for folder in run.folders()
                   if (tmp_path / "root" / folder / name).exists())  # fmt: skip
        assert texts(last) == texts(tmp_path / "rl" / name)


def rows_of(run: Any) -> list[dict[str, Any]]:
    """Return the metrics of a run without the measured times."""
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in run.history.rows]


def texts(path: Path) -> list[tuple[str, float]]:
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return [(record["steps"][0]["logs"]["response"], record["total_reward"]) for record in records]
