"""The built-in models, identical on every machine: `tiny/qwen3` with random weights, and
`tiny/teacher`, the same model after long training (`tests/support/make_teacher.py`)."""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from typing import TypedDict

from sweeper.engine.array_types import Arrays, Floats
from sweeper.engine.model_aliases import TEACHER, TINY

BUILT_IN = (TINY, TEACHER)


class Config(TypedDict):
    """The config.json of a built-in model, in Hugging Face's format."""

    architectures: list[str]
    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    hidden_act: str
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool
    attention_bias: bool
    bos_token_id: int | None
    eos_token_id: int
    pad_token_id: int
    torch_dtype: str


SPECIAL = ("<|im_end|>", "<|endoftext|>", "<|im_start|>", "<think>", "</think>")
_NO_THOUGHTS = "{{ '<think>\\n\\n</think>\\n\\n' }}"
_SWITCHED_OFF = "enable_thinking is defined and not enable_thinking"
CHAT_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n# Tools\n{% for tool in tools %}{{ tool | tojson }}\n"
    "{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['reasoning_content'] %}<think>\n{{ m['reasoning_content'] }}\n</think>\n\n"
    f"{{% elif loop.last and m['role'] == 'assistant' and {_SWITCHED_OFF} %}}{_NO_THOUGHTS}"
    "{% endif %}{{ m['content'] }}{% for call in m['tool_calls'] or [] %}"
    "{{ '\\n<tool_call>\\n' }}{{ call['function'] | tojson }}{{ '\\n</tool_call>' }}{% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    f"{{% if {_SWITCHED_OFF} %}}{_NO_THOUGHTS}{{% endif %}}{{% endif %}}"
)
"""The chat template: ChatML, with tools and thoughts as Qwen3 writes them."""
CONFIG: Config = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 256 + len(SPECIAL),
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "max_position_embeddings": 16384,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "bos_token_id": None,
    "eos_token_id": 256,
    "pad_token_id": 257,
    "torch_dtype": "float32",
}
_SEED = 20260
# Standard deviations of the embedding, of the head, and of a map relative to one that preserves the
# size of its input. Found by training adapters on addition, sorting and reversal. Adapters learn
# fastest if the layers outweigh the embedding, and if the head's first predictions differ.
_EMBED, _HEAD, _GAIN = 0.2, 0.2, 1.0


def weights() -> Arrays:
    """Return the weights of `tiny/qwen3` in float32, by their Hugging Face names."""
    import numpy as np

    random = np.random.RandomState(_SEED)
    hidden, mlp, vocab = (CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["vocab_size"])
    head = CONFIG["head_dim"]
    queries, keys = head * CONFIG["num_attention_heads"], head * CONFIG["num_key_value_heads"]

    def drawn(rows: int, columns: int, deviation: float) -> Floats:
        uniform = random.random_sample((rows, columns)) * 2.0 - 1.0
        return (uniform * (deviation * 3.0**0.5)).astype(np.float32)

    def ones(size: int) -> Floats:
        return np.ones(size, np.float32)

    out: Arrays = {"model.embed_tokens.weight": drawn(vocab, hidden, _EMBED)}
    for i in range(CONFIG["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        out[layer + "input_layernorm.weight"] = ones(hidden)
        sizes = {"q_proj": (queries, hidden), "k_proj": (keys, hidden), "v_proj": (keys, hidden)}
        for name, (rows, columns) in {**sizes, "o_proj": (hidden, queries)}.items():
            deviation = _GAIN * columns**-0.5
            out[f"{layer}self_attn.{name}.weight"] = drawn(rows, columns, deviation)
        out[layer + "self_attn.q_norm.weight"] = ones(head)
        out[layer + "self_attn.k_norm.weight"] = ones(head)
        out[layer + "post_attention_layernorm.weight"] = ones(hidden)
        sizes = {"gate_proj": (mlp, hidden), "up_proj": (mlp, hidden), "down_proj": (hidden, mlp)}
        for name, (rows, columns) in sizes.items():
            out[f"{layer}mlp.{name}.weight"] = drawn(rows, columns, _GAIN * columns**-0.5)
    out["model.norm.weight"] = ones(hidden)
    out["lm_head.weight"] = drawn(vocab, hidden, _HEAD)
    return out


def vocabulary() -> dict[str, int]:
    """Return the token id of each byte. The key of a byte is its printable symbol in GPT-2's
    tokenizer. The ids are in the order of the symbols' code points."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(printable)]
    symbols = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(hidden))]
    return {symbol: number for number, symbol in enumerate(sorted(symbols))}


def _tokenizer() -> dict[str, object]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": 256 + i, "content": text, **flags, "special": True} for i, text in enumerate(SPECIAL)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "use_regex": True},
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary(),
            "merges": [],
        },
    }


def _tokenizer_config() -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL[0],
        "pad_token": SPECIAL[1],
        "additional_special_tokens": list(SPECIAL[2:]),
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONFIG["max_position_embeddings"],
    }


def _taught() -> bytes:
    with open(os.path.join(os.path.dirname(__file__), "teacher.safetensors"), "rb") as file:
        return file.read()


def _config(name: str) -> Mapping[str, object]:
    """Return a model's config.json. The config of `TEACHER` has a hash of the weights, so that
    `ensure` replaces the files of an earlier release."""
    if name == TINY:
        return CONFIG
    digest = hashlib.sha256(_taught()).hexdigest()
    return {**CONFIG, "torch_dtype": "bfloat16", "weights_sha256": digest}


def _write(directory: str, name: str) -> None:
    import safetensors.numpy

    documents = {
        "config.json": _config(name),
        "tokenizer.json": _tokenizer(),
        "tokenizer_config.json": _tokenizer_config(),
    }
    for file_name, document in documents.items():
        with open(os.path.join(directory, file_name), "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1, ensure_ascii=False)
    with open(os.path.join(directory, "model.safetensors"), "wb") as whole:
        if name == TEACHER:
            whole.write(_taught())
        else:  # transformers requires the format entry
            whole.write(safetensors.numpy.save(weights(), {"format": "pt"}))


def _is_this(directory: str, config: Mapping[str, object]) -> bool:
    try:
        with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
            return json.load(file) == config
    except (FileNotFoundError, NotADirectoryError):
        return False


def ensure(models: str, name: str = TINY) -> str:
    """Return the model's directory under `models`. If the directory is missing or from an earlier
    release, create it atomically. Concurrent processes get the same files."""
    directory, config = os.path.join(models, name.replace("/", "--")), _config(name)
    if _is_this(directory, config):
        return directory
    os.makedirs(models, exist_ok=True)
    scratch = tempfile.mkdtemp(prefix=".making-", dir=models)
    old = f"{scratch}-old"
    try:
        os.chmod(scratch, 0o755)  # noqa: S103 -- mkdtemp's 0700 would hide it from other users
        _write(scratch, name)
        with contextlib.suppress(OSError):
            if os.path.isdir(directory) and not _is_this(directory, config):
                os.rename(directory, old)
            os.rename(scratch, directory)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
    if not _is_this(directory, config):
        raise OSError(f"could not write the model {name} to {directory}: check this folder")
    return directory
