"""Names of hosted models that mean the tiny model on the engine, so that programs with these names
run unchanged. The tiny model's tokenizer has the special tokens of the hosted models. This module
uses only the standard library."""

from collections.abc import Mapping

TINY = "tiny/qwen3"
TEACHER = "tiny/teacher"

STAND_INS: Mapping[str, str] = dict.fromkeys(
    (
        "Qwen/Qwen3-4B-Instruct-2507",
        "Qwen/Qwen3-8B",
        "Qwen/Qwen3-8B-Base",
        "Qwen/Qwen3-30B-A3B",
        "Qwen/Qwen3-30B-A3B-Base",
        "Qwen/Qwen3-30B-A3B-Instruct-2507",
        "Qwen/Qwen3-32B",
        "Qwen/Qwen3-235B-A22B-Instruct-2507",
        "Qwen/Qwen3.5-4B",
        "Qwen/Qwen3.5-9B",
        "Qwen/Qwen3.5-9B-Base",
        "Qwen/Qwen3.5-27B",
        "Qwen/Qwen3.5-35B-A3B",
        "Qwen/Qwen3.5-35B-A3B-Base",
        "Qwen/Qwen3.5-397B-A17B",
        "Qwen/Qwen3.6-27B",
        "Qwen/Qwen3.6-35B-A3B",
        "Qwen/Qwen3.8-27B",
    ),
    TINY,
)


def complete(models: Mapping[str, str], aliases: Mapping[str, str]) -> dict[str, str]:
    """Return all aliases of an engine: `aliases`, and the built-in aliases whose names are not in
    `models`."""
    stand_ins = {name: target for name, target in STAND_INS.items() if name not in models}
    return {**stand_ins, **aliases}
