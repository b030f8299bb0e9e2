"""Makes the weights of `tiny/teacher`: `tiny/qwen3` after long training on all of the project's
tasks.

    python tests/support/make_teacher.py FOLDER

The sft recipe trains an adapter on its own engine, in FOLDER; this can be stopped and started
again. Then the adapter is merged into the base's weights, which are written as bfloat16 for the
engine to load. The last bits depend on the processor, so the published file is authoritative.
"""

import json
import os
import random
import struct
import subprocess
import sys

import numpy as np

from sweeper import paths
from sweeper.engine import lifecycle, models, tiny
from sweeper.engine.checkpoints import Vault, parse
from sweeper.recipes import tasks

ROWS = 24_000
SETTINGS = {"lora_rank": 64, "batch_size": 64, "max_steps": 3000, "learning_rate": 5e-3,
            "warmup_steps": 50, "eval_every": 500, "save_every": 500, "test_size": 200}  # fmt: skip
NAMES = {short: f"self_attn.{short}_proj" for short in "qkvo"}
NAMES |= {short: f"mlp.{short}_proj" for short in ("gate", "up", "down")}


def problems(draw):
    """Return a random question with its answer: first a kind is drawn, then a size."""
    kind = draw.choice(("addition", "addition", "sorting", "reversal"))
    if kind == "addition":
        task = tasks.addition(draw.choice((1, 2, 2)))
    else:
        make = {"sorting": tasks.sorting, "reversal": tasks.reversal}[kind]
        task = make(draw.choice((2, 3, 4, 5, 5)), draw.choice((4, 6, 8, 8)))
    question, answer = task.problem(draw.randrange(task.size))
    return {"prompt": question, "answer": answer}


def train(folder):
    """Train the adapter and return its address."""
    data = os.path.join(folder, "problems.jsonl")
    draw = random.Random("teacher")
    with open(data, "w", encoding="utf-8") as file:
        for _ in range(ROWS):
            file.write(json.dumps(problems(draw)) + "\n")
    home = os.path.join(folder, "home")
    log_path = os.path.join(folder, "run")
    command = [sys.executable, "-m", "sweeper.recipes.sft", f"data={data}", f"log_path={log_path}"]
    command += [f"{key}={value}" for key, value in SETTINGS.items()]
    with subprocess.Popen(lifecycle.command(home), stdin=subprocess.DEVNULL) as engine:
        try:
            address = {"TINKER_BASE_URL": lifecycle.wait(home, timeout=60).url}
            address |= {"TINKER_API_KEY": lifecycle.client_key(home)}
            subprocess.run(command, check=True, env=os.environ | address)
        finally:
            engine.terminate()
    with open(os.path.join(log_path, "checkpoints.jsonl"), encoding="utf-8") as file:
        return home, json.loads(file.readlines()[-1])["state_path"]


def merged(home, address):
    """Return the base's weights with the adapter merged, by their published names, as float32."""
    checkpoint = Vault(paths.checkpoints(home)).load(parse(address))
    out = dict(tiny.weights())
    for name in [key[:-2] for key in checkpoint.adapter if key.endswith(".A")]:
        layer, _, short = name.rpartition(".")
        full = f"model.layers.{layer}.{NAMES[short]}.weight" if layer else "lm_head.weight"
        a, b = (checkpoint.adapter[f"{name}.{part}"].astype(np.float64) for part in "AB")
        out[full] = (out[full] + b @ a * checkpoint.config.scale).astype(np.float32)
    return out


def as_bfloat16(array):
    """Return the upper half of each float32, rounded to the nearest even."""
    bits = array.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def as_safetensors(arrays):
    """Return the file's bytes: the length of a header in JSON, the header, the arrays in order."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, array in sorted(arrays.items()):
        raw = as_bfloat16(array).tobytes()
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": "BF16", "shape": list(array.shape), "data_offsets": offsets}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def main():
    target = os.path.join(os.path.dirname(models.__file__), "teacher.safetensors")
    write(target, tiny.weights())  # the engine requires one, whatever it contains
    write(target, merged(*train(sys.argv[1])))
    print(f"{target}: {os.path.getsize(target):,} bytes")


def write(target, arrays):
    with open(target, "wb") as file:
        file.write(as_safetensors(arrays))


if __name__ == "__main__":
    main()
