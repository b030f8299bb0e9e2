import json
import os
import subprocess
import sys

import pytest

from sweeper.engine import tiny
from sweeper.engine.lora import maps
from sweeper.engine.net import Shape
from sweeper.errors import GridError
from sweeper.planner.plan import plan
from sweeper.recipes import distill, dpo, hyperparams, rl, sft


def chosen(recipe, config):
    return {key: choice.value for key, choice in hyperparams.choose(recipe, config).items()}


@pytest.mark.parametrize(
    ("model", "rate"),
    [
        ("meta-llama/Llama-3.2-1B", 4.91e-4),  # 5e-4 (2000/2048)^0.781
        ("meta-llama/Llama-3.1-70B", 1.66e-4),  # 5e-4 (2000/8192)^0.781
        ("Qwen/Qwen3-8B", 4.73e-4),  # 5e-4 (2000/4096)^0.0775
        ("Qwen/Qwen3-8B:peft:131072", 4.73e-4),
        ("Qwen/Qwen3-30B-A3B", 4.99e-4),
        ("Qwen/Qwen3.5-9B-Base", 4.73e-4),
        ("Qwen/Qwen3.6-35B-A3B", 4.99e-4),
        ("Qwen/Qwen3.5-4B", 4.91e-4),
        ("Qwen/Qwen3-VL-235B-A22B-Instruct", 4.73e-4),
        ("tiny/qwen3", 8e-3),  # sft's default
    ],
)
def test_the_rate_is_the_formula_s(model, rate):
    config = sft.Config(learning_rate="auto", model_name=model)
    assert chosen("sft", config) == {"learning_rate": pytest.approx(rate, rel=1e-3)}


def test_dpo_has_a_rate_of_its_own_for_every_model():
    choice = hyperparams.learning_rate("dpo", "somebody/model", 1e-3)
    assert choice.value == 1e-5
    assert chosen("dpo", dpo.Config(learning_rate="auto")) == {"learning_rate": 1e-3}


@pytest.mark.parametrize("key", ["learning_rate", "lora_rank"])
def test_a_model_that_is_not_known_is_told(key):
    config = sft.Config(model_name="somebody/model", **{key: "auto"})
    with pytest.raises(ValueError, match=f"{key}=auto: .*somebody/model.*; give a"):
        hyperparams.resolved("sft", config)


def test_a_family_without_a_formula_has_a_rank_and_no_rate():
    config = sft.Config(model_name="openai/gpt-oss-20b", lora_rank="auto")
    assert chosen("sft", config) == {"lora_rank": 8}
    config = sft.Config(model_name="openai/gpt-oss-20b", learning_rate="auto")
    with pytest.raises(
        ValueError, match="no rate is known for gpt-oss models such as openai/gpt-oss-20b, only"
    ):
        hyperparams.resolved("sft", config)


@pytest.mark.parametrize("model", ["openai/gpt-oss-20b", "Qwen/Qwen3-8B", "somebody/model"])
def test_other_methods_have_values_of_their_own_for_every_model(model):
    given = {"model_name": model, "learning_rate": "auto"}
    assert chosen("rl", rl.Config(**given)) == {"learning_rate": 2e-5}
    distilled = chosen("distill", distill.Config(**given, lora_rank="auto"))
    assert distilled == {"learning_rate": 1e-4, "lora_rank": 128}
    assert chosen("dpo", dpo.Config(**given)) == {"learning_rate": 1e-5}


OF_A_NEW_MODEL = """
from sweeper.recipes import hyperparams, sft
config = sft.Config(model_name="Qwen/Qwen9-1B", learning_rate="auto")
print(hyperparams.choose("sft", config)["learning_rate"].value)
print(hyperparams.lora_rank("Qwen/Qwen9-1B", 961, "tokens").value)
"""


def test_models_that_only_the_installed_tinker_cookbook_knows(tmp_path):
    package = tmp_path / "tinker_cookbook"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('it is not imported')")
    (package / "hyperparam_utils.py").write_text(
        'def size():\n    _KNOWN_HIDDEN_SIZES: dict[str, int] = {"Qwen/Qwen9-1B": 2000}\n'
        "_LORA_PARAMS_PER_RANK_BY_COMPONENT: dict = "
        '{"Qwen/Qwen9-1B": {"mlp": 10, "attn": 20, "unembed": 30}}\n'
    )
    argv = [sys.executable, "-c", OF_A_NEW_MODEL]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    printed = subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout
    assert [float(line) for line in printed.split()] == [pytest.approx(5e-4), 32]


def test_an_adapter_has_as_many_weights_as_the_engine_makes():
    config = tiny.CONFIG
    shape = Shape(
        vocab=config["vocab_size"],
        hidden=config["hidden_size"],
        mlp=config["intermediate_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head=config["head_dim"],
        context=config["max_position_embeddings"],
    )
    expected = 8 * sum(outer + inner for outer, inner in maps(shape).values())
    assert hyperparams.SHAPES["tiny/qwen3"].adapter(8) == expected


def test_an_adapter_of_a_hosted_model_has_the_weights_of_its_layers_and_unembedding():
    attention, mlp = 2 * (4096 + 4096) + 2 * (4096 + 1024), 3 * (4096 + 12288)
    expected = 36 * (attention + mlp) + 4096 + 151936
    assert hyperparams.SHAPES["Qwen/Qwen3-8B"].adapter(1) == expected
    # A mixture of experts has a rank, too.
    assert hyperparams.lora_rank("Qwen/Qwen3-30B-A3B", 10**9, "tokens").value == 128


def test_the_rank_grows_with_what_there_is_to_learn(tmp_path):
    def rank(recipe, config):
        return chosen(recipe, config)["lora_rank"]

    assert rank("sft", sft.Config(lora_rank="auto")) == 8
    lines = [
        {"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": word}]}
        for n, word in enumerate(["a" * 999] * 40)
    ]
    data = tmp_path / "long.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = {"data": str(data), "test_size": 2, "lora_rank": "auto"}
    choice = hyperparams.choose("sft", sft.Config(**given))["lora_rank"]
    assert choice == (
        32,  # rank 16 has 37,968 weights
        "75,936 weights for 38,000 bytes of answers (a token has at least one byte)",
    )
    # 60 steps of 16 groups of 16 answers: one bit per answer.
    assert rank("rl", rl.Config(lora_rank="auto")) == 8
    assert rank("rl", rl.Config(lora_rank="auto", max_steps=100, group_size=16)) == 16
    assert rank("distill", distill.Config(lora_rank="auto", max_steps=60)) == 128
    choices = hyperparams.choose("distill", distill.Config(lora_rank="auto", max_steps=600))
    assert "too few" in choices["lora_rank"].why


def test_what_is_given_stays():
    config = sft.Config(learning_rate=1e-3, lora_rank=4, model_name="somebody/model")
    assert hyperparams.resolved("sft", config) == (config, {})


GRID = {"name": "a", "recipe": "sft", "service": "local"}


def test_a_plan_tells_what_is_taken_and_why():
    planned = plan({**GRID, "base": {"learning_rate": "auto", "model_name": "Qwen/Qwen3-8B"}})
    assert planned.notes == (
        "learning_rate=auto is 0.000473 for Qwen/Qwen3-8B: 5e-5 x 10 for LoRA x (2000/4096)^0.0775,"
        " tinker-cookbook's formula for Qwen models",
    )
    assert plan({**GRID, "base": {"learning_rate": 1e-3}}).notes == ()


def test_a_stage_s_notes_say_whose_they_are():
    stages = {
        "sft": {"recipe": "sft", "base": {"model_name": "meta-llama/Llama-3.2-1B"}},
        "dpo": {
            "recipe": "dpo",
            "from": {"stage": "sft", "take": "each"},
            "base": {"learning_rate": "auto"},
        },
    }
    planned = plan({"name": "a", "service": "local", "stages": stages})
    assert [note.partition(":")[0] for note in planned.notes] == ["dpo"]
    assert "1e-05 for meta-llama/Llama-3.2-1B" in planned.notes[0]


def test_a_plan_refuses_what_nobody_knows_at_its_place():
    with pytest.raises(GridError) as refused:
        plan({**GRID, "base": {"learning_rate": "auto"}, "grid": {"model_name": ["a/b", "c/d"]}})
    assert refused.value.problems == (
        "base.learning_rate: learning_rate=auto: no rate is known for a/b; give a number",
        "base.learning_rate: learning_rate=auto: no rate is known for c/d; give a number",
    )
