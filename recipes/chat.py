"""Renders conversations as tokens with the chat template, and marks the tokens that the model
learns.
"""

import functools
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from .data_files import Conversation, Message
from .service import RecipeError

if TYPE_CHECKING:
    import tinker

T = TypeVar("T")

_AT_ONCE = 256
"""The maximum number of texts that are tokenized together. The tokenizer's results need much
more memory than the tokens."""

Learned = Literal[
    "all_assistant_messages",
    "last_assistant_turn",
    "last_assistant_message",
    "all_tokens",
    "customized",
]
"""The part of a conversation that is trained on. The names are those of tinker-cookbook's
`TrainOnWhat`."""


class _Turn(NamedTuple):
    """The text of a prompt and the text of its answer. After the end token, the answer may have
    further text from the template."""

    prompt: str
    answer: str


class _Encoded(NamedTuple):
    """The tokens of a prompt, and the tokens of its answer with the end token."""

    prompt: list[int]
    answer: list[int]


class Example(NamedTuple):
    """A conversation as tokens, up to and including the end token of its last answer.

    `weights` has a weight for each token: 1.0 if the token is learned, else 0.0. (A recipe may
    change the weights.) The end token of a learned answer is learned too. The last answer begins
    at the index `answer`.
    """

    tokens: list[int]
    weights: list[float]
    answer: int


def render(
    tokenizer: Any, conversation: Conversation, learn: Learned = "all_assistant_messages"
) -> list[Example]:
    """Return the examples of a conversation. Each learned message ends an example, which contains
    all messages before it. Two examples are joined if the tokens of the second begin with all
    tokens of the first. (Some templates prevent this: they render past messages differently.)"""
    return _render_each(tokenizer, [conversation], learn)


def _render_each(
    tokenizer: Any, conversations: Sequence[Conversation], learn: Learned
) -> list[Example]:
    turns = [_turns(tokenizer, conversation, learn) for conversation in conversations]
    encoded = iter(_encode(tokenizer, [turn for group in turns for turn in group]))
    examples: list[Example] = []
    for group in turns:
        examples += _joined([*islice(encoded, len(group))], learn)
    return examples


def _turns(tokenizer: Any, conversation: Conversation, learn: Learned) -> list[_Turn]:
    learned = [len(conversation) - 1] if learn == "all_tokens" else _learned(conversation, learn)
    return [_turn(tokenizer, conversation[:at], conversation[at]) for at in learned]


def _joined(turns: Sequence[_Encoded], learn: Learned) -> list[Example]:
    examples: list[Example] = []
    for prompt, answer in turns:
        weights = [1.0 if learn == "all_tokens" else 0.0] * len(prompt)
        if examples and prompt[: len(examples[-1].tokens)] == examples[-1].tokens:
            before = examples.pop().weights
            weights[: len(before)] = before
        examples.append(Example(prompt + answer, weights + [1.0] * len(answer), len(prompt)))
    return examples


def _learned(conversation: Conversation, learn: Learned) -> list[int]:
    if learn == "last_assistant_message":
        return [len(conversation) - 1]
    first = 0
    if learn == "last_assistant_turn":
        users = [at for at, message in enumerate(conversation) if message["role"] == "user"]
        first = users[-1] if users else 0
    return [
        at
        for at, message in enumerate(conversation)
        if at >= first
        and message["role"] == "assistant"
        and message.get("trainable", learn != "customized")
    ]


def render_answer(tokenizer: Any, before: Conversation, answer: str) -> Example:
    """Return a question and its answer as an example, with weight only on the answer's tokens."""
    prompt, reply = _encode_turn(tokenizer, before, _answer_of(answer))
    return Example(prompt + reply, [0.0] * len(prompt) + [1.0] * len(reply), len(prompt))


def render_prompt(tokenizer: Any, messages: Conversation) -> tuple[list[int], int]:
    """Return the tokens of a prompt, and the token that ends its answer."""
    prompt, reply = _encode_turn(tokenizer, messages, _answer_of("x"))
    return prompt, reply[-1]


def render_reply(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens that follow the end token of an answer if the user replies with `text`, up
    to the start of the next answer. Raises RecipeError if the template renders an answer
    differently when a message follows."""
    if tokenizer.chat_template is None:
        return _tokens(tokenizer, [f"\nuser: {text}\nassistant:"])[0]
    before = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}]
    after = [*before, {"role": "user", "content": text}]
    _, reply = _encode_turn(tokenizer, before[:1], _answer_of("x"))
    head = tokenizer.apply_chat_template(before[:1], tokenize=False, add_generation_prompt=True)
    head += tokenizer.decode(reply)
    whole: str = tokenizer.apply_chat_template(after, tokenize=False, add_generation_prompt=True)
    if not whole.startswith(head):
        raise RecipeError(
            "the model's chat template changes an answer when a message follows it, so an episode "
            "of several turns cannot keep the sampled tokens"
        )
    return _tokens(tokenizer, [whole[len(head) :]])[0]


def without_special(tokenizer: Any, text: str) -> str:
    """Insert a space into each special token that a text contains, so that text from an
    environment cannot end a message."""
    for special in tokenizer.all_special_tokens:
        text = text.replace(special, f"{special[0]} {special[1:]}")
    return text


def render_all(
    tokenizer: Any,
    conversations: Sequence[Conversation],
    max_length: int,
    learn: Learned = "all_assistant_messages",
) -> list[Example]:
    """Return all examples of at most `max_length` tokens. Raises RecipeError if there are none."""
    examples = _render_each(tokenizer, conversations, learn)
    if not examples:
        raise RecipeError(f"train_on_what={learn}: no message has trainable: true")
    sizes = [len(example.tokens) for example in examples]
    return short_enough(examples, sizes, max_length, "example")


def short_enough(items: Sequence[T], sizes: Sequence[int], max_length: int, kind: str) -> list[T]:
    """Return the items with at most `max_length` tokens, and print how many are left out. Raises
    RecipeError if all are longer. `sizes` has the number of tokens of each item."""
    short = [item for item, size in zip(items, sizes, strict=True) if size <= max_length]
    if not short:
        raise RecipeError(
            f"max_length={max_length} leaves nothing: the shortest {kind} has {min(sizes)} tokens"
        )
    if len(short) < len(items):
        count = f"{len(items) - len(short)} of {len(items)} {kind}s"
        print(f"{count} left out: longer than max_length={max_length}", flush=True)
    return short


def to_datum(example: Example) -> "tinker.Datum":
    """Return the training datum: the inputs, and the targets (shifted by one token) with their
    weights."""
    import numpy as np
    import tinker

    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(example.tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tinker.TensorData.from_numpy(np.array(example.tokens[1:], np.int64)),
            "weights": tinker.TensorData.from_numpy(np.array(example.weights[1:], np.float32)),
        },
    )


def same_text(tokenizer: Any, left: Sequence[int], right: Sequence[int]) -> bool:
    """Return whether two token sequences decode to the same text. Special tokens, and white
    space around the text, are ignored."""
    texts = [tokenizer.decode(list(ids), skip_special_tokens=True).strip() for ids in (left, right)]
    return texts[0] == texts[1]


def _answer_of(text: str) -> Message:
    return {"role": "assistant", "content": text}


def _encode_turn(tokenizer: Any, before: Conversation, answer: Message) -> _Encoded:
    return _encode(tokenizer, [_turn(tokenizer, before, answer)])[0]


def _encode(tokenizer: Any, turns: Sequence[_Turn]) -> list[_Encoded]:
    tokens = _tokens(tokenizer, [text for turn in turns for text in turn])
    if tokenizer.chat_template is not None:
        answers = [_until_end(tokenizer, answer) for answer in tokens[1::2]]
        return [*map(_Encoded, tokens[::2], answers)]
    start = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    return [
        _Encoded(start + prompt, [*answer, tokenizer.eos_token_id])
        for prompt, answer in zip(tokens[::2], tokens[1::2], strict=True)
    ]


def _tokens(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    tokens: list[list[int]] = []
    for start in range(0, len(texts), _AT_ONCE):
        batch = texts[start : start + _AT_ONCE]
        tokens += tokenizer(batch, add_special_tokens=False)["input_ids"]
    return tokens


def _turn(tokenizer: Any, before: Conversation, answer: Message) -> _Turn:
    if tokenizer.chat_template is None:
        return _plain_turn(before, answer)
    prompt = _by_template(tokenizer, before, add_generation_prompt=True)
    whole = _by_template(tokenizer, [*before, answer])
    if not whole.startswith(prompt):
        raise RecipeError(
            "the model's chat template does not continue its own prompt, so the assistant's tokens "
            "cannot be identified"
        )
    rendered = whole[len(prompt) :]
    _check_message(rendered, answer, "an answer")
    for message in before:
        if message["role"] != "assistant":  # templates drop thoughts of past answers on purpose
            _check_message(prompt, message, f"a message of the role {message['role']}")
    for tool in _tools_of(before):
        _check_whole(prompt, [tool["function"]["name"]], "the tools")
    return _Turn(prompt, rendered)


def _tools_of(messages: Conversation) -> list[dict[str, Any]]:
    return messages[0].get("tools", []) if messages else []


_FOR_TEMPLATES = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name")


def _by_template(tokenizer: Any, messages: Conversation, **options: bool) -> str:
    """Render messages. Raises RecipeError if the template refuses them."""
    more = {"tools": tools} if (tools := _tools_of(messages)) else {}
    plain = [{key: m[key] for key in _FOR_TEMPLATES if key in m} for m in messages]
    try:
        return tokenizer.apply_chat_template(plain, tokenize=False, **options, **more)
    except Exception as error:
        if not type(error).__module__.startswith("jinja2"):  # do not import jinja2 only for this
            raise
        reason = " ".join(str(error).split())[:200]
        roles = ", ".join(message["role"] for message in messages[:8])
        raise RecipeError(
            f"the model's chat template refuses a conversation ({roles}): {reason}"
        ) from None


def _check_message(rendered: str, message: Message, noun: str) -> None:
    _check_whole(rendered, [message["content"]], noun)
    for key in ("reasoning_content", "name"):
        if key in message:
            _check_whole(rendered, [message[key]], f"{noun} ({key})")
    for call in message.get("tool_calls", ()):
        function = call["function"]
        _check_whole(rendered, [function["name"]], f"{noun} (tool_calls)")
        for text in _leaves(function["arguments"]):
            # Templates write arguments as JSON, each in its own way.
            forms = [text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]]
            _check_whole(rendered, forms, f"{noun} (tool_calls)")


def _leaves(value: Any) -> Iterator[str]:
    """Yield all keys and strings in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)


def _check_whole(rendered: str, forms: Sequence[str], noun: str) -> None:
    if any(text in rendered for text in forms):
        return
    if not any("".join(text.split()) in "".join(rendered.split()) for text in forms):
        raise RecipeError(
            f"the model's chat template leaves out a part of {noun}, so the model would not "
            f"see it: {' '.join(forms[0].split())[:100]!r}"
        )


def _until_end(tokenizer: Any, tokens: list[int]) -> list[int]:
    special = _special_ids(tokenizer)
    for position in reversed(range(len(tokens))):
        if tokens[position] in special:
            return tokens[: position + 1]
    return [*tokens, tokenizer.eos_token_id]


@functools.lru_cache(maxsize=4)  # transformers makes a new list at each access
def _special_ids(tokenizer: Any) -> frozenset[int]:
    return frozenset(tokenizer.all_special_ids)


def _plain_turn(before: Conversation, answer: Message) -> _Turn:
    for message in (*before, answer):
        for key in ("tools", "tool_calls", "reasoning_content", "name"):
            if key in message:
                raise RecipeError(
                    f"the model has no chat template for {key}: write it into content, in the form "
                    "that the model should see"
                )
    lines = "".join(f"{message['role']}: {message['content']}\n" for message in before)
    return _Turn(f"{lines}assistant:", f" {answer['content']}")
