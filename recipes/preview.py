"""Shows the first examples that a run would train on: the hook `examples` of recipes."""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

from . import chat, pairs, rollouts, settings, tasks, thinking
from .service import RecipeError

Document = dict[str, Any]


def of_conversations(config: Any, count: int, learn: chat.Learned) -> Document:
    """Return the first `count` examples of supervised training."""
    with printed() as about:
        data = settings.load_data(config)
        tokenizer = _tokenizer_of(config)
        examples = chat.render_all(tokenizer, data.train, config.max_length, learn)
        chosen = _first(config.batch_size, len(examples), config.seed, count)
    shown = [_shown(tokenizer, examples[index]) for index in chosen]
    lengths = [len(example.tokens) for example in examples]
    return _document(about, len(data.test), lengths, shown)


def of_pairs(config: Any, count: int, render: Callable[..., chat.Example]) -> Document:
    """Return the first `count` pairs of training, with each answer as a separate example.
    `render` gets the tokenizer, the question and an answer."""
    with printed() as about:
        data = pairs.load_pairs(config)
        tokenizer = _tokenizer_of(config)
        rendered = pairs.render_pairs(
            data.train, lambda before, answer: render(tokenizer, before, answer), config.max_length
        )
        chosen = _first(config.batch_size, len(rendered), config.seed, count)
    shown = [
        _shown(tokenizer, example, title)
        for index in chosen
        for title, example in zip(("chosen", "rejected"), rendered[index], strict=True)
    ]
    lengths = [len(example.tokens) for pair in rendered for example in pair]
    return _document(about, len(data.test), lengths, shown)


def of_questions(
    config: Any, count: int, tokenizer: Any = None
) -> tuple[Document, list[rollouts.Problem]]:
    """Return the first `count` prompts of RL with their right answers, as a document and as
    problems. The default `tokenizer` is the run's."""
    with printed() as about:
        data = settings.load_data(config, tasks.question)
        tokenizer = tokenizer or _tokenizer_of(config)
        questions = rollouts.problems_of(tokenizer, data.train, config)
        chosen = _first(config.groups_per_batch, len(questions), config.seed, count)
    shown: list[Document] = []
    for index in chosen:
        question = questions[index]
        parts = [[tokenizer.decode(question.prompt), False], [question.answer, False]]
        size = len(question.prompt)
        title = "prompt with the right answer"
        shown.append({"title": title, "parts": parts, "tokens": size, "trained": 0})
    lengths = [len(question.prompt) for question in questions]
    return _document(about, len(data.test), lengths, shown), [questions[index] for index in chosen]


def tokenizer_of(model_name: str) -> Any:
    """Load a model's tokenizer from the local cache or the hub, without a service. Raises
    RecipeError if the tokenizer cannot be loaded."""
    from tinker.lib.public_interfaces import sampling_client

    try:
        return sampling_client._load_tokenizer_from_model_info(model_name)
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise RecipeError(f"cannot load the tokenizer of {model_name}: {reason}") from None


def _tokenizer_of(config: Any) -> Any:
    """Return a run's tokenizer, with the setting `thinking` applied. If only the service knows
    which setting the initial weights were trained with, that setting is ignored."""
    tokenizer = tokenizer_of(config.model_name)
    return thinking.applied(tokenizer, thinking.resolved(None, config, {}), config.model_name)


@contextmanager
def printed() -> Iterator[list[str]]:
    """Collect the lines that the `with` block prints, such as the number of examples left out."""
    lines: list[str] = []
    output = io.StringIO()
    with redirect_stdout(output):
        yield lines
    lines += output.getvalue().splitlines()


def _first(batch_size: int, number: int, seed: int, count: int) -> list[int]:
    return tasks.batch_indices(0, max(batch_size, count), number, seed)[: min(count, number)]


def _shown(tokenizer: Any, example: chat.Example, title: str = "") -> Document:
    """Return a dict that describes an example. Each of its `parts` is a list of two values: a text,
    and whether the run trains on this text."""
    parts: list[list[Any]] = []
    start = 0
    trained = [weight > 0 for weight in example.weights]
    for position in range(1, len(trained) + 1):
        if position == len(trained) or trained[position] is not trained[start]:
            parts.append([tokenizer.decode(example.tokens[start:position]), trained[start]])
            start = position
    return {"title": title, "parts": parts, "tokens": len(trained), "trained": sum(trained)}


def _document(
    about: Sequence[str], held_out: int, lengths: Sequence[int], shown: Sequence[Mapping[str, Any]]
) -> Document:
    return {
        "about": list(about),
        "held_out": held_out,
        "lengths": list(lengths),
        "examples": list(shown),
    }
