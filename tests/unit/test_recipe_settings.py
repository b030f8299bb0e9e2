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

RECIPES = [
    distill,
    dpo,
    evaluation,
    harbor,
    harbor_rl,
    reward,
    rl,
    session_rl,
    session_sft,
    sft,
    terminal,
]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.__name__)
def test_every_field_is_documented(recipe):
    fields = chz.chz_fields(recipe.Config)
    assert [name for name, field in fields.items() if not field._doc] == []


def rates(**given):
    config = settings.Settings(learning_rate=1.0, **given)
    return [settings.learning_rate_at(config, step) for step in range(config.max_steps)]


def test_the_rate_falls_to_zero_after_the_last_step_or_stays():
    assert rates(max_steps=4) == [1.0, 0.75, 0.5, 0.25]
    assert rates(max_steps=2, lr_schedule="constant") == [1.0, 1.0]


def test_the_rate_first_rises_over_the_warm_up_steps():
    assert rates(max_steps=5, lr_schedule="constant", warmup_steps=3) == [0.25, 0.5, 0.75, 1, 1]
    assert rates(max_steps=4, warmup_steps=1) == [0.5, 0.75, 0.5, 0.25]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"warmup_steps": -1}, "warmup_steps must be at least 0, not -1"),
        ({"wrong_share": 1.5}, "wrong_share must be 0 to 1, not 1.5"),
        ({"wrong_share": float("nan")}, "wrong_share must be 0 to 1, not nan"),
        (
            {"wrong_share": 0.1, "data": "x.jsonl"},
            "wrong_share is for generated problems, not for those of data",
        ),
    ],
)
def test_what_cannot_be_is_refused(given, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        settings.Settings(**given)


def test_the_share_of_training_answers_that_is_wrong():
    given = {"task": "addition", "digits": 2, "train_size": 500, "test_size": 50, "seed": 3}
    clean = settings.load_data(settings.Settings(**given))
    noisy = settings.load_data(settings.Settings(**given, wrong_share=0.4))
    assert noisy.test == clean.test
    assert [chat[0] for chat in noisy.train] == [chat[0] for chat in clean.train]
    differ = [a != b for a, b in zip(noisy.train, clean.train, strict=True)]
    assert sum(differ) == 200
    assert noisy == settings.load_data(settings.Settings(**given, wrong_share=0.4))


def test_an_answer_that_all_share_has_no_wrong_one():
    chats = [[{"role": "assistant", "content": "yes"}]] * 3
    with pytest.raises(RecipeError, match="wrong_share=1: all answers are equal"):
        tasks.with_wrong(chats, 1.0, seed=0)
    assert tasks.with_wrong(chats, 0.0, seed=0) == chats
    assert tasks.with_wrong([], 1.0, seed=0) == []
