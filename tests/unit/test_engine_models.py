"""The built-in model: the same everywhere, readable by other programs, made once."""

import concurrent.futures
import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from sweeper.engine import models, tiny
from sweeper.engine.errors import Unknown

# Changing the model changes every result, so earlier ones are no longer comparable.
WEIGHTS_SHA256 = "dec5488ddb27a27b8b4e424e827bebf2499f24aa8bb15b9fdd14c7ef81b27a43"
TEACHER_SHA256 = "09ecabfc8635b75ed065fcf1de4e3865d3d9ad793c1030fa9733dc515ff92576"


def digest(weights):
    out = hashlib.sha256()
    for name in sorted(weights):
        array = weights[name]
        out.update(f"{name} {array.dtype} {array.shape}\n".encode() + array.tobytes())
    return out.hexdigest()


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tiny.ensure(str(tmp_path_factory.mktemp("models")))


def test_the_weights_are_the_published_ones(directory):
    assert digest(tiny.weights()) == WEIGHTS_SHA256
    assert digest(load_file(os.path.join(directory, "model.safetensors"))) == WEIGHTS_SHA256


def test_the_teacher_is_the_published_one_and_is_made_anew_when_it_is_another(tmp_path):
    directory = tiny.ensure(str(tmp_path), "tiny/teacher")
    path = tmp_path / "tiny--teacher" / "model.safetensors"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == TEACHER_SHA256
    taught, base = models.load("tiny/teacher", directory), tiny.weights()
    assert sum(array.size for array in taught.base.values()) == sum(a.size for a in base.values())
    embed = base["model.embed_tokens.weight"]
    np.testing.assert_allclose(taught.base["embed"], embed, rtol=2**-8)
    assert np.abs(taught.base["head"] - base["lm_head.weight"]).max() > 0.1
    config = tmp_path / "tiny--teacher" / "config.json"
    config.write_text(config.read_text().replace(TEACHER_SHA256, "0" * 64))
    path.write_bytes(b"")
    tiny.ensure(str(tmp_path), "tiny/teacher")
    assert path.stat().st_size > 200_000


def test_every_byte_and_special_token_survives_the_tokenizer(directory):
    tokenizer = Tokenizer.from_file(os.path.join(directory, "tokenizer.json"))
    text = bytes(range(1, 128)).decode() + "é ü 漢字 🙂"
    ids = tokenizer.encode(text).ids
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    for number, special in enumerate(tiny.SPECIAL):
        assert tokenizer.encode(special).ids == [256 + number]
    assert tokenizer.get_vocab_size() == tiny.CONFIG["vocab_size"]
    assert tiny.SPECIAL[tiny.CONFIG["eos_token_id"] - 256] == "<|im_end|>"
    assert sorted(tiny.vocabulary().values()) == list(range(256))


def test_making_it_at_once_leaves_one_whole_model(tmp_path):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        made = list(pool.map(tiny.ensure, [str(tmp_path)] * 4))
    assert set(made) == {str(tmp_path / "tiny--qwen3")}
    assert os.listdir(tmp_path) == ["tiny--qwen3"]
    assert sorted(os.listdir(made[0])) == [
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip


def test_a_model_of_an_earlier_release_is_made_anew(tmp_path):
    directory = tiny.ensure(str(tmp_path))
    path = os.path.join(directory, "config.json")
    with open(path, "w") as file:
        json.dump({**tiny.CONFIG, "max_position_embeddings": 2048}, file)
    assert models.Models(str(tmp_path)).contexts() == dict.fromkeys(tiny.BUILT_IN, 16384)
    assert sorted(os.listdir(tmp_path)) == ["tiny--qwen3", "tiny--teacher"]


ON_A_FULL_DISK = """
import resource, signal, sys
from sweeper.engine import tiny

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
tiny.ensure(sys.argv[1])
"""


def test_a_model_that_was_not_finished_is_made_again(tmp_path):
    argv = [sys.executable, "-c", ON_A_FULL_DISK, str(tmp_path)]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert "File too large" in ended.stderr
    assert os.listdir(tmp_path) == []
    assert os.path.isfile(os.path.join(tiny.ensure(str(tmp_path)), "config.json"))


def copy_with(directory, target, config=None, change=None):
    os.makedirs(target)
    with open(os.path.join(directory, "config.json")) as file:
        document = json.load(file) | (config or {})
    with open(target / "config.json", "w") as file:
        json.dump(document, file)
    weights = load_file(os.path.join(directory, "model.safetensors"))
    if change:
        change(weights)
    save_file(weights, target / "model.safetensors")
    return str(target)


def test_tied_embeddings_half_precision_and_no_query_norms(directory, tmp_path):
    def change(weights):
        del weights["lm_head.weight"]
        for name in list(weights):
            if name.endswith(("q_norm.weight", "k_norm.weight")):
                del weights[name]
            else:
                weights[name] = weights[name].astype(np.float16)

    changed = {"tie_word_embeddings": True, "model_type": "llama", "eos_token_id": [0, 256]}
    model = models.load("m", copy_with(directory, tmp_path / "m", changed, change))
    assert model.base["head"] is model.base["embed"] and model.base["embed"].dtype == np.float32
    assert "0.q_norm" not in model.base and model.eos == {0, 256}


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        ({"model_type": "gpt2"}, None, "model_type is 'gpt2'"),
        ({"rope_scaling": {"rope_type": "yarn"}}, None, "'yarn' are not supported"),
        ({}, lambda w: w.pop("model.layers.1.mlp.up_proj.weight"), "lacks the weights 1.up"),
        ({}, lambda w: w.update({"model.layers.0.self_attn.q_proj.bias": np.zeros(64)}),
         "q_proj.bias, which this network does not have"),
    ],
)  # fmt: skip
def test_unsupported_models_are_refused_with_a_reason(directory, tmp_path, config, change, message):
    with pytest.raises(ValueError, match=message):
        models.load("m", copy_with(directory, tmp_path / "m", config, change))


def test_models_by_name(directory, tmp_path):
    offered = models.Models(os.path.dirname(directory), {"mine": directory})
    assert offered.names() == ["tiny/qwen3", "tiny/teacher", "mine"]
    assert offered.get("mine") is offered.get("mine")
    assert offered.get("tiny/qwen3").directory == directory
    with pytest.raises(Unknown, match="use tiny/qwen3, tiny/teacher, mine"):
        offered.get("other")


@pytest.mark.parametrize("dtype", ["BF16", "I16"])
def test_bfloat16_is_the_upper_half_of_float32(directory, tmp_path, dtype):
    weights = load_file(os.path.join(directory, "model.safetensors"))
    halves = {name: (array.view(np.uint32) >> 16).astype("<u2") for name, array in weights.items()}
    header, data = {}, b""
    for name, half in halves.items():
        places = [len(data), len(data) + half.nbytes]
        header[name] = {"dtype": dtype, "shape": half.shape, "data_offsets": places}
        data += half.tobytes()
    text = json.dumps(header).encode()
    folder = copy_with(directory, tmp_path / "m")
    stored = len(text).to_bytes(8, "little") + text + data
    (tmp_path / "m" / "model.safetensors").write_bytes(stored)
    if dtype == "I16":
        with pytest.raises(ValueError, match="has the type I16"):
            models.load("m", folder)
    else:
        embed = weights["model.embed_tokens.weight"]
        np.testing.assert_allclose(models.load("m", folder).base["embed"], embed, rtol=2**-7)
