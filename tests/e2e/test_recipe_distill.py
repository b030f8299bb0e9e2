"""Distillation against the engine: the student learns in both modes, and runs resume."""

import signal

import pytest

pytestmark = pytest.mark.e2e

TASK = {"task": "sorting", "length": 3, "letters": 6, "test_size": 32, "train_size": 150}
TASK |= {"max_tokens": 6, "groups_per_batch": 8, "group_size": 4, "batch_size": 32}


@pytest.fixture(scope="module")
def warm(recipes, tmp_path_factory):
    """Return a student that answers in the right form, but mostly wrongly."""
    log_path = tmp_path_factory.mktemp("warm")
    task = {key: TASK[key] for key in ("task", "length", "letters", "test_size", "train_size")}
    recipes.succeed("sft", log_path, **task, max_steps=25, eval_every=0)
    return log_path


def test_the_student_comes_nearer_to_the_teacher(recipes, warm, tmp_path):
    settings = TASK | {"max_steps": 30, "eval_every": 0, "test_size": 4, "learning_rate": 2e-3}
    recipes.succeed("distill", tmp_path, load_checkpoint_path=warm, **settings)
    lines = recipes.measured(tmp_path)
    apart = [line["teacher_kl"] for line in lines[:-1]]
    assert sum(apart[-5:]) < 0.75 * sum(apart[:5])
    # All answers are trained on, whatever their reward.
    assert {line["num_groups_dropped"] for line in lines[:-1]} == {0}


def test_the_student_is_shown_what_the_teacher_answers(recipes, tmp_path):
    settings = TASK | {"mode": "off_policy", "max_steps": 60, "eval_every": 0}
    done = recipes.succeed("distill", tmp_path, teacher="2*tiny/teacher,1*tiny/teacher", **settings)
    assert "questions answered by the teacher" in done.stdout
    lines = recipes.measured(tmp_path)
    assert lines[-1]["test/accuracy"] > 0.3
    assert lines[-1]["test/nll"] < lines[0]["test/nll"] / 2


def test_the_likeliest_values_of_each_token_teach_too(recipes, warm, tmp_path):
    settings = TASK | {"max_steps": 30, "eval_every": 0, "test_size": 4, "learning_rate": 2e-3}
    recipes.succeed("distill", tmp_path, load_checkpoint_path=warm, kl_top_k=8, **settings)
    lines = recipes.measured(tmp_path)[:-1]
    for key in ("teacher_kl", "teacher_kl_top_k"):
        apart = [line[key] for line in lines]
        assert sum(apart[-5:]) < 0.75 * sum(apart[:5])
    # The sampler and the trainer give the same logprobs.
    assert all(abs(line["optim/kl_sample_train_v1"]) < 1e-4 for line in lines)


@pytest.mark.parametrize(
    "given", [{}, {"kl_top_k": 4}, {"mode": "off_policy"}], ids=["on", "top_k", "off"]
)
def test_a_killed_run_resumes_to_the_same_values(recipes, warm, tmp_path, given):
    settings = TASK | {"max_steps": 10, "eval_every": 4, "save_every": 3} | given
    settings |= {"test_size": 4, "groups_per_batch": 4, "group_size": 2, "batch_size": 8}
    settings |= {"load_checkpoint_path": warm, "teacher": f"3*tiny/teacher,1*{warm}"}
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    recipes.succeed("distill", whole, **settings)
    recipes.resumes("distill", whole, stopped, 5, signal.SIGKILL, **settings)
