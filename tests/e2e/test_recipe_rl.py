"""The GRPO recipe in its own process, against the engine."""

import json
import signal
from collections import Counter

import pytest

pytestmark = pytest.mark.e2e

TASK = {"task": "reversal", "length": 2, "letters": 4, "test_size": 4}
SMALL = TASK | {"max_tokens": 3, "learning_rate": 1e-3}
SMALL |= {"groups_per_batch": 8, "group_size": 16, "max_steps": 8, "eval_every": 3}
STOPPED = SMALL | {"group_size": 4, "save_every": 2, "max_steps": 16, "num_substeps": 2}


def sampled(log_path):
    """Return every file of summaries by its path in the run."""
    files = log_path.glob("iteration_*/*_rollout_summaries.jsonl")
    return {str(file.relative_to(log_path)): file.read_text() for file in files}


@pytest.fixture(scope="module")
def warm(recipes, tmp_path_factory):
    """Return a run of SFT that has learned to answer, but not yet correctly."""
    log_path = tmp_path_factory.mktemp("warm")
    recipes.succeed("sft", log_path, **TASK, max_steps=20, eval_every=0)
    return log_path


def test_it_learns_what_sft_began(recipes, warm, tmp_path):
    settings = SMALL | {"group_size": 8, "max_steps": 40, "eval_every": 10}
    recipes.succeed("rl", tmp_path, load_checkpoint_path=warm, **settings)
    lines = recipes.measured(tmp_path)
    assert [line["step"] for line in lines] == list(range(41))
    rewards = [line["env/all/reward/total"] for line in lines[:-1]]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.1
    evaluations = [line for line in lines if "test/reward" in line]
    assert [line["step"] for line in evaluations] == list(range(0, 41, 10))
    # On policy, sampler and trainer have the same weights, so their logprobs agree.
    assert max(abs(line.get("optim/kl_sample_train_v1", 0)) for line in lines) < 1e-5
    [final] = recipes.read(tmp_path / "checkpoints.jsonl")
    assert (final["name"], final["batch"], final["final"]) == ("final", 40, True)


@pytest.mark.parametrize("loss_fn", ["ppo", "cispo"])
def test_it_learns_by_other_losses_in_several_substeps(recipes, warm, tmp_path, loss_fn):
    settings = SMALL | {"group_size": 8, "max_steps": 30, "eval_every": 0}
    settings |= {"loss_fn": loss_fn, "num_substeps": 3}
    recipes.succeed("rl", tmp_path, load_checkpoint_path=warm, **settings)
    lines = recipes.measured(tmp_path)
    rewards = [line["env/all/reward/total"] for line in lines[:-1]]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.1
    # After the first substep, the trained model differs from the sampler's.
    assert max(line.get("optim/kl_sample_train_v2", 0) for line in lines) > 1e-6


def test_what_it_leaves_behind(recipes, warm, tmp_path):
    recipes.succeed("rl", tmp_path, load_checkpoint_path=warm, **SMALL)
    for line in recipes.measured(tmp_path)[:-1]:
        name = f"iteration_{line['step']:06d}/train_rollout_summaries.jsonl"
        episodes = recipes.read(tmp_path / name)
        total = sum(episode["total_reward"] for episode in episodes)
        assert len(episodes) == line["env/all/total_episodes"] == 8 * 16
        assert total / len(episodes) == pytest.approx(line["env/all/reward/total"])
        rewards: dict[int, set[float]] = {}
        for episode in episodes:
            rewards.setdefault(episode["group_idx"], set()).add(episode["total_reward"])
        dropped = sum(len(group) == 1 for group in rewards.values())
        assert line["num_groups_dropped"] == dropped
        assert line["num_sequences"] == (8 - dropped) * 16
        assert line["optim/entropy"] > 0
    assert {f"iteration_{step:06d}/eval_test_rollout_summaries.jsonl" for step in (0, 3, 6, 8)} == {
        name for name in sampled(tmp_path) if "eval_test" in name
    }
    tree = json.loads((tmp_path / "iteration_000000" / "train_logtree.json").read_text())
    assert tree["title"] == "RL Iteration 0"
    parts = {"sampling", "reward", "forward_backward", "optim_step", "save", "reference"}
    for times in recipes.spent(tmp_path)[:-1]:
        assert set(times.parts) - {"eval"} == parts
        assert sum(times.parts.values()) <= times.seconds


@pytest.fixture(scope="module")
def whole(recipes, warm, tmp_path_factory):
    """Return an uninterrupted run."""
    log_path = tmp_path_factory.mktemp("whole")
    recipes.succeed("rl", log_path, load_checkpoint_path=warm, **STOPPED)
    return log_path


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_stopped_run_resumes_to_the_same_values(recipes, warm, whole, tmp_path, signum, code):
    settings = STOPPED | {"load_checkpoint_path": warm}
    stopped = tmp_path / "stopped"
    assert recipes.stopped_after("rl", stopped, 5, signum, **settings) == (code, "")
    before, checkpoint = recipes.measured(stopped), recipes.read(stopped / "checkpoints.jsonl")[-1]
    assert 5 < len(before) <= 16
    if code > 0:
        assert checkpoint["batch"] == len(before)

    resumed = recipes.run("rl", stopped, **settings)
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert f"resuming after {checkpoint['batch']} steps" in resumed.stdout
    assert recipes.measured(stopped) == recipes.measured(whole)
    assert sampled(stopped) == sampled(whole)
    assert recipes.read(stopped / "checkpoints.jsonl")[-1]["final"] is True


def test_questions_from_a_file(recipes, tmp_path):
    data = tmp_path / "sky.jsonl"
    rows = [{"prompt": f"colour {i}", "answer": "red" if i % 2 else "blue"} for i in range(12)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"data": data, "test_size": 4, "max_steps": 2, "groups_per_batch": 2}
    recipes.succeed("rl", tmp_path / "run", **settings)
    summaries = tmp_path / "run" / "iteration_000002" / "eval_test_rollout_summaries.jsonl"
    records = recipes.read(summaries)
    assert {episode["tags"][0] for episode in records} == {"sky"}
    assert {episode["steps"][0]["logs"]["reference_answer"] for episode in records} <= {
        "red",
        "blue",
    }
    assert len(records) == 4


def test_episodes_go_to_a_collector_while_it_trains(recipes, collector, tmp_path):
    """Each names its step, sweep and run. A collector that refuses them changes nothing."""
    settings = SMALL | {"max_steps": 3, "group_size": 4, "otlp": collector.url}
    worker = {"SWEEPER_SWEEP": "letters", "SWEEPER_NAME": "letters/lr=1,seed=0 (2)"}
    worker |= {"SWEEPER_ATTEMPT": "2", "SWEEPER_RUN": "c0ffee"}
    recipes.succeed("rl", tmp_path / "told", worker, **settings)
    spans = [
        {a["key"].removeprefix("sweeper."): a["value"] for a in span["attributes"]}
        for path, _, body in collector.taken
        for resource in body["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
        if path == "POST /v1/traces" and "parentSpanId" not in span
    ]
    assert {span["sweep"]["stringValue"] for span in spans} == {"letters"}
    assert {span["run"]["stringValue"] for span in spans} == {"lr=1,seed=0"}
    assert {span["run_id"]["stringValue"] for span in spans} == {"c0ffee"}
    counts = Counter((span["name"]["stringValue"], span["iteration"]["intValue"]) for span in spans)
    assert counts == {
        **{("train", str(step)): 32 for step in range(3)},
        ("eval_test", "0"): 4,
        ("eval_test", "3"): 4,
    }
    collector.code = 503
    done = recipes.succeed("rl", tmp_path / "refused", **settings)
    assert done.stdout.count("otlp: ") == 1
    assert f"otlp: the collector at {collector.url}/v1/traces answered with status 503" in (
        done.stdout
    )
    assert recipes.measured(tmp_path / "refused") == recipes.measured(tmp_path / "told")
    done = recipes.run("rl", tmp_path / "wrong", **settings | {"otlp": "localhost:4318"})
    assert (done.returncode, done.stderr) == (
        2,
        "error: otlp=localhost:4318: write http://HOST:4318\n",
    )


def test_a_sparse_reward_never_earned_teaches_nothing(recipes, tmp_path):
    settings = SMALL | {"reward": "sparse", "max_steps": 2, "eval_every": 0}
    recipes.succeed("rl", tmp_path, **settings)
    for line in recipes.measured(tmp_path)[:-1]:
        assert (line["num_groups_dropped"], line["num_sequences"]) == (8, 0)
        assert "optim/kl_sample_train_v1" not in line


def test_a_run_without_a_checkpoint_to_start_from_is_one_clear_line(recipes, tmp_path):
    missing = tmp_path / "none"
    done = recipes.run("rl", tmp_path / "run", load_checkpoint_path=missing)
    assert done.returncode == 1
    assert done.stderr == f"error: no checkpoint in {missing}/checkpoints.jsonl\n"
