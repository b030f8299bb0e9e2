"""The SFT recipe as a program of its own, against the engine."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e


def command(log_path, **settings):
    arguments = [f"{key}={value}" for key, value in settings.items()]
    return [sys.executable, "-m", "recipes.sft", f"log_path={log_path}", *arguments]


def environment():
    return {k: v for k, v in os.environ.items() if not k.startswith("TINKER_")}


def sft(log_path, **settings):
    return subprocess.run(
        command(log_path, **settings),
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


def stopped_after(log_path, step, signum, **settings):
    """Start a run, signal it once it has reported `step`, and return its exit code and stderr."""
    with subprocess.Popen(
        command(log_path, **settings),
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


def test_it_learns(engine, tmp_path):
    done = sft(tmp_path, base_url=engine.url)
    assert (done.returncode, done.stderr) == (0, "")
    lines = measured(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    steps = config["max_steps"]
    assert [line["step"] for line in lines] == list(range(steps + 1))
    evaluations = [line for line in lines if "test/nll" in line]
    assert [line["step"] for line in evaluations] == list(range(0, steps + 1, config["eval_every"]))
    assert evaluations[-1]["test/nll"] < 0.2 * evaluations[0]["test/nll"]
    assert evaluations[0]["test/accuracy"] == 0
    assert evaluations[-1]["test/accuracy"] > 0.5
    assert {"learning_rate", "num_sequences", "num_tokens", "train_mean_nll"} <= set(lines[0])
    [final] = read(tmp_path / "checkpoints.jsonl")
    assert (final["name"], final["batch"], final["final"]) == ("final", steps, True)
    assert final["state_path"].startswith("tinker://")
    assert final["sampler_path"].startswith("tinker://")


@pytest.mark.parametrize(
    ("signum", "code", "saved"),
    [(signal.SIGTERM, 143, True), (signal.SIGINT, 130, True), (signal.SIGKILL, -9, False)],
)
def test_a_stopped_run_goes_on_as_if_it_had_not_been_stopped(engine, tmp_path, signum, code, saved):
    settings = {"base_url": engine.url, "max_steps": 30, "eval_every": 5, "save_every": 4}
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert sft(whole, **settings).returncode == 0

    assert stopped_after(stopped, 10, signum, **settings) == (code, "")
    before, checkpoint = measured(stopped), read(stopped / "checkpoints.jsonl")[-1]
    assert 10 < len(before) <= 30
    assert "final" not in checkpoint
    if saved:
        assert checkpoint["batch"] == len(before)

    resumed = sft(stopped, **settings)
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert f"resuming after {checkpoint['batch']} steps" in resumed.stdout
    assert measured(stopped) == measured(whole)
    assert read(stopped / "checkpoints.jsonl")[-1]["final"] is True

    finished = sft(stopped, **settings)
    assert finished.returncode == 0
    assert "finished after 30 steps" in finished.stdout
    assert measured(stopped) == measured(whole)


def test_seeds_differ_and_repeat(engine, tmp_path):
    settings = {"base_url": engine.url, "max_steps": 3, "eval_every": 0}
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        assert sft(tmp_path / name, seed=seed, **settings).returncode == 0
    assert measured(tmp_path / "a") == measured(tmp_path / "b")
    assert measured(tmp_path / "a") != measured(tmp_path / "c")
    # Before training every seed is the same model, scored on the same examples.
    assert measured(tmp_path / "a")[0]["test/nll"] == measured(tmp_path / "c")[0]["test/nll"]


def test_conversations_from_a_file(engine, tmp_path):
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
    done = sft(tmp_path / "run", base_url=engine.url, data=data, test_size=8, max_steps=5)
    assert (done.returncode, done.stderr) == (0, "")
    first, last = (measured(tmp_path / "run")[i]["test/nll"] for i in (0, -1))
    assert last < first


def test_a_service_that_is_not_there_is_one_clear_line(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: nobody answers
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        done = sft(tmp_path, base_url=url)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: no service answers at {url} (")
    assert done.stderr.count("\n") == 1


def test_an_unknown_model_is_one_clear_line(engine, tmp_path):
    done = sft(tmp_path, base_url=engine.url, model_name="tiny/none")
    assert done.returncode == 1
    assert done.stderr.startswith("error: the service failed: ")
    assert "tiny/none" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_lost_checkpoint_is_one_clear_line(engine, tmp_path):
    record = {"name": "000002", "batch": 2, "state_path": "tinker://gone/weights/000002"}
    (tmp_path / "checkpoints.jsonl").write_text(json.dumps(record) + "\n")
    done = sft(tmp_path, base_url=engine.url)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "tinker://gone/weights/000002" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "metrics.jsonl").exists()
