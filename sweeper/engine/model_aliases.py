"""Names of hosted models that the engine answers to. Standard library only: a launch reads it.

A program that was written for the hosted service names one of its models, looks up by that name
which chat format it has, and loads its tokenizer by it. For each of these the tiny model stands in,
so that the program runs here as it is. They are those whose special tokens the tiny tokenizer has:
tinker-cookbook's renderers for all of them were tried with it.
"""

from collections.abc import Mapping

__all__ = ["STAND_INS", "TEACHER", "TINY", "complete"]

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
    """The aliases of an engine: the stand-ins, but for names that it was given models for, and
    over them those that it was given."""
    kept = {name: target for name, target in STAND_INS.items() if name not in models}
    return {**kept, **aliases}
