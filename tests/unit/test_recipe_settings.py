import re

import chz
import pytest

from sweeper.recipes import (
    distill,
    dpo,
    harbor,
    harbor_rl,
    reward,
    rl,
    session_rl,
    session_sft,
    settings,
    sft,
    tasks,
    terminal,
)
from sweeper.recipes import eval as evaluation
from sweeper.recipes.service import RecipeError

RECIPES = [distill, dpo, evaluation, harbor, harbor_rl, reward, rl]
RECIPES += [session_rl, session_sft, sft, terminal]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.__name__)
def test_every_field_is_documented(recipe):
    fields = chz.chz_fields(recipe.Config)
    assert [name for name, field in fields.items() if not field._doc] == []


NAN = float("nan")
REFUSED = [
    (settings.Settings, {"warmup_steps": -1}, "warmup_steps must be at least 0, not -1"),
    (settings.Settings, {"wrong_share": 1.5}, "wrong_share must be from 0 to 1, not 1.5"),
    (settings.Settings, {"wrong_share": NAN}, "wrong_share must be from 0 to 1, not nan"),
    (
        settings.Settings,
        {"wrong_share": 0.1, "data": "x.jsonl"},
        "wrong_share works only for generated problems: remove wrong_share or data",
    ),
    (sft.Config, {"learning_rate": 0.0}, "learning_rate must be positive, not 0.0"),
    (sft.Config, {"learning_rate": NAN}, "learning_rate must be positive, not nan"),
    (sft.Config, {"lora_rank": 0}, "lora_rank must be at least 1, not 0"),
    (sft.Config, {"batch_size": -1}, "batch_size must be at least 1, not -1"),
    (sft.Config, {"max_steps": 0}, "max_steps must be at least 1, not 0"),
    (sft.Config, {"digits": 9}, "digits must be from 1 to 8, not 9"),
    (sft.Config, {"letters": 27}, "letters must be from 2 to 26, not 27"),
    (sft.Config, {"ttl_seconds": 60}, "ttl_seconds must be at least 3600, not 60"),
    (sft.Config, {"log_path": ""}, "log_path must not be empty"),
    (dpo.Config, {"dpo_beta": 0.0}, "dpo_beta must be positive, not 0.0"),
    (dpo.Config, {"batch_size": 0}, "batch_size must be at least 1, not 0"),
    (
        distill.Config,
        {"kl_discount_factor": 1.5},
        "kl_discount_factor must be from 0 to 1, not 1.5",
    ),
    (distill.Config, {"teacher_temperature": -1.0}, "teacher_temperature must be at least 0"),
    (distill.Config, {"batch_size": 0}, "batch_size must be at least 1, not 0"),
    (distill.Config, {"kl_top_k": -1}, "kl_top_k must be at least 0, not -1"),
    (distill.Config, {"kl_top_k": 8, "temperature": 0.5}, "needs temperature=1.0, not 0.5"),
    (distill.Config, {"kl_top_k": 8, "loss_fn": "ppo"}, "needs loss_fn=importance_sampling"),
    (rl.Config, {"group_size": 1}, "group_size must be at least 2, not 1"),
    (rl.Config, {"groups_per_batch": 0}, "groups_per_batch must be at least 1, not 0"),
    (rl.Config, {"max_tokens": 0}, "max_tokens must be at least 1, not 0"),
    (rl.Config, {"num_substeps": 0}, "num_substeps must be at least 1, not 0"),
    (rl.Config, {"temperature": 0.0}, "temperature must be positive, not 0.0"),
    (rl.Config, {"entropy_coef": -0.1}, "entropy_coef must be at least 0, not -0.1"),
    (rl.Config, {"kl_penalty_coef": -1.0}, "kl_penalty_coef must be at least 0, not -1.0"),
    (rl.Config, {"max_steps_off_policy": -1}, "max_steps_off_policy must be at least 0, not -1"),
    (rl.Config, {"function_seconds": 0.0}, "function_seconds must be positive, not 0.0"),
    (rl.Config, {"learning_rate": 0.0}, "learning_rate must be positive, not 0.0"),
    (rl.Config, {"log_path": ""}, "log_path must not be empty"),
    (rl.Config, {"reward_function": "a.py:f", "reward_model": "b"}, "are both set: remove one"),
    (evaluation.Config, {"samples": 2}, "all samples are the same at temperature 0"),
    (evaluation.Config, {"temperature": -1.0}, "temperature must be at least 0, not -1.0"),
    (evaluation.Config, {"max_items": 0}, "max_items must be at least 1, not 0"),
    (evaluation.Config, {"in_flight": 0}, "in_flight must be at least 1, not 0"),
]


@pytest.mark.parametrize(("config", "given", "message"), REFUSED)
def test_impossible_values_are_refused(config, given, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        config(**given)


def rates(**given):
    config = settings.Settings(learning_rate=1.0, **given)
    return [settings.learning_rate_at(config, step) for step in range(config.max_steps)]


def test_the_rate_rises_while_warming_up_and_then_falls_to_zero_or_stays():
    assert rates(max_steps=4) == [1.0, 0.75, 0.5, 0.25]
    assert rates(max_steps=2, lr_schedule="constant") == [1.0, 1.0]
    assert rates(max_steps=5, lr_schedule="constant", warmup_steps=3) == [0.25, 0.5, 0.75, 1, 1]
    assert rates(max_steps=4, warmup_steps=1) == [0.5, 0.75, 0.5, 0.25]


def test_wrong_share_makes_that_share_of_answers_wrong():
    given = {"task": "addition", "digits": 2, "train_size": 500, "test_size": 50, "seed": 3}
    clean = settings.load_data(settings.Settings(**given))
    noisy = settings.load_data(settings.Settings(**given, wrong_share=0.4))
    assert noisy.test == clean.test
    assert [chat[0] for chat in noisy.train] == [chat[0] for chat in clean.train]
    differ = [a != b for a, b in zip(noisy.train, clean.train, strict=True)]
    assert sum(differ) == 200
    assert noisy == settings.load_data(settings.Settings(**given, wrong_share=0.4))


def test_wrong_answers_need_two_different_answers():
    chats = [[{"role": "assistant", "content": "yes"}]] * 3
    with pytest.raises(RecipeError, match="wrong_share=1: all answers are equal"):
        tasks.with_wrong(chats, 1.0, seed=0)
    assert tasks.with_wrong(chats, 0.0, seed=0) == chats
    assert tasks.with_wrong([], 1.0, seed=0) == []
