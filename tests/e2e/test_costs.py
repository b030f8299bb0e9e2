"""What runs use of a service is counted to the token. A budget stops a sweep that exceeds it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import shell as shells

from sweeper.engine import lifecycle

pytestmark = pytest.mark.e2e

Shell = Any

WHOLE = """
import os
import chz, tinker
from tinker import types

@chz.chz
class Config:
    log_path: str
    base_url: str | None = None
    model_name: str = "tiny/qwen3"
    seed: int = 0

def main(config: Config) -> None:
    service = tinker.ServiceClient(base_url=config.base_url, user_metadata={"mine": "kept"})
    client = service.create_lora_training_client(base_model=config.model_name, rank=4)
    tokens = list(range(20, 50))
    datum = types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)},
    )
    client.forward([datum], "cross_entropy").result()
    for _ in range(3):
        passed = client.forward_backward([datum, datum], "cross_entropy")
        client.optim_step(types.AdamParams(learning_rate=1e-3)).result()
        passed.result()
    saved = client.save_state("here").result().path
    again = service.create_training_client_from_state(saved)
    again.forward_backward(data=[datum], loss_fn="cross_entropy").result()
    sampler = client.save_weights_and_get_sampling_client()
    params = types.SamplingParams(max_tokens=9, temperature=1.0)
    for _ in range(2):  # the second time the prompt has been read before
        prompt = types.ModelInput.from_ints(tokens)
        sampler.sample(prompt=prompt, num_samples=3, sampling_params=params).result()
    sampler.compute_logprobs(types.ModelInput.from_ints(tokens)).result()
    base = service.create_sampling_client(base_model=config.model_name)
    base.sample(types.ModelInput.from_ints(tokens), 1, params).result()

if __name__ == "__main__":
    chz.nested_entrypoint(main)
"""


@pytest.fixture
def shell(tmp_path: Path, engine: lifecycle.EngineInfo) -> Shell:
    made = shells.Shell(tmp_path, "local")
    made.environment |= {
        "SWEEPER_HOME": engine.home,
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "SWEEPER_QUOTA": str(tmp_path / "quota"),
    }
    return made


def total(shell: Shell, sweep: str) -> dict[str, Any]:
    return json.loads(shell.run("costs", sweep, "--json"))["total"]


def test_the_meter_agrees_with_the_service(
    shell: Shell,
    engine: lifecycle.EngineInfo,
    metered: Callable[[lifecycle.EngineInfo], dict[str, Any]],
) -> None:
    (shell.folder / "whole.py").write_text(WHOLE)
    (shell.folder / "whole.yaml").write_text(
        "recipe: whole.py\nservice: local\nseeds: 2\nlaunch: {backend: local}\n"
    )
    shell.run("launch", "whole.yaml", "--wait")
    ours = [
        line
        for line in metered(engine)["sessions"]
        if (line["user_metadata"] or {}).get("sweeper_sweep") == "whole"
    ]
    assert {line["user_metadata"]["mine"] for line in ours} == {"kept"}
    runs = {run["id"] for run in json.loads(shell.run("ls", "whole", "--json"))["runs"]}
    assert {line["user_metadata"]["sweeper_run"] for line in ours} == runs
    # The service shows sweeper's names, and `show` lists the service's sessions.
    assert {line["display_name"] for line in ours} == {"whole/seed=0", "whole/seed=1"}
    for seed in (0, 1):
        attempt = json.loads(shell.run("show", f"whole/seed={seed}", "--json"))["attempts"][0]
        named = [line for line in ours if line["display_name"] == f"whole/seed={seed}"]
        assert sorted(attempt["sessions"]) == sorted(line["session_id"] for line in named)
    assert "sessions at the service" in shell.run("show", "whole/seed=0")
    expected = {key: sum(line[key] for line in ours) for key in ours[0] if key.endswith("tokens")}
    recorded = total(shell, "whole")
    assert recorded["counted"] == "meter" and recorded["unknown"] is None
    assert recorded["train"] == expected["trained_tokens"] == 2 * 7 * 29
    assert recorded["sample"] == expected["sampled_tokens"]
    assert recorded["cached"] == expected["cached_tokens"] > 0
    read = expected["forward_tokens"] + expected["prompt_tokens"]
    assert recorded["prefill"] + recorded["cached"] == read
    assert recorded["steps"] == sum(line["steps"] for line in ours) == 6
    assert "the counted and the billed tokens are equal" in shell.run("costs", "whole", "--billing")
    billed = json.loads(shell.run("costs", "whole", "--billing", "--by", "run", "--json"))
    assert len(billed["costs"]) == 2
    assert billed["total"]["billed"]["train"] == recorded["train"]
    output = shell.run("costs", "whole", "--billing", "--by", "day", code=2)
    assert "--billing needs --by run or --by cell" in output


BUDGET = """
name: {name}
recipe: sft
service: local
base: {{model_name: tiny/qwen3, max_steps: 12, eval_every: 6, save_every: 3}}
grid: {{learning_rate: [1e-3, 3e-3]}}
seeds: 2
metric: {{name: test/nll, goal: minimize}}
launch: {{backend: local, max_parallel: 2}}
"""


def test_a_budget_stops_a_sweep_and_a_larger_one_continues_it(shell: Shell) -> None:
    def values(sweep: str) -> dict[str, float]:
        listed = json.loads(shell.run("ls", sweep, "--json"))["runs"]
        return {run["name"]: run["value"] for run in listed}

    for name in ("free", "capped"):
        (shell.folder / f"{name}.yaml").write_text(BUDGET.format(name=name))
    reckoned = json.loads(shell.run("plan", "free.yaml", "--json"))["estimate"]
    shell.run("launch", "free.yaml", "--wait")
    needed = total(shell, "free")
    tokens = sum(needed[kind] for kind in ("prefill", "cached", "sample", "train"))
    assert reckoned["by_recipe"] == 4 and reckoned["tokens"] == pytest.approx(tokens, rel=0.05)
    half = f"tokens={tokens // 2}"
    output = shell.run("launch", "capped.yaml", "--budget", half, "--wait", code=4)
    assert "the budget is spent (" in output and f"of {tokens // 2:,} tokens" in output
    stopped = json.loads(shell.run("status", "capped", "--json", code=4))
    assert "the budget is spent" in stopped["held"]
    assert not {"running", "failed"} & {run["state"] for run in stopped["runs"]}
    used = total(shell, "capped")
    assert used["steps"] < needed["steps"]
    # A relaunch with the same budget starts nothing.
    shell.run("launch", "capped.yaml", "--budget", half, "--wait", code=4)
    assert total(shell, "capped") == used
    shell.run("launch", "capped.yaml", "--budget", "tokens=1e9", "--wait")
    assert values("capped") == values("free")


COMMAND = """
import json, os, sys, time
path, steps, fail = sys.argv[1], int(sys.argv[2]), sys.argv[3]
done = 0
if os.path.exists(path + "/metrics.jsonl"):
    done = sum(1 for _ in open(path + "/metrics.jsonl"))
with open(path + "/metrics.jsonl", "a") as file:
    for step in range(done, steps):
        print(json.dumps({"step": step, "num_tokens": 1000, "loss": 1.0}), file=file, flush=True)
        time.sleep(0.05)
        if fail == "yes" and step == 3:
            sys.exit("failed once")
"""
COMMANDS = """
name: {name}
command: [python3, command.py, "{{log_path}}", "{{steps}}", "{{fail}}"]
base: {{steps: 12, fail: "no"}}
grid: {{lr: [1, 2, 3, 4]}}
metric: {{name: loss, goal: minimize}}
launch: {{backend: local, max_parallel: 1}}
"""


def test_a_budget_stops_commands_by_what_they_record(shell: Shell) -> None:
    """The tokens in their metrics files count, as in `sweeper costs`."""
    (shell.folder / "command.py").write_text(COMMAND)
    (shell.folder / "cmd.yaml").write_text(COMMANDS.format(name="cmd"))
    output = shell.run("plan", "cmd.yaml", "--budget", "tokens=15000")
    assert (
        "the budget limits tokens, but a command's tokens are counted from its metrics file"
        in output
    )
    output = shell.run("launch", "cmd.yaml", "--budget", "tokens=15000", "--wait", code=4)
    assert "the budget is spent (" in output and "of 15,000 tokens" in output
    recorded = total(shell, "cmd")
    assert recorded["counted"] == "metrics"
    assert 15000 <= recorded["train"] < 30000
    runs = json.loads(shell.run("ls", "cmd", "--json"))["runs"]
    assert sum(run["state"] == "succeeded" for run in runs) < 3
    output = shell.run("launch", "cmd.yaml", "--budget", "usd=5", "--wait", code=4)
    assert "no price is known for unknown" in output
    shell.run("launch", "cmd.yaml", "--budget", "tokens=1e6", "--wait")
    assert total(shell, "cmd")["train"] >= 48000


def test_the_budget_of_an_account_stops_commands_too(shell: Shell) -> None:
    config = shell.folder / "config" / "sweeper" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("[budget]\ntokens = 15000\n")
    (shell.folder / "command.py").write_text(COMMAND)
    (shell.folder / "acc.yaml").write_text(COMMANDS.format(name="acc") + "service: local\n")
    output = shell.run("launch", "acc.yaml", "--wait", code=4)
    assert "the budget limits tokens, but a command's tokens are counted from" in output
    assert "the budget of your account is spent (" in output and "of 15,000 tokens" in output


def test_checkpoints_are_listed_expire_and_are_deleted_but_for_what_is_needed(shell: Shell) -> None:
    grid = BUDGET.format(name="saving").replace("save_every: 3", "save_every: 2")
    (shell.folder / "saving.yaml").write_text(grid)
    small = ("learning_rate=1e-3", "test_size=4", "--wait")
    shell.run("launch", "saving.yaml", "max_steps=6", *small)

    def listed(*more: str) -> list[dict[str, Any]]:
        return json.loads(shell.run("checkpoints", "saving", "--json", *more))["checkpoints"]

    before = listed()
    assert {entry["run"] for entry in before} == {"saving/seed=0", "saving/seed=1"}
    assert all(entry["size"] > 0 and entry["spared"] is None for entry in before)
    assert f"{len(before)} checkpoints, " in shell.run("checkpoints", "saving")
    weights = next(entry["path"] for entry in before if "/weights/" in entry["path"])
    (shell.folder / "next.yaml").write_text(
        BUDGET.format(name="next").replace(
            "save_every: 3", f"save_every: 0, load_checkpoint_path: '{weights}'"
        )
    )
    shell.run("launch", "next.yaml", "max_steps=2", *small)
    spared = {entry["path"]: entry["spared"] for entry in listed("--keep", "final")}
    assert spared[weights] == "another run starts from it"
    finals = {path for path, why in spared.items() if why == "best or final of its run"}
    assert len(finals) >= 2
    shell.run("checkpoints", "saving", "--ttl", "2h", "--keep", "final", "--yes")
    then = {entry["path"]: entry["expires"] for entry in before}
    remaining = finals | {weights}
    assert {
        entry["path"] for entry in listed() if entry["expires"] == then[entry["path"]]
    } == remaining
    refused = shell.run("checkpoints", "saving", "--delete", "--keep", "final", code=2)
    assert "Confirm with --yes" in refused
    assert len(listed()) == len(before)
    output = shell.run("checkpoints", "saving", "--delete", "--keep", "final", "--yes")
    assert f"{len(before) - len(remaining)} checkpoints deleted" in output
    assert {entry["path"] for entry in listed()} == remaining
    for mistake, message in (
        (("--keep", "worst", "--delete"), "'worst' is not best or final"),
        (("--ttl", "soon"), "write a duration from 1h to 3650d, or never"),
        (("--ttl", "2h", "--delete"), "use either --delete or --ttl"),
    ):
        assert message in shell.run("checkpoints", "saving", *mistake, code=2)
