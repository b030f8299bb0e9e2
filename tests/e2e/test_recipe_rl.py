"""The GRPO recipe as a program of its own, against the engine."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

TASK = {"task": "reversal", "length": 2, "letters": 4, "test_size": 4}
SMALL = TASK | {"max_tokens": 3, "learning_rate": 1e-3}
SMALL |= {"groups_per_batch": 8, "group_size": 16, "max_steps": 8, "eval_every": 3}


def command(recipe, log_path, **settings):
    arguments = [f"{key}={value}" for key, value in settings.items()]
    return [sys.executable, "-m", f"recipes.{recipe}", f"log_path={log_path}", *arguments]


def environment():
    return {k: v for k, v in os.environ.items() if not k.startswith("TINKER_")}


def run(recipe, log_path, **settings):
    return subprocess.run(
        command(recipe, log_path, **settings),
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def measured(log_path):
    """The metrics, without what a clock gave."""
    lines = read(Path(log_path) / "metrics.jsonl")
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines]


def sampled(log_path):
    """Every file of summaries, by its path in the run."""
    files = Path(log_path).glob("iteration_*/*_rollout_summaries.jsonl")
    return {str(file.relative_to(log_path)): file.read_text() for file in files}


def stopped_after(log_path, step, signum, **settings):
    """Start a run, signal it once it has reported `step`, and return its exit code and stderr."""
    with subprocess.Popen(
        command("rl", log_path, **settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        for line in process.stdout:
            if line.startswith(f"step {step}/"):
                process.send_signal(signum)
                break
        _, errors = process.communicate()
    return process.returncode, errors


@pytest.fixture(scope="module")
def warm(engine, tmp_path_factory):
    """A run of SFT that has learned to answer, if not yet to answer right."""
    log_path = tmp_path_factory.mktemp("warm")
    done = run("sft", log_path, base_url=engine.url, **TASK, max_steps=20, eval_every=0)
    assert (done.returncode, done.stderr) == (0, "")
    return log_path


def test_it_learns_what_sft_began(engine, warm, tmp_path):
    settings = SMALL | {"max_steps": 40, "eval_every": 10}
    done = run("rl", tmp_path, base_url=engine.url, load_checkpoint_path=warm, **settings)
    assert (done.returncode, done.stderr) == (0, "")
    lines = measured(tmp_path)
    assert [line["step"] for line in lines] == list(range(41))
    rewards = [line["env/all/reward/total"] for line in lines[:-1]]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.1
    evaluations = [line for line in lines if "test/reward" in line]
    assert [line["step"] for line in evaluations] == list(range(0, 41, 10))
    # The sampler and the trainer are one model: on policy their logprobs agree.
    assert max(abs(line.get("optim/kl_sample_train_v1", 0)) for line in lines) < 1e-5
    [final] = read(tmp_path / "checkpoints.jsonl")
    assert (final["name"], final["batch"], final["final"]) == ("final", 40, True)


def test_what_it_leaves_behind(engine, warm, tmp_path):
    done = run("rl", tmp_path, base_url=engine.url, load_checkpoint_path=warm, **SMALL)
    assert (done.returncode, done.stderr) == (0, "")
    for line in measured(tmp_path)[:-1]:
        name = f"iteration_{line['step']:06d}/train_rollout_summaries.jsonl"
        episodes = read(tmp_path / name)
        total = sum(episode["total_reward"] for episode in episodes)
        assert len(episodes) == line["env/all/total_episodes"] == 8 * 16
        assert total / len(episodes) == pytest.approx(line["env/all/reward/total"])
        rewards: dict[int, set[float]] = {}
        for episode in episodes:
            rewards.setdefault(episode["group_idx"], set()).add(episode["total_reward"])
        dropped = sum(len(found) == 1 for found in rewards.values())
        assert line["num_groups_dropped"] == dropped
        assert line["num_sequences"] == (8 - dropped) * 16
        assert line["optim/entropy"] > 0
    assert {f"iteration_{step:06d}/eval_test_rollout_summaries.jsonl" for step in (0, 3, 6, 8)} == {
        name for name in sampled(tmp_path) if "eval_test" in name
    }
    tree = json.loads((tmp_path / "iteration_000000" / "train_logtree.json").read_text())
    assert tree["title"] == "RL Iteration 0"


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)]
)
def test_a_stopped_run_goes_on_as_if_it_had_not_been_stopped(engine, warm, tmp_path, signum, code):
    settings = SMALL | {"base_url": engine.url, "load_checkpoint_path": warm, "save_every": 2}
    settings |= {"max_steps": 16, "num_substeps": 2}
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert run("rl", whole, **settings).returncode == 0

    assert stopped_after(stopped, 5, signum, **settings) == (code, "")
    before, checkpoint = measured(stopped), read(stopped / "checkpoints.jsonl")[-1]
    assert 5 < len(before) <= 16
    if code > 0:
        assert checkpoint["batch"] == len(before)

    resumed = run("rl", stopped, **settings)
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert f"resuming after {checkpoint['batch']} steps" in resumed.stdout
    assert measured(stopped) == measured(whole)
    assert sampled(stopped) == sampled(whole)
    assert read(stopped / "checkpoints.jsonl")[-1]["final"] is True


def test_questions_from_a_file(engine, tmp_path):
    data = tmp_path / "sky.jsonl"
    rows = [{"prompt": f"colour {i}", "answer": "red" if i % 2 else "blue"} for i in range(12)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"data": data, "test_size": 4, "max_steps": 2, "groups_per_batch": 2}
    done = run("rl", tmp_path / "run", base_url=engine.url, **settings)
    assert (done.returncode, done.stderr) == (0, "")
    summaries = tmp_path / "run" / "iteration_000002" / "eval_test_rollout_summaries.jsonl"
    found = read(summaries)
    assert {episode["tags"][0] for episode in found} == {"sky"}
    assert {episode["steps"][0]["logs"]["reference_answer"] for episode in found} <= {"red", "blue"}
    assert len(found) == 4


def test_a_sparse_reward_never_earned_teaches_nothing(engine, tmp_path):
    settings = SMALL | {"reward": "sparse", "max_steps": 2, "eval_every": 0}
    done = run("rl", tmp_path, base_url=engine.url, **settings)
    assert (done.returncode, done.stderr) == (0, "")
    for line in measured(tmp_path)[:-1]:
        assert (line["num_groups_dropped"], line["num_sequences"]) == (8, 0)
        assert "optim/kl_sample_train_v1" not in line


def test_a_run_without_a_checkpoint_to_start_from_is_one_clear_line(engine, tmp_path):
    missing = tmp_path / "none"
    done = run("rl", tmp_path / "run", base_url=engine.url, load_checkpoint_path=missing)
    assert done.returncode == 1
    assert done.stderr == f"error: no checkpoint in {missing}/checkpoints.jsonl\n"
