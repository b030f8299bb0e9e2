import re

import pytest

from sweeper.recipes import distill, policy_gradient


def test_the_weights_of_teachers_add_up_to_one():
    assert distill.teachers_of("tiny/teacher") == [(1.0, "tiny/teacher")]
    teachers = distill.teachers_of("3*tiny/teacher, 1*tinker://a:train:0/weights/final")
    assert teachers == [(0.75, "tiny/teacher"), (0.25, "tinker://a:train:0/weights/final")]


@pytest.mark.parametrize("text", ["", "a,", "0*a", "x*a", "-1*a", "nan*a", "1*"])
def test_teachers_that_are_none_are_refused(text):
    with pytest.raises(ValueError, match=re.escape(f"teacher={text}: write a name, or")):
        distill.Config(teacher=text)


def test_what_comes_after_a_token_counts_less_and_less():
    assert policy_gradient.discounted([1.0, 2.0, 4.0], 0.0) == [1.0, 2.0, 4.0]
    assert policy_gradient.discounted([1.0, 2.0, 4.0], 0.5) == [3.0, 4.0, 4.0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kl_discount_factor": 1.5}, "kl_discount_factor must be 0 to 1, not 1.5"),
        ({"teacher_temperature": -1.0}, "teacher_temperature must not be negative, not -1.0"),
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"kl_top_k": -1}, "kl_top_k must be at least 0, not -1"),
        ({"kl_top_k": 8, "temperature": 0.5}, "kl_top_k=8 needs temperature=1.0, not 0.5"),
        (
            {"kl_top_k": 8, "loss_fn": "ppo"},
            "kl_top_k=8 needs loss_fn=importance_sampling, not ppo",
        ),
    ],
)
def test_bad_values_are_refused(given, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        distill.Config(**given)
