"""What a run will use of the service, by its settings alone: before any has run.

A recipe's `estimate(values)` gets the values that a grid gives and returns counts by model:

    {"tiny/qwen3": {"prefill": 20_000, "sample": 4_000, "train": 150_000}}

The texts are those that the run itself would read. Their tokens are counted without the model's
tokenizer, which planning does not fetch: the engine's models have a token for each byte, and of
others a word is taken to have one for each four letters. An answer that is sampled is taken to be
as long as the right one.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from . import chat, pairs, rewards, settings, tasks

SOME = 128
"""Texts whose mean length stands for that of all."""

_SPECIAL = re.compile(r"(<\|im_start\|>|<\|im_end\|>)")
_END = 1

Counts = dict[str, dict[str, int]]
T = TypeVar("T")


class Ruler:
    """Stands for a model's tokenizer where only the number of tokens matters."""

    chat_template = "ChatML"
    all_special_ids = (_END,)
    eos_token_id = _END
    bos_token_id = None

    def __init__(self, model: str) -> None:
        self._bytes = model.startswith("tiny/")

    def apply_chat_template(
        self, messages: tasks.Conversation, tokenize: bool, add_generation_prompt: bool = False
    ) -> str:
        """A conversation in the form that most models read."""
        del tokenize
        text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
        return text + ("<|im_start|>assistant\n" if add_generation_prompt else "")

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """As many numbers as there are tokens."""
        del add_special_tokens
        found: list[int] = []
        for part in _SPECIAL.split(text):
            found += [_END] if _SPECIAL.match(part) else [0] * self._size(part)
        return found

    def _size(self, text: str) -> int:
        if self._bytes:
            return len(text.encode())
        lines = text.count("\n")
        return lines + sum(-(-len(word) // 4) for word in text.split())


class Sizes(NamedTuple):
    """Of examples: their number, and the mean tokens of their prompts and answers."""

    number: int
    prompt: float
    answer: float

    @property
    def whole(self) -> float:
        """Tokens that a pass through the model reads: all but the last."""
        return self.prompt + self.answer - 1


class Tally:
    """Tokens by model and kind."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, float]] = {}

    def add(self, model: str, kind: str, tokens: float) -> None:
        """Count tokens of a kind."""
        own = self._found.setdefault(model, {})
        own[kind] = own.get(kind, 0.0) + tokens

    def counts(self) -> Counts:
        """Rounded."""
        return {
            model: {kind: round(tokens) for kind, tokens in own.items()}
            for model, own in self._found.items()
        }


def sizes_of(model: str, conversations: Sequence[tasks.Conversation]) -> Sizes:
    """Of conversations whose last message is the answer."""
    ruler: Any = Ruler(model)
    examples = [example for one in _some(conversations) for example in chat.render(ruler, one)]
    return measured(len(conversations), examples)


def measured(count: int, some: Sequence[chat.Example]) -> Sizes:
    """Of `count` examples, some of which are given."""
    prompts = sum(example.answer for example in some) / len(some)
    return Sizes(count, prompts, sum(len(example.tokens) for example in some) / len(some) - prompts)


def split_sizes(config: settings.Settings) -> tuple[Sizes, Sizes]:
    """Of what is trained on, and of what is held out."""

    def measure() -> tuple[Sizes, Sizes]:
        train, test = settings.load_data(config)
        return sizes_of(config.model_name, train), sizes_of(config.model_name, test)

    return once(config, measure, "split", config.data, config.train_size)


def pair_sizes(config: pairs.Settings, judged: bool = False) -> tuple[Sizes, Sizes]:
    """The same of pairs, for one answer of each; or of verdicts about it."""

    def measure() -> tuple[Sizes, Sizes]:
        train, test = pairs.load_pairs(config)
        model = config.model_name
        return _of_pairs(model, train, judged), _of_pairs(model, test, judged)

    return once(config, measure, "pairs", judged, config.data, config.train_size)


def judged_size(config: settings.Settings) -> float:
    """Tokens that a preference model reads of a question with its right answer."""

    def measure() -> float:
        train, _ = settings.load_data(config)
        said = [pairs.Pair(one[:-1], one[-1]["content"], one[-1]["content"]) for one in train]
        sizes = _of_pairs(config.model_name, said, judged=True)
        return sizes.prompt + sizes.answer

    return once(config, measure, "judged", config.data, config.train_size)


def once(config: settings.Problems, measure: Callable[[], T], *key: object) -> T:
    """Measure once for all configurations that differ in nothing that has part in it. Which seed
    draws the problems hardly changes their lengths."""
    problems = config.task, config.digits, config.length, config.letters, config.test_size
    whole = (config.model_name, *problems, *key)
    if whole not in _known:
        _known[whole] = measure()
    return _known[whole]


_known: dict[tuple[object, ...], Any] = {}


def _of_pairs(model: str, found: Sequence[pairs.Pair], judged: bool) -> Sizes:
    render = rewards.judged if judged else chat.render_answer
    ruler: Any = Ruler(model)
    some = [
        render(ruler, pair.prompt, answer)
        for pair in _some(found)
        for answer in (pair.chosen, pair.rejected)
    ]
    return measured(len(found), some)


def _some(found: Sequence[T]) -> Sequence[T]:
    return found[:: max(1, len(found) // SOME)]


def evaluations(config: settings.Training) -> int:
    """How many a run makes: before some of its steps, and at its end."""
    every = config.eval_every
    return 1 + (-(-config.max_steps // every) if every else 1)


def model_of(config: settings.Place, name: str | None) -> str:
    """The model that is meant by a name: a base model's, or the run's own where it is a
    checkpoint's."""
    base = (
        name is not None and "/" in name and "://" not in name and not name.startswith((".", "/"))
    )
    return name if base and name is not None else config.model_name
