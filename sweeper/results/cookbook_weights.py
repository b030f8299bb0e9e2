"""Calls a function of `tinker_cookbook.weights`. Run this file by path in an interpreter with
tinker-cookbook, with `{"action": ..., "arguments": {...}}` on standard input. Uses only the
standard library."""

import importlib
import json
import sys

ACTIONS = {"peft": "build_lora_adapter", "merged": "build_hf_model", "push": "publish_to_hf_hub"}


def main() -> None:
    """Call the function named on standard input. If the call fails, exit with a one-line error."""
    del sys.path[0]  # modules in this file's folder must not be importable by name
    request = json.loads(sys.stdin.read())
    try:
        weights = importlib.import_module("tinker_cookbook.weights")
        getattr(weights, ACTIONS[request["action"]])(**request["arguments"])
    except Exception as error:  # noqa: BLE001  (the function may raise anything)
        sys.exit(f"{type(error).__name__}: {' '.join(str(error).split())}")


if __name__ == "__main__":
    main()
