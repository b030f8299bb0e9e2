"""Finds learning rates and LoRA ranks for `learning_rate=auto` and `lora_rank=auto`."""

# The rate is tinker-cookbook's formula (`tinker_cookbook.hyperparam_utils.get_lr`, 0.6.1), which
# its authors fitted to sweeps of SFT over Llama and Qwen models; they found it independent of the
# rank:
#
# 5e-5 x 10 (LoRA's, against training all weights) x (2000 / width) ^ (0.781 Llama, 0.0775 Qwen)
#
# Other methods move the model less, and use the values of tinker-cookbook's recipes for every
# model: RL from 1e-5 (math_rl) to 4e-5 (rl_basic), of which the geometric mean is used;
# distillation 1e-4 with rank 128; DPO 1e-5. The recipes' defaults are for the engine's tiny models,
# and are used for those.
#
# The rank is the smallest power of two, from 8 to 128, whose adapter has a weight for each unit of
# information to learn. "LoRA Without Regret" (Schulman et al. 2025, thinkingmachines.ai/blog/lora)
# finds LoRA as good as training all weights as long as the data do not exceed its capacity. The
# data hold about a bit per token of shown answers, or a bit per answer that is rewarded or
# compared.

import ast
import importlib.util
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import chz

from . import settings, tasks
from .settings import AUTO

FIELDS = ("learning_rate", "lora_rank")
_RATES = {
    "dpo": (1e-5, "the first rate of tinker-cookbook's DPO, for every model"),
    "rl": (2e-5, "between the 1e-5 and 4e-5 of tinker-cookbook's RL, for every model"),
    "terminal": (2e-5, "between the 1e-5 and 4e-5 of tinker-cookbook's RL, for every model"),
    "harbor_rl": (2e-5, "between the 1e-5 and 4e-5 of tinker-cookbook's RL, for every model"),
    "distill": (1e-4, "the rate of tinker-cookbook's distillation, for every model"),
}
_DISTILL_RANK = 128
_EXPONENTS = {"Llama": 0.781, "Qwen": 0.0775}
_LEAST, _MOST = 8, 128
_WIDTHS, _WEIGHTS = "_KNOWN_HIDDEN_SIZES", "_LORA_PARAMS_PER_RANK_BY_COMPONENT"


class Shape(NamedTuple):
    """A model's family and width. `weights` is the number of weights of a LoRA adapter of rank 1
    on the model's attention, MLP and unembedding."""

    family: str
    width: int
    weights: int

    def adapter(self, rank: int) -> int:
        """Return the number of weights of an adapter of rank `rank`."""
        return rank * self.weights


_TINY = Shape("tiny", 64, 2_373)
SHAPES: Mapping[str, Shape] = {
    "tiny/qwen3": _TINY,
    "tiny/teacher": _TINY,
    "meta-llama/Llama-3.1-70B": Shape("Llama", 8192, 13_079_808),
    "meta-llama/Llama-3.1-8B": Shape("Llama", 4096, 2_753_792),
    "meta-llama/Llama-3.1-8B-Instruct": Shape("Llama", 4096, 2_753_792),
    "meta-llama/Llama-3.2-1B": Shape("Llama", 2048, 834_816),
    "meta-llama/Llama-3.2-3B": Shape("Llama", 3072, 1_650_944),
    "meta-llama/Llama-3.3-70B-Instruct": Shape("Llama", 8192, 13_079_808),
    "deepseek-ai/DeepSeek-V3.1": Shape("DeepSeek", 7168, 96_883_776),
    "deepseek-ai/DeepSeek-V3.1-Base": Shape("DeepSeek", 7168, 96_883_776),
    "deepseek-ai/DeepSeek-V4.1-Flash": Shape("DeepSeek", 5120, 108_821_760),
    "deepseek-ai/DeepSeek-V4.1-Flash-1017": Shape("DeepSeek", 5120, 108_821_760),
    "moonshotai/Kimi-K2-Thinking": Shape("Kimi", 7168, 146_694_976),
    "moonshotai/Kimi-K2.5": Shape("Kimi", 7168, 146_694_976),
    "moonshotai/Kimi-K2.6": Shape("Kimi", 7168, 146_694_976),
    "moonshotai/Kimi-K3.1-Pro": Shape("Kimi", 7168, 774_669_824),
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": Shape("Nemotron", 2688, 12_064_768),
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16": Shape("Nemotron", 4096, 113_160_192),
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": Shape("Nemotron", 8192, 258_803_712),
    "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16": Shape("Nemotron", 2688, 12_064_768),
    "nvidia/NVIDIA-Nemotron-3.5-Super-VL-120B-A12B-BF16": Shape("Nemotron", 4096, 113_160_192),
    "openai/gpt-oss-120b": Shape("gpt-oss", 2880, 41_074_624),
    "openai/gpt-oss-20b": Shape("gpt-oss", 2880, 7_544_512),
    "thinkingmachines/Inkling": Shape("Inkling", 6144, 158_337_344),
    "thinkingmachines/Inkling-2-Small": Shape("Inkling", 4608, 130_618_176),
    "thinkingmachines/Inkling-Small": Shape("Inkling", 4096, 66_020_672),
    "zai-org/GLM-5.3": Shape("GLM", 6144, 124_437_632),
    "zai-org/GLM-5.3-Flash": Shape("GLM", 4096, 77_923_584),
    "Qwen/Qwen3-235B-A22B-Instruct-2507": Shape("Qwen", 4096, 59_931_008),
    "Qwen/Qwen3-30B-A3B": Shape("Qwen", 2048, 15_440_256),
    "Qwen/Qwen3-30B-A3B-Base": Shape("Qwen", 2048, 15_440_256),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": Shape("Qwen", 2048, 15_440_256),
    "Qwen/Qwen3-32B": Shape("Qwen", 5120, 8_545_664),
    "Qwen/Qwen3-4B-Instruct-2507": Shape("Qwen", 2560, 2_218_880),
    "Qwen/Qwen3-8B": Shape("Qwen", 4096, 2_883_968),
    "Qwen/Qwen3-8B-Base": Shape("Qwen", 4096, 2_883_968),
    "Qwen/Qwen3-VL-235B-A22B-Instruct": Shape("Qwen", 4096, 59_931_008),
    "Qwen/Qwen3-VL-30B-A3B-Instruct": Shape("Qwen", 2048, 15_440_256),
    "Qwen/Qwen3.5-27B": Shape("Qwen", 5120, 7_544_320),
    "Qwen/Qwen3.5-35B-A3B": Shape("Qwen", 2048, 17_545_728),
    "Qwen/Qwen3.5-35B-A3B-Base": Shape("Qwen", 2048, 17_545_728),
    "Qwen/Qwen3.5-397B-A17B": Shape("Qwen", 4096, 99_124_736),
    "Qwen/Qwen3.5-4B": Shape("Qwen", 2560, 2_278_400),
    "Qwen/Qwen3.5-9B": Shape("Qwen", 4096, 2_955_776),
    "Qwen/Qwen3.5-9B-Base": Shape("Qwen", 4096, 2_955_776),
    "Qwen/Qwen3.6-27B": Shape("Qwen", 5120, 7_544_320),
    "Qwen/Qwen3.6-35B-A3B": Shape("Qwen", 2048, 17_545_728),
    "Qwen/Qwen3.8-27B": Shape("Qwen", 5120, 7_544_320),
}
"""The sizes of models by the service's names, from tinker-cookbook's tables (`hyperparam_utils`,
0.6.1). As in the service, the experts of a mixture share half of their adapter."""


class Chosen(NamedTuple):
    """A value and the reason for the choice."""

    value: float
    why: str


def learning_rate(recipe: str, model: str, usual: float) -> Chosen:
    """Return the learning rate for a model. `usual` is the recipe's default. Raises ValueError
    if no rate is known for the model."""
    shape = _shape(model)
    if shape is not None and shape.family == "tiny":
        return Chosen(usual, f"the default of {recipe}, which is for the engine's models")
    if recipe in _RATES:
        return Chosen(*_RATES[recipe])
    if shape is None:
        raise ValueError(f"learning_rate=auto: no rate is known for {model}; give a number")
    if shape.family not in _EXPONENTS:
        raise ValueError(
            f"learning_rate=auto: no rate is known for {shape.family} models such as {model}, only "
            f"for {' and '.join(_EXPONENTS)}; give a number"
        )
    exponent = _EXPONENTS[shape.family]
    rate = float(f"{5e-5 * 10 * (2000 / shape.width) ** exponent:.3g}")
    why = f"5e-5 x 10 for LoRA x (2000/{shape.width})^{exponent}"
    return Chosen(rate, f"{why}, tinker-cookbook's formula for {shape.family} models")


def lora_rank(model: str, count: int, noun: str) -> Chosen:
    """Return the LoRA rank for a run that learns `count` units of information. `noun` names the
    unit. Raises ValueError if the size of the model's adapter is not known."""
    shape = _shape(model)
    if shape is None:
        raise ValueError(f"lora_rank=auto: the size of {model}'s adapter is not known; give a rank")
    rank = _LEAST
    while shape.adapter(rank) < count and rank < _MOST:
        rank *= 2
    size = shape.adapter(rank)
    if size < count:
        return Chosen(
            rank,
            f"{size:,} weights for {count:,} {noun}: too few, but the rank is at most {_MOST}",
        )
    return Chosen(rank, f"{size:,} weights for {count:,} {noun}")


def choose(recipe: str, config: settings.Training) -> dict[str, Chosen]:
    """Choose a value for each setting that is `auto`. Raises ValueError if no value is known."""
    chosen: dict[str, Chosen] = {}
    if config.learning_rate == AUTO:
        usual = chz.chz_fields(type(config))["learning_rate"]._default
        chosen["learning_rate"] = learning_rate(recipe, config.model_name, usual)
    shape = _shape(config.model_name)
    if config.lora_rank == AUTO and recipe == "distill" and not (shape and shape.family == "tiny"):
        why = "the rank of tinker-cookbook's distillation, for every model"
        chosen["lora_rank"] = Chosen(_DISTILL_RANK, why)
    elif config.lora_rank == AUTO:
        chosen["lora_rank"] = lora_rank(config.model_name, *_to_learn(recipe, config))
    return chosen


def resolved(recipe: str, config: Any) -> tuple[Any, dict[str, str]]:
    """Replace each `auto` by a number. Return the configuration and the reason for each number."""
    chosen = choose(recipe, config)
    numbers = {key: chosen.value for key, chosen in chosen.items()}
    whys = {key: chosen.why for key, chosen in chosen.items()}
    return (chz.replace(config, **numbers) if numbers else config), whys


def notes(recipe: str, config_class: type[Any], values: Mapping[str, Any]) -> list[str]:
    """Return lines for a plan: the values chosen for `auto` settings."""
    if AUTO not in (values.get(key) for key in FIELDS):
        return []
    config = config_class(**{key: value for key, value in values.items() if "." not in key})
    of = config.model_name
    return [
        f"{key}=auto is {chosen.value:g} for {of}: {chosen.why}"
        for key, chosen in choose(recipe, config).items()
    ]


def _shape(model: str) -> Shape | None:
    name = model.partition(":")[0]  # the service's variant of a model follows a colon
    return SHAPES.get(name) or _installed().get(name)


@cache
def _installed() -> Mapping[str, Shape]:
    """Return a dict from model to shape, read from the tables of the installed tinker-cookbook (if
    any). The tables are parsed instead of imported, because the import would load torch."""
    spec = importlib.util.find_spec("tinker_cookbook")
    folders = None if spec is None else spec.submodule_search_locations
    if not folders:
        return {}
    tables: dict[str, Any] = {}
    with suppress(OSError, ValueError, SyntaxError):
        tree = ast.parse(Path(folders[0], "hyperparam_utils.py").read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.AnnAssign) and node.value is not None:
                name = node.target.id if isinstance(node.target, ast.Name) else ""
                if name in (_WIDTHS, _WEIGHTS):
                    tables[name] = ast.literal_eval(node.value)
        weights = tables.get(_WEIGHTS, {})
        return {
            name: Shape(_family(name), int(width), sum(map(int, weights[name].values())))
            for name, width in tables.get(_WIDTHS, {}).items()
            if name in weights
        }
    return {}


def _family(model: str) -> str:
    """Return a model's family if its learning rate has a formula (`_EXPONENTS`). Else return the
    part of the model's name before the slash."""
    families = (family for family in _EXPONENTS if family.lower() in model.lower())
    return next(families, model.partition("/")[0])


def _to_learn(recipe: str, config: Any) -> tuple[int, str]:
    """Return an upper bound on the information that a run can learn, and the unit's name."""
    if recipe in ("rl", "terminal", "harbor_rl"):
        sampled = config.max_steps * config.groups_per_batch * config.group_size
        return sampled, "rewarded answers"
    if recipe == "distill":
        on_policy = config.mode == "on_policy"
        batch = config.groups_per_batch * config.group_size if on_policy else config.batch_size
        return config.max_steps * batch * config.max_tokens, "tokens of answers at most"
    if recipe in ("dpo", "reward"):
        return config.max_steps * config.batch_size, "compared pairs"
    return _answer_bytes(config), "bytes of answers (a token has at least one byte)"


def _answer_bytes(config: settings.Settings) -> int:
    if config.data is not None:
        return _bytes_of_file(config.data, config.test_size)
    return _bytes(settings.load_data(config))


@cache
def _bytes_of_file(path: str, held_out: int) -> int:
    return _bytes(tasks.load(path, held_out))


def _bytes(data: tasks.Split) -> int:
    """Count the bytes of the assistant's messages in the training data, plus one for the end of
    each message."""
    messages = (message for conversation in data.train for message in conversation)
    answers = (m["content"] for m in messages if m["role"] == "assistant")
    return sum(len(answer.encode("utf-8", "surrogatepass")) + 1 for answer in answers)
