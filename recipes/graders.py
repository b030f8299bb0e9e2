"""Graders of answers: built-in graders, which return 1.0 or 0.0, and user functions, which may
return any number."""

# exact     the text is the answer, apart from surrounding space
# numeric   the last number in the text equals the answer's
# regex     the answer, a regular expression, is found in the text
# choice    the text chooses the right option, by its letter or by naming it
# file.py:f a user function; see sandbox.py

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .sandbox import Sandbox, Scored
from .service import RecipeError

NAMES = ("exact", "numeric", "regex", "choice")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?%?(?:\s*/\s*\d+)?")
_CHOICES = (
    re.compile(r"(?i:answer|choice|option)(?:\s+is)?\s*[:=]?\s*\(?([A-Z])\b"),
    re.compile(r"^\s*\(?([A-Z])(?:[).:]|\s*$)", re.MULTILINE),
    re.compile(r"\b([A-Z])\W*\Z"),
)
_LONGEST = 20_000
"""The largest number of characters of a text that are searched."""


class Question(NamedTuple):
    """The parts of an item that a grader sees: the question's text, its answer, and
    any choices.
    """

    text: str
    answer: str
    choices: tuple[str, ...] = ()


class Grade(NamedTuple):
    """A score. If a user function failed, the score is 0 and `error` is the reason."""

    score: float
    error: str | None = None


Grader = Callable[[Question, str], Grade]


def exact(question: Question, text: str) -> Grade:
    """Return 1.0 if the text equals the answer, else 0.0. White space around both is ignored."""
    return Grade(float(text.strip() == question.answer.strip()))


def numeric(question: Question, text: str) -> Grade:
    """Return 1.0 if the last number of the text is close to the last number of the answer, else
    0.0. The tolerance is 0.000001, or a millionth of the answer's number if that number exceeds 1.
    """
    right, value = number_in(question.answer), number_in(text)
    if right is None or value is None:
        return Grade(0.0)
    return Grade(float(abs(value - right) <= 1e-6 * max(1.0, abs(right))))


def regex(question: Question, text: str) -> Grade:
    """Return 1.0 if the answer, a regular expression, matches a part of the text, else 0.0."""
    return Grade(float(re.search(question.answer, text[:_LONGEST]) is not None))


def choice(question: Question, text: str) -> Grade:
    """Return 1.0 if the text chooses the same option as the answer, else 0.0."""
    right = chosen(question.answer, question.choices)
    return Grade(float(right is not None and chosen(text, question.choices) == right))


def chosen(text: str, choices: Sequence[str]) -> int | None:
    """Return the index of the choice that equals the text, else of the choice whose letter the
    text gives, else of the only choice that the text contains. Return None if no choice matches."""
    plain = text.strip()
    folded = [option.strip().casefold() for option in choices]
    if plain.casefold() in folded:
        return folded.index(plain.casefold())
    for pattern in _CHOICES:
        letters = [LETTERS.index(letter.upper()) for letter in pattern.findall(text[:_LONGEST])]
        valid = [letter for letter in letters if letter < len(choices)]
        if valid:
            return valid[-1]
    named = [index for index, option in enumerate(folded) if option and option in plain.casefold()]
    return named[0] if len(named) == 1 else None


def number_in(text: str) -> float | None:
    """Return the last number of a text, such as 1,234.5, -3e4, 12% (0.12) or 3/4 (0.75). None if
    there is no number, or if it is a fraction with the denominator 0."""
    numbers = _NUMBER.findall(text[-_LONGEST:])
    if not numbers:
        return None
    above, slash, below = numbers[-1].replace(",", "").partition("/")
    value = float(above.rstrip("% ")) / (100 if "%" in above else 1)
    if not slash:
        return value
    return value / float(below) if float(below) else None


def check(name: str, answer: str, choices: Sequence[str]) -> str | None:
    """Return the reason why the grader `name` cannot use the right answer `answer`; None if it can
    use this answer."""
    if name == "regex":
        try:
            re.compile(answer)
        except re.error as error:
            return f"the answer is not a regular expression: {error}"
    if name == "numeric" and number_in(answer) is None:
        return f"the answer {answer!r} has no number"
    if name == "choice" and not choices:
        return 'the grader choice needs "choices", a list of texts'
    if name == "choice" and chosen(answer, choices) is None:
        return f"the answer {answer!r} is not one of the choices"
    return None


class Graders:
    """The graders of a run. User functions run in processes, which `close` ends."""

    def __init__(self, seconds: float, megabytes: int) -> None:
        self._limits = seconds, megabytes
        self._sandboxes: dict[str, Sandbox] = {}
        self._prints: dict[str, str] = {}

    def get(self, name: str) -> Grader:
        """Return the grader `name`. Raises RecipeError for an unknown name."""
        built_in = {"exact": exact, "numeric": numeric, "regex": regex, "choice": choice}
        if name in built_in:
            return built_in[name]
        if ":" not in name:
            raise RecipeError(f"unknown grader {name!r}: use {', '.join(NAMES)} or file.py:name")
        sandbox = self.sandbox(name)

        def by_function(question: Question, text: str) -> Grade:
            scored: Scored = sandbox(question.text, text, question.answer)
            return Grade(scored.value or 0.0, scored.error)

        return by_function

    def sandbox(self, name: str) -> Sandbox:
        """Return the process that calls a user function. Start the process if needed."""
        if name not in self._sandboxes:
            self._sandboxes[name] = Sandbox(name, *self._limits)
        return self._sandboxes[name]

    def fingerprint(self, name: str) -> str:
        """Return the grader's name. For a user function, a hash of its file is added. A recorded
        answer with another fingerprint is graded again."""
        if name in NAMES:
            return name
        if name not in self._prints:
            with open(name.rpartition(":")[0], "rb") as file:
                self._prints[name] = f"{name}@{hashlib.sha256(file.read()).hexdigest()[:12]}"
        return self._prints[name]

    def close(self) -> None:
        """End the processes."""
        for sandbox in self._sandboxes.values():
            sandbox.close()
