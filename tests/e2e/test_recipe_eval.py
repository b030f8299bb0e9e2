"""The evaluation recipe against the engine, which counts the samples."""

import json
import os
import signal
import time

import httpx
import pytest

pytestmark = pytest.mark.e2e

MANY = int(os.environ.get("SWEEPER_TEST_ITEMS", "200"))
MORE = MANY // 20
"""Items of the suite; docs/recipes.md has the figures for 2,000."""
IN_FLIGHT = 16
HELD = """
import time

def score(question, response, answer):
    while held(int(question.partition("+")[0])):
        time.sleep(0.02)
    return response.strip() == answer

def held(number):
    try:
        with open({path!r}) as file:
            return number >= int(file.read())
    except FileNotFoundError:
        return False
"""
"""A grader that holds questions from a number on while a file exists, so that the signal arrives
during the evaluation."""


def sampled_count(recipes, recipe="eval"):
    """Return the number of samples that evaluations have drawn, as counted by the engine."""
    key = {"X-API-Key": recipes.key}
    answer = httpx.get(f"{recipes.url}/api/v1/meter", headers=key, timeout=120)
    sessions = answer.raise_for_status().json()["sessions"]
    return sum(
        session["samples"]
        for session in sessions
        if (session["user_metadata"] or {}).get("recipe") == recipe
    )


def write_suite(path, count):
    rows = ({"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(count))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def after_lines(recipes, log_path, count, signum, hold, recipe="eval", held=None, **settings):
    """Run an evaluation, and send a signal once `count` answers are recorded."""
    path = log_path / "items.jsonl"
    hold.write_text(str(count if held is None else held))
    process = recipes.start(recipe, log_path, **settings)
    while process.poll() is None:
        if path.exists() and path.read_bytes().count(b"\n") >= count:
            process.send_signal(signum)
            break
        time.sleep(0.01)
    hold.unlink()
    process.communicate()
    return process.returncode


def test_a_suite_that_is_killed_five_times_and_grows(recipes, tmp_path):
    suite = write_suite(tmp_path / "suite.jsonl", MANY)
    hold, grader = tmp_path / "hold", tmp_path / "held.py"
    grader.write_text(HELD.format(path=str(hold)))
    settings = {"suite": suite, "max_tokens": 2, "in_flight": IN_FLIGHT}
    settings |= {"grader": f"{grader}:score", "function_seconds": 240}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    before = sampled_count(recipes)
    recipes.succeed("eval", whole, **settings)
    assert sampled_count(recipes) - before == MANY

    before = sampled_count(recipes)
    for part in range(1, 6):
        signum = signal.SIGTERM if part % 2 else signal.SIGKILL
        code = after_lines(recipes, killed, part * MANY // 10, signum, hold, **settings)
        assert code == (143 if part % 2 else -9)
    recipes.succeed("eval", killed, **settings)
    # SIGTERM loses no answers; SIGKILL loses those in flight.
    count = sampled_count(recipes) - before
    print(f"{MANY} items, killed five times: {count} asked")
    assert MANY <= count <= MANY + 2 * (IN_FLIGHT + 1)
    assert recipes.read(killed / "items.jsonl") == recipes.read(whole / "items.jsonl")
    assert recipes.measured(killed) == recipes.measured(whole)
    rows = recipes.read(killed / "items.jsonl")
    assert len({row["item"] for row in rows}) == len(rows) == MANY

    before = sampled_count(recipes)
    write_suite(suite, MANY + MORE)
    done = recipes.run("eval", killed, **settings)
    assert f"items to ask: {MORE} of {MANY + MORE}" in done.stdout
    assert sampled_count(recipes) - before == MORE
    assert recipes.measured(killed)[-1]["test/num_items"] == MANY + MORE


def test_what_a_checkpoint_answers_and_another_grader_thinks_of_it(recipes, tmp_path):
    task = {"task": "sorting", "length": 2, "letters": 4, "test_size": 8}
    trained = tmp_path / "sft"
    recipes.succeed("sft", trained, **task, max_steps=60, eval_every=0)
    log_path = tmp_path / "eval"
    settings = task | {"load_checkpoint_path": trained, "max_tokens": 4}
    before = sampled_count(recipes)
    recipes.succeed("eval", log_path, **settings)
    # Accuracy is defined as in training.
    [last] = recipes.measured(log_path)[-1:]
    assert last["test/accuracy"] == recipes.measured(trained)[-1]["test/accuracy"]
    assert last["eval/sorting-2-4/pass@1"] == last["test/accuracy"]
    assert sampled_count(recipes) - before == 8

    rows = recipes.read(log_path / "items.jsonl")
    assert {row["task"] for row in rows} == {"sorting-2-4"}
    # A repetition samples nothing and changes nothing.
    files = ("items.jsonl", "checkpoints.jsonl", "metrics.jsonl")
    left = [(log_path / name).read_text() for name in files]
    recipes.succeed("eval", log_path, **settings)
    assert [(log_path / name).read_text() for name in files] == left
    assert sampled_count(recipes) - before == 8
    # Other weights are refused.
    other = recipes.run("eval", log_path, **task, max_tokens=4)
    assert other.returncode == 1
    assert "holds a run with load_checkpoint_path=" in other.stderr


def test_several_samples_by_a_function_of_the_users(recipes, tmp_path):
    suite = write_suite(tmp_path / "suite.jsonl", 6)
    function = tmp_path / "score.py"
    function.write_text("def score(question, response, answer):\n    return 1 / 0\n")
    settings = {"suite": suite, "temperature": 1.0, "samples": 2, "max_tokens": 3}
    settings |= {"grader": f"{function}:score"}
    before = sampled_count(recipes)
    done = recipes.run("eval", tmp_path / "run", **settings)
    assert done.returncode == 1
    assert "fails on question='0+1='" in done.stderr
    assert "ZeroDivisionError: division by zero (line 2)" in done.stderr
    assert sampled_count(recipes) == before
    function.write_text(
        "def score(question, response, answer):\n    return 1.0 if response == answer else {}[0]\n"
    )
    done = recipes.run("eval", tmp_path / "failed", **settings)
    message = (
        f"the grader {function}:score failed on all 12 answers of step 6: KeyError: 0 (line 2)"
    )
    assert (done.returncode, done.stderr) == (1, f"error: {message}\n")
    last = recipes.measured(tmp_path / "failed")[-1]
    assert (last["test/grader_errors"], last["test/frac_grader_failed"]) == (12, 1.0)
    before = sampled_count(recipes)
    function.write_text("def score(question, response, answer):\n    return len(response) > 0\n")
    recipes.succeed("eval", tmp_path / "run", **settings)
    rows = recipes.read(tmp_path / "run" / "items.jsonl")
    assert [(row["sample"], row["score"]) for row in rows] == [(0, 1.0), (1, 1.0)] * 6
    assert sampled_count(recipes) - before == 12
    # Another function grades the existing answers; only missing samples are drawn.
    function.write_text("def score(question, response, answer):\n    return 0\n")
    recipes.succeed("eval", tmp_path / "run", **settings | {"samples": 3})
    rows = recipes.read(tmp_path / "run" / "items.jsonl")
    assert {row["score"] for row in rows} == {0.0}
    assert len(rows) == 18
    assert sampled_count(recipes) - before == 18
    last = recipes.measured(tmp_path / "run")[-1]
    assert {key for key in last if "pass@" in key} == {f"eval/suite/pass@{k}" for k in (1, 2)}


TIERS = {"eval.every": 2, "eval.items": 4, "eval.max_tokens": 3, "eval.infrequent.every": 4}


@pytest.mark.parametrize("recipe", ["sft", "rl", "dpo", "distill"])
def test_suites_are_evaluated_while_a_run_trains(recipes, tmp_path, recipe):
    suite = write_suite(tmp_path / "plus.jsonl", 6)
    settings = TIERS | {"eval.suites": f"addition,{suite}", "max_steps": 5, "eval_every": 0}
    done = recipes.succeed(recipe, tmp_path / "run", **settings, test_size=4)
    scored = {
        row["step"]: {key for key in row if key.startswith("eval/") and key.endswith("/score")}
        for row in recipes.read(tmp_path / "run" / "metrics.jsonl")
    }
    often = {"eval/addition-1/score", "eval/plus/score"}
    rarely = {"eval/addition-1-all/score", "eval/plus-all/score"}
    both = often | rarely
    assert scored == {0: both, 1: set(), 2: often, 3: set(), 4: both, 5: both}
    rows = recipes.read(tmp_path / "run" / "items.jsonl")
    counts = {step: sum(row["step"] == step for row in rows) for step in range(6)}
    # An item in both tiers is asked once.
    assert counts == {0: 10, 1: 0, 2: 8, 3: 0, 4: 10, 5: 10}
    assert len({(row["step"], row["item"]) for row in rows}) == len(rows)
    assert "eval/plus/score" in done.stdout
    timed = {row["step"] for row in recipes.read(tmp_path / "run" / "metrics.jsonl")
             if "time/eval" in row}  # fmt: skip
    assert timed == {0, 2, 4, 5}


HELD_LATER = """
import os, time

calls = 0

def score(question, response, answer):
    global calls
    calls += 1
    while os.path.exists({path!r}) and calls > int(open({path!r}).read()):
        time.sleep(0.02)
    return len(response) % 2
"""
"""A grader that holds its answers after some calls while a file exists."""


@pytest.mark.parametrize(("save_every", "again"), [(2, 0), (3, 7)])
def test_a_killed_evaluation_in_training_keeps_what_the_restored_weights_have_answered(
    recipes, tmp_path, save_every, again
):
    """Without a checkpoint at step 4, at least `again` of its answers are sampled twice."""
    suite = write_suite(tmp_path / "plus.jsonl", 12)
    hold, grader = tmp_path / "hold", tmp_path / "held.py"
    grader.write_text(HELD_LATER.format(path=str(hold)))
    # The single held-out example is asked at the first step and at the end.
    settings = {"test_size": 1, "max_steps": 8, "save_every": save_every, "eval_every": 0}
    settings |= {"eval.suites": suite, "eval.every": 4, "eval.max_tokens": 2, "eval.in_flight": 2}
    settings |= {"eval.grader": f"{grader}:score", "eval.function_seconds": 240}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    before = sampled_count(recipes, "sft")
    recipes.succeed("sft", whole, **settings)
    assert sampled_count(recipes, "sft") - before == 36 + 2
    before = sampled_count(recipes, "sft")
    # In the evaluations before the first step and at step 4. One call checks the grader.
    for calls, lines in ((7, 6), (1 + 6 + 7, 19)):
        given = {"recipe": "sft", "held": calls} | settings
        assert after_lines(recipes, killed, lines, signal.SIGKILL, hold, **given) == -9
    recipes.succeed("sft", killed, **settings)
    assert again <= sampled_count(recipes, "sft") - before - 36 - 2 <= again + 1 + 2 * 3
    assert recipes.read(killed / "items.jsonl") == recipes.read(whole / "items.jsonl")
    assert recipes.measured(killed) == recipes.measured(whole)


def test_thinking_is_taken_over_by_what_starts_from_a_checkpoint(recipes, tmp_path):
    """From SFT via RL to an evaluation, given by folder or by the service's address."""
    task = {"task": "sorting", "length": 2, "letters": 4, "test_size": 4}
    short = task | {"max_steps": 1, "eval_every": 0}
    plain, trained, rewarded = tmp_path / "plain", tmp_path / "sft", tmp_path / "rl"
    recipes.succeed("sft", plain, **short)
    recipes.succeed("sft", trained, **short, thinking="off")
    recipes.succeed("rl", rewarded, **short, load_checkpoint_path=trained)
    [*_, last] = recipes.read(rewarded / "checkpoints.jsonl")
    for number, weights in enumerate((rewarded, last["state_path"], last["sampler_path"])):
        settings = {**task, "load_checkpoint_path": weights, "max_tokens": 4}
        recipes.succeed("eval", tmp_path / f"eval{number}", **settings)
        other = recipes.run("eval", tmp_path / f"other{number}", **settings, thinking="on")
        assert other.returncode == 1
        assert f"error: thinking=on, but {weights} was trained with thinking=off" in other.stderr
        other = recipes.run(
            "sft", tmp_path / f"more{number}", **short, load_checkpoint_path=weights, thinking="on"
        )
        assert "was trained with thinking=off: leave thinking out" in other.stderr
    for folder in (trained, rewarded, tmp_path / "eval0", tmp_path / "eval2"):
        assert recipes.read(folder / "checkpoints.jsonl")[-1]["thinking"] == "off"
    assert "thinking" not in recipes.read(plain / "checkpoints.jsonl")[-1]
    # The prompt has empty thoughts, two special tokens and four bytes.
    sizes = [recipes.read(path / "metrics.jsonl")[0]["num_tokens"] for path in (plain, trained)]
    assert sizes[1] - sizes[0] == 32 * 6
