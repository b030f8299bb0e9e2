import pytest

from sweeper.recipes import graders
from sweeper.recipes.graders import Question
from sweeper.recipes.service import RecipeError


@pytest.mark.parametrize(
    ("answer", "text", "score"),
    [
        ("42", "42", 1),
        ("42", "so 6 * 7 = 42.", 1),
        ("42", "42 is wrong, it is 41", 0),
        ("1,234.5", "about 1234.5", 1),
        ("-3e4", "it is -30000", 1),
        ("0.12", "12%", 1),
        ("0.75", "that makes 3/4", 1),
        ("1/0", "1/0", 0),
        ("#### 7", "seven: 7", 1),
        ("7", "seven", 0),
    ],
)
def test_numbers(answer, text, score):
    assert graders.numeric(Question("?", answer), text).score == score


@pytest.mark.parametrize(
    ("answer", "text", "score"),
    [
        ("B", "B", 1),
        ("B", "(B)", 1),
        ("B", "B) green", 1),
        ("B", "The answer is B, since ...", 1),
        ("B", "Answer: A. No, answer: B", 1),
        ("B", "I would say B.", 1),
        ("B", "green", 1),
        ("green", "B", 1),
        ("B", "It looks green to me", 1),
        ("B", "It is neither red nor green", 0),
        ("A", "A dog barked; green", 0),
        ("B", "Z", 0),
        ("B", "", 0),
    ],
)
def test_choices(answer, text, score):
    question = Question("?", answer, ("red", "green", "blue"))
    assert graders.choice(question, text).score == score


def test_exact_and_regex():
    assert graders.exact(Question("?", "ab"), " ab\n").score == 1
    assert graders.exact(Question("?", "ab"), "ab.").score == 0
    assert graders.regex(Question("?", "(?i)^h(i|ello)"), "Hello you").score == 1
    assert graders.regex(Question("?", "^hi$"), "oh hi").score == 0


@pytest.mark.parametrize(
    ("name", "answer", "choices", "message"),
    [
        ("regex", "(", (), "not a regular expression"),
        ("numeric", "none", (), "has no number"),
        ("choice", "A", (), 'needs "choices"'),
        ("choice", "C", ("red", "green"), "is not one of the choices"),
    ],
)
def test_an_answer_that_cannot_be_judged_by_is_told(name, answer, choices, message):
    assert message in (graders.check(name, answer, choices) or "")


def test_an_unknown_grader_is_told():
    with pytest.raises(RecipeError, match="unknown grader 'exakt': use exact, numeric"):
        graders.Graders(1.0, 64).get("exakt")
