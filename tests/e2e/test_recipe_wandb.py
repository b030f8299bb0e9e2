"""What W&B gets from a recipe, read by W&B's own program. W&B cannot harm a recipe."""

import json
import signal
import socket
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.e2e

OFFLINE = {"WANDB_MODE": "offline"}
SETTINGS = {
    "sft": {"max_steps": 6, "test_size": 4, "batch_size": 4, "eval_every": 2},
    "rl": {"max_steps": 3, "test_size": 4, "groups_per_batch": 4, "group_size": 4},
}


def history(records):
    """Return metrics by step, without the names that W&B adds."""
    items = [record["history"]["item"] for record in records if record["type"] == "history"]
    return {
        item["_step"]: {k: v for k, v in item.items() if not k.startswith("_")} for item in items
    }


def run_settings(records):
    """Return W&B's record of the run."""
    [run] = [record["run"] for record in records if record["type"] == "run"]
    return run


def exit_code(records):
    [end] = [record["exit"] for record in records if record["type"] == "exit"]
    return end.get("exit_code", 0)


def lines(recipes, log_path):
    rows = recipes.read(log_path / "metrics.jsonl")
    return {line.pop("step"): line for line in rows}


def offline_runs(log_path):
    return sorted((log_path / "wandb").glob("offline-run-*"))


@pytest.mark.parametrize("recipe", ["sft", "rl"])
def test_it_gets_what_metrics_jsonl_gets(recipes, tmp_path, recipe, wandb_records):
    log_path = tmp_path / "run"
    settings = SETTINGS[recipe] | {"wandb_project": "demo", "wandb_name": "first"}
    variables = {"WANDB_RUN_GROUP": "sweep", "WANDB_TAGS": "a,b", "WANDB_NAME": "not this"}
    done = recipes.run(recipe, log_path, env=OFFLINE | variables, **settings)
    assert done.returncode == 0, done.stderr
    [folder] = offline_runs(log_path)
    records = wandb_records(folder)
    run = run_settings(records)
    assert (run["project"], run["display_name"]) == ("demo", "first")
    assert (run["run_group"], run["tags"]) == ("sweep", ["a", "b"])
    config = json.loads((log_path / "config.json").read_text())
    assert {k: v for k, v in run["config"]["update"].items() if k != "_wandb"} == config
    assert history(records) == lines(recipes, log_path)
    assert exit_code(records) == 0
    assert not [path for path in log_path.rglob("*") if path.is_symlink() and path.is_dir()]
    assert not Path("wandb").exists()


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_resumed_run_continues_there(recipes, tmp_path, signum, code, wandb_records):
    settings = SETTINGS["sft"] | {"max_steps": 30, "save_every": 4, "wandb_project": "demo"}
    stopped = recipes.stopped_after("sft", tmp_path, 9, signum, env=OFFLINE, **settings)
    assert stopped[0] == code
    checkpoint = recipes.read(tmp_path / "checkpoints.jsonl")[-1]
    time.sleep(1.1)  # W&B names its directories by the second
    assert recipes.run("sft", tmp_path, env=OFFLINE, **settings).returncode == 0

    first, second = (wandb_records(folder) for folder in offline_runs(tmp_path))
    assert run_settings(second)["run_id"] == checkpoint["wandb_run_id"]
    final = recipes.read(tmp_path / "checkpoints.jsonl")[-1]
    assert final["wandb_run_id"] == checkpoint["wandb_run_id"]
    assert set(history(second)) == set(range(checkpoint["batch"], 31))
    whole = lines(recipes, tmp_path)
    assert history(second).items() <= whole.items()
    if signum == signal.SIGTERM:  # after SIGKILL, W&B has lost what it had not written
        assert run_settings(first)["run_id"] == checkpoint["wandb_run_id"]
        assert exit_code(first) == code
        assert set(history(first)) == set(range(checkpoint["batch"]))
        assert history(first) | history(second) == whole


def test_a_run_that_begins_again_is_another_one(recipes, tmp_path, wandb_records):
    settings = SETTINGS["sft"] | {"wandb_project": "demo"}
    for name in ("a", "b"):
        assert recipes.run("sft", tmp_path / name, env=OFFLINE, **settings).returncode == 0
    ids = [
        run_settings(wandb_records(offline_runs(tmp_path / name)[0]))["run_id"]
        for name in ("a", "b")
    ]
    assert ids[0] != ids[1]


def test_variables_are_enough_and_come_before_what_was_recorded(recipes, tmp_path, wandb_records):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    env = OFFLINE | {"WANDB_PROJECT": "p", "WANDB_DIR": str(elsewhere)}
    env |= {"WANDB_RUN_ID": "chosen", "WANDB_NAME": "named", "WANDB_RESUME": "never"}
    log_path = tmp_path / "run"
    assert recipes.run("sft", log_path, env=env, **SETTINGS["sft"]).returncode == 0
    [folder] = offline_runs(elsewhere)
    run = run_settings(wandb_records(folder))
    assert (run["project"], run["run_id"], run["display_name"]) == ("p", "chosen", "named")
    assert not (log_path / "wandb").exists()
    assert recipes.read(log_path / "checkpoints.jsonl")[-1]["wandb_run_id"] == "chosen"


def test_without_a_project_it_is_left_alone(recipes, tmp_path):
    recipes.succeed("sft", tmp_path, env=OFFLINE, **SETTINGS["sft"])
    assert not (tmp_path / "wandb").exists()
    assert "wandb_run_id" not in recipes.read(tmp_path / "checkpoints.jsonl")[-1]


@pytest.mark.parametrize("reason", ["no key", "nobody there"])
def test_out_of_reach_it_is_recorded_on_disk(recipes, tmp_path, reason, wandb_records):
    home = tmp_path / "home"  # contains no key
    env = {"WANDB_PROJECT": "demo", "HOME": str(home), "NETRC": str(home / "netrc")}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening
        env["WANDB_BASE_URL"] = f"http://127.0.0.1:{taken.getsockname()[1]}"
        if reason == "nobody there":
            # The limit also applies to the start of the record on disk.
            env |= {"WANDB_API_KEY": "k" * 40, "WANDB_INIT_TIMEOUT": "5"}
        log_path = tmp_path / "run"
        done = recipes.run("sft", log_path, env=env, **SETTINGS["sft"])
    assert done.returncode == 0
    assert "W&B: recorded on disk only: " in done.stderr
    assert "Traceback" not in done.stderr
    [folder] = offline_runs(log_path)
    assert history(wandb_records(folder)) == lines(recipes, log_path)


def test_its_end_is_not_the_run_s(recipes, tmp_path):
    def kill_wandb(process):
        service = next(
            child
            for child in psutil.Process(process.pid).children(recursive=True)
            if child.name().startswith("wandb")
        )
        service.kill()

    settings = SETTINGS["sft"] | {"max_steps": 60, "wandb_project": "demo"}
    code, errors = recipes.disturbed(
        "sft", tmp_path, 5, kill_wandb, env=OFFLINE, held_at="step 6/", **settings
    )
    assert code == 0
    assert errors.count("W&B: no longer recorded: ") == 1
    assert list(lines(recipes, tmp_path)) == list(range(61))
