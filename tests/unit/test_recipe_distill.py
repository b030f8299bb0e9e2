import re

import pytest

from sweeper.recipes import distill, policy_gradient


def test_the_weights_of_teachers_add_up_to_one():
    assert distill.teachers_of("tiny/teacher") == [(1.0, "tiny/teacher")]
    teachers = distill.teachers_of("3*tiny/teacher, 1*tinker://a:train:0/weights/final")
    assert teachers == [(0.75, "tiny/teacher"), (0.25, "tinker://a:train:0/weights/final")]


@pytest.mark.parametrize("text", ["", "a,", "0*a", "x*a", "-1*a", "nan*a", "1*"])
def test_a_malformed_list_of_teachers_is_refused(text):
    with pytest.raises(ValueError, match=re.escape(f"teacher={text}: write a name, or")):
        distill.Config(teacher=text)


def test_later_rewards_are_discounted():
    assert policy_gradient.discounted([1.0, 2.0, 4.0], 0.0) == [1.0, 2.0, 4.0]
    assert policy_gradient.discounted([1.0, 2.0, 4.0], 0.5) == [3.0, 4.0, 4.0]
