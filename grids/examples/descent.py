"""Somebody's program: finds the lowest point of a bowl by gradient descent with noise.

It has a chz config, so that its settings can be given as `python -m descent learning_rate=0.3`, and
writes what it measures into the folder it is given, a JSON object a line. It knows nothing of
sweeper. Each step leaves a checkpoint, from which it goes on when it is started again.
"""

import json
import os
import random

import chz


@chz.chz
class Config:
    output_dir: str = chz.field(doc="folder for what is measured")
    learning_rate: float = chz.field(default=0.1, doc="of the slope, a step")
    noise: float = chz.field(default=0.1, doc="standard deviation, on the slope")
    steps: int = chz.field(default=30, doc="how many")
    seed: int = chz.field(default=0, doc="of the noise")


def main(config: Config) -> None:
    """Descend, from where an earlier attempt has left off if there was one."""
    records = os.path.join(config.output_dir, "checkpoints.jsonl")
    x, first = 5.0, 0
    for last in read(records):
        x, first = last["x"], int(last["step"]) + 1
    with (
        open(os.path.join(config.output_dir, "metrics.jsonl"), "a", encoding="utf-8") as metrics,
        open(records, "a", encoding="utf-8") as checkpoints,
    ):
        for step in range(first, config.steps):
            metrics.write(json.dumps({"step": step, "height": x * x}) + "\n")
            noise = random.Random(f"{config.seed} {step}").gauss(0.0, config.noise)
            x -= config.learning_rate * (2 * x + noise)
            record = {"name": f"{step:06d}", "step": step, "x": x}
            checkpoints.write(json.dumps(record | {"final": step + 1 == config.steps}) + "\n")
            metrics.flush()
            checkpoints.flush()
    print(f"lowest point at {x:.3f}")


def read(path: str) -> list[dict[str, float]]:
    """Return the records in a file; none if it does not exist."""
    try:
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file]
    except FileNotFoundError:
        return []


if __name__ == "__main__":
    chz.nested_entrypoint(main)
