"""Preferences: pairs of answers to a question, one of them preferred.

They are read from JSONL or made from generated problems, and split like conversations: a training
part, and a held-out part that is the same for every seed. A line of a file is one of

    {"prompt": "..." or [messages], "chosen": "...", "rejected": "..."}
    {"chosen": [messages], "rejected": [messages]}, which differ only in the last message
    {"comparison": {"prompt_conversation", "completion_A", "completion_B"}, "label": "A" or "B"}

The last is tinker-cookbook's format; its ties are left out.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import chz

from . import chat, settings, tasks
from .service import RecipeError
from .tasks import Conversation


@chz.chz
class Settings(settings.Settings):
    """Settings of a run on pairs, added to those of every run that trains."""

    data: str | None = chz.field(
        default=None,
        doc='JSONL of {"prompt", "chosen", "rejected"} for a task\'s right and wrong answers',
    )
    wrong_share: float = chz.field(
        default=0.0, doc="generated pairs to train on that prefer the wrong answer: 0.1 is 10 %"
    )
    batch_size: int = chz.field(default=32, doc="pairs a step")

    @chz.validate
    def _check_pairs(self) -> None:
        settings.check_at_least(self, batch_size=1)


Say = Callable[[str], RecipeError]
"""Makes an error about a line, with its place."""


class Pair(NamedTuple):
    """A question as messages, the preferred answer, and the other one."""

    prompt: Conversation
    chosen: str
    rejected: str


class PairSplit(NamedTuple):
    """Pairs to train on, and pairs held out."""

    train: list[Pair]
    test: list[Pair]


class Rendered(NamedTuple):
    """A pair as tokens. Only the tokens of the two answers have weight."""

    chosen: chat.Example
    rejected: chat.Example


def load_pairs(config: settings.Settings) -> PairSplit:
    """Load the configured pairs from a file, or make them from a task's problems: right answers
    against wrong ones.

    A held-out problem has the same wrong answer for every seed. `wrong_share` is the share of
    generated training pairs that prefer the wrong one.
    """
    if config.data is not None:
        return read_pairs(config.data, config.test_size)
    data = settings.load_data(chz.replace(config, wrong_share=0.0))
    train = spoiled(data.train, f"pairs/{config.seed}")
    test = spoiled(data.test, "pairs/held out")
    return PairSplit(swapped(train, config.wrong_share, config.seed), test)


def spoiled(conversations: Sequence[Conversation], stream: str) -> list[Pair]:
    """Pair each conversation's answer with a copy in which one character is changed: the mistake
    of a model that has nearly learned the task.

    The new character occurs in some answer. Raises RecipeError if all answers together have only
    one distinct character, so that no answer can be wrong.
    """
    draw = random.Random(stream)
    letters = sorted({letter for said in conversations for letter in said[-1]["content"]})
    if len(letters) < 2:
        raise RecipeError("the answers are all alike: there is no wrong one to prefer them to")
    found: list[Pair] = []
    for said in conversations:
        right = said[-1]["content"]
        at = draw.randrange(len(right))
        other = draw.choice([letter for letter in letters if letter != right[at]])
        found.append(Pair(said[:-1], right, right[:at] + other + right[at + 1 :]))
    return found


def swapped(pairs: Sequence[Pair], share: float, seed: int) -> list[Pair]:
    """Swap the answers of a share of the pairs, like judges who sometimes prefer the
    worse answer.
    """
    chosen = random.Random(f"swapped/{seed}").sample(range(len(pairs)), round(share * len(pairs)))
    wrong = set(chosen)
    return [
        Pair(pair.prompt, pair.rejected, pair.chosen) if index in wrong else pair
        for index, pair in enumerate(pairs)
    ]


def read_pairs(path: str, test_size: int) -> PairSplit:
    """Load the pairs of a JSONL file, `test_size` of them held out.

    Copies of a held-out pair are left out of the training part. Raises RecipeError, with file and
    line, for an invalid pair.
    """
    rows = tasks.read_rows(path)
    read = [_pair(row, f"{path}:{number}") for number, row in rows]
    found = [pair for pair in read if pair is not None]
    if ties := len(read) - len(found):
        print(f"{ties} of {len(read)} comparisons left out: ties")
    return PairSplit(*tasks.hold_out(found, test_size, path, "pairs"))


def render_pairs(
    pairs: Sequence[Pair], render: Callable[[Conversation, str], chat.Example], max_length: int
) -> list[Rendered]:
    """Render both answers of each pair as tokens. A pair is left out if one of them is longer than
    `max_length`. Raises RecipeError if none is left."""
    rendered = [
        Rendered(render(pair.prompt, pair.chosen), render(pair.prompt, pair.rejected))
        for pair in pairs
    ]
    sizes = [max(len(example.tokens) for example in pair) for pair in rendered]
    return chat.short_enough(rendered, sizes, max_length, "pair")


def _pair(row: Any, where: str) -> Pair | None:
    """Parse a line's pair; None for a tie."""

    def wrong(what: str) -> RecipeError:
        return RecipeError(f"{where}: {what}")

    if not isinstance(row, dict):
        raise wrong("expected an object")
    if "comparison" in row:
        return _compared(row, wrong)
    chosen, rejected = row.get("chosen"), row.get("rejected")
    if chosen is None or rejected is None:
        raise wrong('expected "prompt", "chosen" and "rejected"')
    if "prompt" in row:
        prompt = _messages(row["prompt"], wrong)
        return _checked(prompt, _answer(chosen, wrong), _answer(rejected, wrong), wrong)
    better, worse = _messages(chosen, wrong), _messages(rejected, wrong)
    if better[:-1] != worse[:-1] or len(better) < 2:
        raise wrong('"chosen" and "rejected" must be alike but for their last message')
    return _checked(better[:-1], _answer(better[-1:], wrong), _answer(worse[-1:], wrong), wrong)


def _compared(row: Mapping[str, Any], wrong: Say) -> Pair | None:
    compared, label = row["comparison"], row.get("label")
    if label not in ("A", "B", "Tie") or not isinstance(compared, dict):
        raise wrong('expected "comparison" and the label "A", "B" or "Tie"')
    if label == "Tie":
        return None
    prompt = _messages(compared.get("prompt_conversation"), wrong)
    a, b = (_answer(compared.get(f"completion_{side}"), wrong) for side in "AB")
    return _checked(prompt, a, b, wrong) if label == "A" else _checked(prompt, b, a, wrong)


def _checked(prompt: Conversation, chosen: str, rejected: str, wrong: Say) -> Pair:
    if chosen == rejected:
        raise wrong("the two answers are the same")
    return Pair(prompt, chosen, rejected)


def _messages(value: Any, wrong: Say) -> Conversation:
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value or not all(map(tasks.is_message, value)):
        raise wrong("expected a text or a list of messages with role and content")
    return [{"role": message["role"], "content": message["content"]} for message in value]


def _answer(value: Any, wrong: Say) -> str:
    """Parse an answer: a text, or one message of the assistant's."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and len(value) == 1 and tasks.is_message(value[0]):
        if value[0]["role"] != "assistant":
            raise wrong("an answer must be the assistant's")
        return value[0]["content"]
    raise wrong("an answer must be a text or one message")
