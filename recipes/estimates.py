"""Estimates how many tokens a run will use, for each model and kind (`prefill`, `sample` and
`train`), from its settings and data. Tokens are counted without the model's tokenizer, because
planning downloads nothing."""

# The engine's models have one token per byte. For other models, a word counts as one token per four
# letters. A sampled answer is assumed to be as long as the right one.

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from . import chat, data_files, pairs, rewards, settings, suites, tasks

SOME = 128
"""Of many conversations or pairs, at least this many and fewer than twice as many are measured. All
of them are assumed to have the mean length of the measured ones."""

_SPECIAL = re.compile(r"(<\|im_start\|>|<\|im_end\|>)")
_END = 1

Counts = dict[str, dict[str, int]]
T = TypeVar("T")


class Ruler:
    """A stand-in for a model's tokenizer that only counts tokens."""

    chat_template = "ChatML"
    all_special_ids = (_END,)
    eos_token_id = _END
    bos_token_id = None

    def __init__(self, model: str) -> None:
        self._bytes = model.startswith("tiny/")

    def apply_chat_template(
        self,
        messages: tasks.Conversation,
        tokenize: bool,
        add_generation_prompt: bool = False,
        tools: Sequence[Any] = (),
    ) -> str:
        """Render a conversation in the format ChatML."""
        del tokenize
        text = "".join(json.dumps(tool) for tool in tools)
        for message in messages:
            parts = [value for key, value in message.items() if key != "role"]
            whole = "".join(part if isinstance(part, str) else json.dumps(part) for part in parts)
            text += f"<|im_start|>{message['role']}\n{whole}<|im_end|>\n"
        return text + ("<|im_start|>assistant\n" if add_generation_prompt else "")

    def __call__(
        self, texts: Sequence[str], add_special_tokens: bool = False
    ) -> dict[str, list[list[int]]]:
        """Return a dict whose `input_ids` has a list of token ids for each text. Only the lengths
        of the lists are meaningful."""
        del add_special_tokens
        return {"input_ids": [*map(self._encode, texts)]}

    def _encode(self, text: str) -> list[int]:
        tokens: list[int] = []
        for part in _SPECIAL.split(text):
            tokens += [_END] if _SPECIAL.match(part) else [0] * self._size(part)
        return tokens

    def _size(self, text: str) -> int:
        if self._bytes:
            return len(text.encode())
        lines = text.count("\n")
        return lines + sum(-(-len(word) // 4) for word in text.split())


class Sizes(NamedTuple):
    """The number of examples, and the mean numbers of tokens of a prompt and of an answer."""

    number: int
    prompt: float
    answer: float

    @property
    def whole(self) -> float:
        """The mean number of tokens that a pass over an example processes. The last token of an
        example is only a target."""
        return self.prompt + self.answer - 1


class Tally:
    """Token counts by model and kind."""

    def __init__(self) -> None:
        self._by_model: dict[str, dict[str, float]] = {}

    def add(self, model: str, kind: str, tokens: float) -> None:
        """Add tokens of a kind."""
        of_model = self._by_model.setdefault(model, {})
        of_model[kind] = of_model.get(kind, 0.0) + tokens

    def counts(self) -> Counts:
        """Return the rounded counts."""
        return {
            model: {kind: round(tokens) for kind, tokens in by_kind.items()}
            for model, by_kind in self._by_model.items()
        }


def sizes_of(model: str, conversations: Sequence[tasks.Conversation]) -> Sizes:
    """Return the sizes of conversations whose last message is the answer."""
    ruler: Any = Ruler(model)
    examples = [
        e for conversation in _some(conversations) for e in chat.render(ruler, conversation)
    ]
    return measured(len(conversations), examples)


def _times(sizes: Sizes, more: float) -> Sizes:
    return sizes._replace(number=round(sizes.number * more))


def measured(count: int, examples: Sequence[chat.Example]) -> Sizes:
    """Estimate the sizes of `count` examples from the means of the sample `examples`."""
    prompts = sum(example.answer for example in examples) / len(examples)
    return Sizes(
        count, prompts, sum(len(example.tokens) for example in examples) / len(examples) - prompts
    )


def split_sizes(config: settings.Settings) -> tuple[Sizes, Sizes]:
    """Return the sizes of the training and the held-out examples."""

    def measure() -> tuple[Sizes, Sizes]:
        if config.data is None:
            (train, test), more = settings.load_data(config), 1.0
        else:
            rows, more = data_files.sample(config.data, tasks.conversation)
            train, test = tasks.split(rows, config.test_size, config.data)
        return _times(sizes_of(config.model_name, train), more), sizes_of(config.model_name, test)

    return once(config, measure, "split", config.data, config.train_size)


def pair_sizes(config: pairs.Settings, judged: bool = False) -> tuple[Sizes, Sizes]:
    """Return the sizes of the training pairs and of the held-out pairs. The means are over both
    answers of each pair. With `judged`, an answer counts as prompt, and its verdict as answer."""

    def measure() -> tuple[Sizes, Sizes]:
        if config.data is None:
            (train, test), more = pairs.load_pairs(config), 1.0
        else:
            rows, more = data_files.sample(config.data, pairs.pair)
            train, test = pairs.hold_out(rows, config.test_size, config.data)
        model = config.model_name
        return _times(_of_pairs(model, train, judged), more), _of_pairs(model, test, judged)

    return once(config, measure, "pairs", judged, config.data, config.train_size)


def judged_size(config: settings.Settings) -> float:
    """Return the mean number of tokens that a preference model reads for one score: a question,
    the right answer and the verdict."""

    def measure() -> float:
        if config.data is None:
            train = settings.load_data(config).train
        else:
            train = data_files.sample(config.data, tasks.conversation)[0]
        judged = [pairs.Pair(row[:-1], row[-1]["content"], row[-1]["content"]) for row in train]
        sizes = _of_pairs(config.model_name, judged, judged=True)
        return sizes.prompt + sizes.answer

    return once(config, measure, "judged", config.data, config.train_size)


def suite_sizes(
    config: settings.Problems, suite: str | None, how: settings.Answering, most: int | None
) -> tuple[Sizes, float]:
    """Return the sizes of the first `most` items of a suite (all items if `most` is None), and
    the mean number of tokens of a sampled answer."""

    def measure() -> tuple[Sizes, float]:
        items = suites.load_suites(config, suite, how.grader)[:most]
        conversations = [
            [*i.messages, {"role": "assistant", "content": i.question.answer}] for i in items
        ]
        sizes = sizes_of(config.model_name, conversations)
        has_answers = any(item.question.answer for item in items)
        return sizes, min(sizes.answer, how.max_tokens) if has_answers else how.max_tokens

    return once(config, measure, "suite", suite, how.grader, most, how.max_tokens)


def once(config: settings.Problems, measure: Callable[[], T], *key: object) -> T:
    """Return the result of `measure`, cached by model, settings of generated problems and `key`.
    Configurations that differ only in their seed share a result, because the seed hardly changes
    lengths."""
    problems = config.task, config.digits, config.length, config.letters, config.test_size
    whole = (config.model_name, *problems, *key)
    if whole not in _cache:
        _cache[whole] = measure()
    return _cache[whole]


_cache: dict[tuple[object, ...], Any] = {}


def _of_pairs(model: str, read_pairs: Sequence[pairs.Pair], judged: bool) -> Sizes:
    render = rewards.judged if judged else chat.render_answer
    ruler: Any = Ruler(model)
    examples = [
        render(ruler, pair.prompt, answer)
        for pair in _some(read_pairs)
        for answer in (pair.chosen, pair.rejected)
    ]
    return measured(len(read_pairs), examples)


def _some(values: Sequence[T]) -> Sequence[T]:
    return values[:: max(1, len(values) // SOME)]


def evaluations(config: settings.Training) -> int:
    """Return the number of evaluations in a run."""
    return times(config.eval_every, config.max_steps)


def times(every: int, max_steps: int) -> int:
    """Return the number of evaluations in a run: before each step that is a multiple of `every`
    (0: only before the first step), and at the end."""
    return 1 + (-(-max_steps // every) if every else 1)


def tally_groups(config: Any) -> Tally:
    """Count the tokens of a run's questions, answers, training and evaluations."""
    train, test = split_sizes(config)
    size, model, tally = sampled_size(config, train), config.model_name, Tally()
    groups = config.max_steps * config.groups_per_batch
    tally.add(model, "prefill", groups * train.prompt)
    tally.add(model, "sample", groups * config.group_size * size)
    tally.add(model, "train", groups * config.group_size * (train.prompt + size - 1))
    times = evaluations(config) * test.number
    tally.add(model, "prefill", times * test.prompt)
    tally.add(model, "sample", times * test.answer)
    return tally


def sampled_size(config: settings.Policy, train: Sizes) -> float:
    """Return the mean number of tokens of a sampled answer."""
    return min(train.answer, config.max_tokens)


def model_of(config: settings.Place, name: str | None) -> str:
    """Return `name` if it is the name of a base model. For a checkpoint or None, return the run's
    model."""
    base = (
        name is not None and "/" in name and "://" not in name and not name.startswith((".", "/"))
    )
    return name if base and name is not None else config.model_name
