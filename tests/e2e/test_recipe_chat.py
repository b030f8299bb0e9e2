import numpy as np
import pytest

from sweeper.recipes import chat, thinking
from sweeper.recipes.service import RecipeError

pytestmark = pytest.mark.e2e

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# As in templates of reasoning models, only the last turn has (empty) thoughts.
THINKING = CHATML.replace(
    "{{ m['content'] }}",
    "{% if loop.last and m['role'] == 'assistant' %}<think></think>{% endif %}{{ m['content'] }}",
)
ASK = {"role": "user", "content": "2+2="}
ANSWER = {"role": "assistant", "content": "4"}


@pytest.fixture
def tokenizer(monkeypatch):
    """Return a byte-level tokenizer with ChatML's special tokens, ids 0 to 2."""
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "error")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocabulary = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    plain = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(vocabulary)}, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    roles = {"pad_token": special[0], "eos_token": special[2]}
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=plain, additional_special_tokens=[special[1]], **roles
    )
    wrapped.chat_template = CHATML
    return wrapped


def learned(tokenizer, example):
    """Return the text that has weight, its turns joined."""
    return tokenizer.decode(
        [token for token, weight in zip(*example[:2], strict=True) if weight == 1.0]
    )


def test_the_answer_and_its_end_token_are_learned_and_nothing_else(tokenizer):
    [example] = chat.render(tokenizer, [ASK, ANSWER])
    assert tokenizer.decode(example.tokens) == (
        "<|im_start|>user\n2+2=<|im_end|>\n<|im_start|>assistant\n4<|im_end|>"
    )
    assert learned(tokenizer, example) == "4<|im_end|>"
    assert set(example.weights) == {0.0, 1.0}
    prompt = example.tokens[: example.answer]
    assert tokenizer.decode(prompt).endswith("assistant\n")


def test_the_turns_of_a_conversation_are_one_example(tokenizer):
    conversation = [ASK, ANSWER, {"role": "user", "content": "sure?"}, ANSWER]
    [example] = chat.render(tokenizer, conversation)
    assert learned(tokenizer, example) == "4<|im_end|>4<|im_end|>"
    assert tokenizer.decode(example.tokens[example.answer :]) == "4<|im_end|>"


def test_turns_that_the_template_writes_otherwise_later_are_examples_of_their_own(tokenizer):
    tokenizer.chat_template = THINKING
    conversation = [ASK, ANSWER, {"role": "user", "content": "sure?"}, ANSWER]
    first, second = chat.render(tokenizer, conversation)
    assert learned(tokenizer, first) == "<think></think>4<|im_end|>"
    assert learned(tokenizer, second) == "<think></think>4<|im_end|>"
    assert tokenizer.decode(second.tokens).count("<think>") == 1


def test_a_tokenizer_without_a_template_gets_plain_lines(tokenizer):
    tokenizer.chat_template = None
    [example] = chat.render(tokenizer, [ASK, ANSWER])
    assert tokenizer.decode(example.tokens) == "user: 2+2=\nassistant: 4<|im_end|>"
    assert learned(tokenizer, example) == " 4<|im_end|>"


def test_a_template_that_leaves_its_own_prompt_is_refused(tokenizer):
    tokenizer.chat_template = CHATML.replace("assistant\n{% endif %}", "model\n{% endif %}")
    with pytest.raises(RecipeError, match="chat template does not continue its own prompt"):
        chat.render(tokenizer, [ASK, ANSWER])


def test_examples_that_are_too_long_are_left_out_and_counted(tokenizer, capsys):
    long = {"role": "assistant", "content": "4" * 200}
    examples = chat.render_all(tokenizer, [[ASK, ANSWER], [ASK, long]], max_length=100)
    assert len(examples) == 1
    assert "1 of 2 examples left out" in capsys.readouterr().out
    with pytest.raises(RecipeError, match=r"max_length=5 leaves nothing: the shortest .* tokens"):
        chat.render_all(tokenizer, [[ASK, ANSWER]], max_length=5)


def test_an_answer_that_is_not_trainable_is_shown_and_not_learned(tokenizer):
    wrong = {"role": "assistant", "content": "5", "trainable": False}
    [example] = chat.render(tokenizer, [ASK, wrong, {"role": "user", "content": "sure?"}, ANSWER])
    assert learned(tokenizer, example) == "4<|im_end|>"
    assert "5<|im_end|>" in tokenizer.decode(example.tokens)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        # As in templates that drop thoughts, even from the answer to learn.
        (
            CHATML.replace("m['content']", "m['content'].split('</think>')[-1]"),
            "leaves out a part of an answer, so the model would not see it: '<think>hm</think>4'",
        ),
        (
            CHATML.replace("in messages", "in messages if m['role'] != 'system'"),
            "leaves out a part of a message of the role system, so the model would not see it: "
            "'Be brief.'",
        ),
        (
            "{{ raise_exception('System role not supported') }}",
            "refuses a conversation (system, user): System role not supported",
        ),
    ],
)
def test_a_template_that_would_lose_something_is_refused(tokenizer, template, message):
    """Text that a template drops would silently not be learned."""
    tokenizer.chat_template = template
    brief = {"role": "system", "content": "Be brief."}
    thought = {"role": "assistant", "content": "<think>hm</think>4"}
    with pytest.raises(RecipeError) as refused:
        chat.render(tokenizer, [brief, ASK, thought])
    assert message in str(refused.value)


def test_a_template_that_only_writes_other_space_loses_nothing(tokenizer):
    tokenizer.chat_template = CHATML.replace("m['content']", "m['content'].strip()")
    chat.render(tokenizer, [ASK, {"role": "assistant", "content": " 4\n"}])


def test_a_datum_predicts_each_next_token(tokenizer):
    [example] = chat.render(tokenizer, [ASK, ANSWER])
    datum = chat.to_datum(example)
    targets = datum.loss_fn_inputs["target_tokens"].to_numpy()
    weights = datum.loss_fn_inputs["weights"].to_numpy()
    assert datum.model_input.to_ints() == example.tokens[:-1]
    assert targets.tolist() == example.tokens[1:]
    assert weights.dtype == np.float32
    assert targets[weights == 1.0].tolist() == example.tokens[example.answer :]


def test_answers_are_compared_as_text(tokenizer):
    four = tokenizer.encode("4", add_special_tokens=False)
    end = [tokenizer.eos_token_id]
    assert chat.same_text(tokenizer, four + end, four)
    assert not chat.same_text(tokenizer, four + four + end, four + end)


def test_thoughts_are_switched_by_the_template_or_refused(tokenizer):
    off = "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    tokenizer.chat_template = CHATML.replace("assistant\n", "assistant\n" + off).replace(
        "{{ m['content'] }}", f"{{% if loop.last and m['role'] == 'assistant' %}}{off}{{% endif %}}"
        "{{ m['content'] }}",
    )  # fmt: skip
    texts = {}
    for value in (None, "on", "off"):
        [example] = chat.render(thinking.applied(tokenizer, value, "m"), [ASK, ANSWER])
        texts[value] = tokenizer.decode(example.tokens)
        assert learned(tokenizer, example) == "4<|im_end|>"
    assert texts[None] == texts["on"]
    assert texts["off"] == texts["on"].replace("\n4", "\n<think></think>4")
    tokenizer.chat_template = CHATML + "{# no thinking here #}"
    with pytest.raises(RecipeError, match="thinking=off: the chat template of m has no switch"):
        thinking.applied(tokenizer, "off", "m")
