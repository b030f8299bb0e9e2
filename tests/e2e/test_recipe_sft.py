"""The SFT recipe in its own process, against the engine."""

import json
import signal
import socket

import pytest

pytestmark = pytest.mark.e2e

SMALL = {"length": 2, "letters": 4, "batch_size": 4, "test_size": 4}
STOPPED = SMALL | {"max_steps": 30, "eval_every": 5, "save_every": 4}


def test_it_learns(recipes, tmp_path):
    recipes.succeed("sft", tmp_path, test_size=16, fresh=True)
    lines = recipes.measured(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    steps = config["max_steps"]
    assert [line["step"] for line in lines] == list(range(steps + 1))
    evaluations = [line for line in lines if "test/nll" in line]
    assert [line["step"] for line in evaluations] == list(range(0, steps + 1, config["eval_every"]))
    assert evaluations[-1]["test/nll"] < 0.2 * evaluations[0]["test/nll"]
    assert evaluations[0]["test/accuracy"] == 0
    assert evaluations[-1]["test/accuracy"] > 0.5
    assert {"learning_rate", "num_sequences", "num_tokens", "train_mean_nll"} <= set(lines[0])
    [final] = recipes.read(tmp_path / "checkpoints.jsonl")
    assert (final["name"], final["batch"], final["final"]) == ("final", steps, True)
    assert final["state_path"].startswith("tinker://")
    assert final["sampler_path"].startswith("tinker://")
    *trained, last = recipes.spent(tmp_path)
    assert set(last.parts) == {"eval"}
    for number, times in enumerate(trained):
        evaluated = {"eval"} if number % config["eval_every"] == 0 else set()
        assert set(times.parts) == {"forward_backward", "optim_step", *evaluated}
        assert sum(times.parts.values()) <= times.seconds


@pytest.fixture(scope="module")
def whole(recipes, tmp_path_factory):
    """Return an uninterrupted run."""
    log_path = tmp_path_factory.mktemp("whole")
    recipes.succeed("sft", log_path, **STOPPED)
    return log_path


@pytest.mark.parametrize(
    ("signum", "code", "saved"),
    [(signal.SIGTERM, 143, True), (signal.SIGINT, 130, True), (signal.SIGKILL, -9, False)],
)
def test_a_stopped_run_resumes_to_the_same_values(recipes, whole, tmp_path, signum, code, saved):
    stopped = tmp_path / "stopped"
    assert recipes.stopped_after("sft", stopped, 10, signum, **STOPPED) == (code, "")
    before, checkpoint = recipes.measured(stopped), recipes.read(stopped / "checkpoints.jsonl")[-1]
    assert 10 < len(before) <= 30
    assert "final" not in checkpoint
    if saved:
        assert checkpoint["batch"] == len(before)

    resumed = recipes.run("sft", stopped, **STOPPED)
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert f"resuming after {checkpoint['batch']} steps" in resumed.stdout
    assert recipes.measured(stopped) == recipes.measured(whole)
    assert recipes.read(stopped / "checkpoints.jsonl")[-1]["final"] is True

    finished = recipes.run("sft", stopped, **STOPPED)
    assert finished.returncode == 0
    assert "finished at step 30" in finished.stdout
    assert recipes.measured(stopped) == recipes.measured(whole)


def test_seeds_differ_and_repeat(recipes, tmp_path):
    settings = SMALL | {"max_steps": 3, "eval_every": 0}
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        recipes.succeed("sft", tmp_path / name, seed=seed, **settings)
    first, again, other = (recipes.measured(tmp_path / name) for name in "abc")
    assert first == again
    assert first != other
    # Before training, all seeds have the same model and the same examples.
    assert first[0]["test/nll"] == other[0]["test/nll"]


def test_conversations_from_a_file(recipes, tmp_path):
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"colour {i}"},
                {"role": "assistant", "content": "red" if i % 2 else "blue"},
            ]
        }
        for i in range(40)
    ]
    data = tmp_path / "chats.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipes.succeed("sft", tmp_path / "run", data=data, test_size=8, max_steps=5)
    first, last = (recipes.measured(tmp_path / "run")[i]["test/nll"] for i in (0, -1))
    assert last < first


def test_a_service_that_is_not_there_is_one_clear_line(recipes, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        done = recipes.run("sft", tmp_path, base_url=url)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: no service answers at {url} (")
    assert done.stderr.count("\n") == 1


def test_an_unknown_model_is_one_clear_line(recipes, tmp_path):
    done = recipes.run("sft", tmp_path, model_name="tiny/none")
    assert done.returncode == 1
    assert done.stderr.startswith("error: the service failed: ")
    assert "tiny/none" in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_is_found_for_auto_is_on_record(recipes, tmp_path):
    settings = SMALL | {"max_steps": 2, "learning_rate": "auto", "lora_rank": "auto"}
    done = recipes.succeed("sft", tmp_path, **settings, model_name="Qwen/Qwen3-8B")
    assert "learning_rate=0.000473: 5e-5 x 10 for LoRA x (2000/4096)^0.0775" in done.stdout
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["learning_rate"], config["lora_rank"]) == (4.73e-4, 8)
    assert sorted(config["auto"]) == ["learning_rate", "lora_rank"]
    assert recipes.measured(tmp_path)[0]["learning_rate"] == 4.73e-4
    again = recipes.run("sft", tmp_path, **settings, model_name="Qwen/Qwen3-8B")
    assert again.stdout.endswith("already has this run, which finished at step 2\n")
    other = recipes.run("sft", tmp_path / "other", **settings, model_name="openai/gpt-oss-20b")
    message = "learning_rate=auto: no rate is known for gpt-oss models such as "
    message += "openai/gpt-oss-20b, only for Llama and Qwen; give a number"
    assert (other.returncode, other.stderr) == (1, f"error: {message}\n")


def test_a_lost_checkpoint_is_one_clear_line(recipes, tmp_path):
    record = {"name": "000002", "batch": 2, "state_path": "tinker://gone/weights/000002"}
    (tmp_path / "checkpoints.jsonl").write_text(json.dumps(record) + "\n")
    done = recipes.run("sft", tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "tinker://gone/weights/000002" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "metrics.jsonl").exists()
