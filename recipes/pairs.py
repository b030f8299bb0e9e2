"""Preferences: pairs of answers to a question, of which one is preferred. They are read from
JSONL or made from generated problems. The held-out part is the same for every seed."""

# A line of a file is one of these. The last is tinker-cookbook's format; its ties are left out.
#
# {"prompt": "..." or [messages], "chosen": "...", "rejected": "..."}
# {"chosen": [messages], "rejected": [messages]}, which differ only in the last message
# {"comparison": {"prompt_conversation", "completion_A", "completion_B"}, "label": "A" or "B"}

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import chz

from . import chat, data_files, settings, tasks
from .data_files import Conversation, Row
from .service import RecipeError


@chz.chz
class Settings(settings.Settings):
    """Settings of a run that trains on pairs."""

    data: str | None = chz.field(
        default=None, doc='JSONL of {"prompt", "chosen", "rejected"}; default: pairs of the task'
    )
    wrong_share: float = chz.field(
        default=0.0,
        doc="share of generated training pairs that prefer the wrong answer, such as 0.1",
    )
    batch_size: int = chz.field(default=32, doc="pairs per step")

    @chz.validate
    def _check_pairs(self) -> None:
        settings.check_at_least(self, batch_size=1)


def lacks(values: Mapping[str, Any]) -> list[str]:
    """Return a list with a line about the first mistake in the file `data`, or an empty list."""
    mistake = settings.check_data(values, pair, hold_out).mistake
    return [] if mistake is None else [mistake]


def notes(values: Mapping[str, Any]) -> list[str]:
    """Return lines for the plan of a run; see `settings.notes`."""
    return settings.notes(values, settings.check_data(values, pair, hold_out))


class Pair(NamedTuple):
    """A question as messages, the preferred answer, and the other answer."""

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
    """Load the pairs of the file `data`. Without `data`, make a pair of a right and a wrong answer
    for each problem of the task. The held-out pairs are the same for every seed. `wrong_share` is
    the share of generated training pairs that prefer the wrong answer."""
    if config.data is not None:
        return read_pairs(config.data, config.test_size)
    data = settings.load_data(chz.replace(config, wrong_share=0.0))
    train = spoiled(data.train, f"pairs/{config.seed}")
    test = spoiled(data.test, "pairs/held out")
    return PairSplit(swapped(train, config.wrong_share, config.seed), test)


def spoiled(conversations: Sequence[Conversation], stream: str) -> list[Pair]:
    """Pair each conversation's answer with a copy in which one character is changed, since a model
    that has nearly learned the task makes such mistakes. The new character occurs in some answer.
    Raises RecipeError if all answers consist of the same character."""
    draw = random.Random(stream)
    letters = sorted(
        {letter for conversation in conversations for letter in conversation[-1]["content"]}
    )
    if len(letters) < 2:
        raise RecipeError(
            "all answers consist of the same character, so no wrong answer can be made"
        )
    spoiled_pairs: list[Pair] = []
    for conversation in conversations:
        right = conversation[-1]["content"]
        at = draw.randrange(len(right))
        other = draw.choice([letter for letter in letters if letter != right[at]])
        spoiled_pairs.append(Pair(conversation[:-1], right, right[:at] + other + right[at + 1 :]))
    return spoiled_pairs


def swapped(pairs: Sequence[Pair], share: float, seed: int) -> list[Pair]:
    """Swap the answers in a share of the pairs, to simulate judges who sometimes prefer the
    worse answer."""
    chosen = random.Random(f"swapped/{seed}").sample(range(len(pairs)), round(share * len(pairs)))
    wrong = set(chosen)
    return [
        Pair(pair.prompt, pair.rejected, pair.chosen) if index in wrong else pair
        for index, pair in enumerate(pairs)
    ]


def read_pairs(path: str, test_size: int) -> PairSplit:
    """Load the pairs of a JSONL file, and hold out `test_size` of them. Copies of a held-out
    pair are removed from the training part. Raises RecipeError, with file and line, for an
    invalid pair."""
    return hold_out(data_files.read(path, pair), test_size, path)


def hold_out(read: Sequence[Pair | None], test_size: int, path: str) -> PairSplit:
    """Leave out the ties, and split the pairs of a file; see `tasks.hold_out`."""
    held_out = [pair for pair in read if pair is not None]
    if ties := len(read) - len(held_out):
        print(f"ties left out: {ties} of {len(read)} comparisons")
    return PairSplit(*tasks.hold_out(held_out, test_size, path, "pairs"))


def render_pairs(
    pairs: Sequence[Pair], render: Callable[[Conversation, str], chat.Example], max_length: int
) -> list[Rendered]:
    """Render both answers of each pair as tokens. A pair is left out if one of its answers, with
    the question, is longer than `max_length`. Raises RecipeError if no pair is left."""
    rendered = [
        Rendered(render(pair.prompt, pair.chosen), render(pair.prompt, pair.rejected))
        for pair in pairs
    ]
    sizes = [max(len(example.tokens) for example in pair) for pair in rendered]
    return chat.short_enough(rendered, sizes, max_length, "pair")


def pair(row: Row) -> Pair | None:
    """Return the pair in a line; None for a tie. Raises RecipeError for an invalid pair."""
    if "comparison" in row:
        return _compared(row)
    chosen, rejected = row.get("chosen"), row.get("rejected")
    if chosen is None or rejected is None:
        raise row.wrong('expected "prompt", "chosen" and "rejected"')
    if isinstance(chosen, list) and isinstance(rejected, list) and len(chosen) > 1:
        return _of_conversations(row, chosen, rejected)
    if "prompt" not in row:
        raise row.wrong('expected "prompt", or conversations as "chosen" and "rejected"')
    return _checked(row, row.get("prompt"), chosen, rejected)


def _of_conversations(row: Row, chosen: Any, rejected: Any) -> Pair:
    """Make a pair of two conversations that differ only in their last message. A prompt in the row
    must be equal to the messages before the answer, or to the text of the message just before the
    answer."""
    better, worse = row.messages(chosen, '"chosen"'), row.messages(rejected, '"rejected"')
    if better[:-1] != worse[:-1]:
        raise row.wrong('"chosen" and "rejected" must differ only in their last message')
    if "prompt" in row and (value := row.get("prompt")) is not None:
        prompt = better[:-1]
        if value != prompt[-1]["content"] and _prompt(row, value) != prompt:
            raise row.wrong('"prompt" is not the beginning of "chosen" and "rejected"')
    return _checked(row, better[:-1], better[-1:], worse[-1:])


def _compared(row: Row) -> Pair | None:
    compared, label = row.get("comparison"), row.get("label")
    if label not in ("A", "B", "Tie") or not isinstance(compared, dict):
        raise row.wrong('expected "comparison" and the label "A", "B" or "Tie"')
    inner = Row(compared, row.where)
    prompt = inner.get("prompt_conversation")
    a, b = (inner.get(f"completion_{side}") for side in "AB")
    if extra := inner.unused():
        raise row.wrong(f'"comparison" has "{extra[0]}", which would be lost: remove it')
    if label == "Tie":
        return None
    return _checked(row, prompt, a, b) if label == "A" else _checked(row, prompt, b, a)


def _checked(row: Row, prompt: Any, chosen: Any, rejected: Any) -> Pair:
    question = _prompt(row, prompt)
    better, worse = _answer(row, chosen), _answer(row, rejected)
    if better == worse:
        raise row.wrong("the two answers are the same")
    return Pair(question, row.answer(better, "the preferred answer"), worse)


def _prompt(row: Row, value: Any) -> Conversation:
    """Check a prompt, which is a string or a list of messages. Return it as messages."""
    if isinstance(value, str):
        return [{"role": "user", "content": row.text(value, "the prompt")}]
    if not isinstance(value, list):
        raise row.wrong("the prompt: expected a text or a list of messages")
    return row.messages(value, "the prompt")


def _answer(row: Row, value: Any) -> str:
    """Check an answer, which is a string or a list with one message of the assistant. Return the
    text of the answer, which may be empty."""
    if isinstance(value, str):
        return row.text(value, "an answer")
    if not isinstance(value, list) or len(value) != 1:
        raise row.wrong("an answer must be a text or one message")
    [message] = value
    if isinstance(message, dict) and message.get("role") != "assistant":
        raise row.wrong('an answer must have the role "assistant"')
    return row.messages(value, "an answer")[0]["content"]
