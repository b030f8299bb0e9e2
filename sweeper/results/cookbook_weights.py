"""Calls one function of `tinker_cookbook.weights`. Run by path in an interpreter that has it, with
`{"action": ..., "arguments": {...}}` on standard input. Standard library only."""

import importlib
import json
import sys

ACTIONS = {"peft": "build_lora_adapter", "merged": "build_hf_model", "push": "publish_to_hf_hub"}


def main() -> None:
    """Carry out the request. Exits with a line about the error."""
    del sys.path[0]  # this file's folder, whose modules are not to be found by name
    request = json.loads(sys.stdin.read())
    try:
        weights = importlib.import_module("tinker_cookbook.weights")
        getattr(weights, ACTIONS[request["action"]])(**request["arguments"])
    except Exception as error:  # noqa: BLE001  (it is somebody else's code)
        sys.exit(f"{type(error).__name__}: {' '.join(str(error).split())}")


if __name__ == "__main__":
    main()
