"""A program that does not use sweeper: finds the minimum of a parabola by noisy gradient descent.

It has a chz config, so `python -m descent learning_rate=0.3` sets a value. It writes its
measurements into the folder `output_dir`, one JSON object per line. Each step writes a checkpoint,
from which the program continues if it is started again.
"""

import json
import os
import random

import chz


@chz.chz
class Config:
    output_dir: str = chz.field(doc="folder for the measurements")
    learning_rate: float = chz.field(default=0.1, doc="factor of the gradient in a step")
    noise: float = chz.field(default=0.1, doc="standard deviation of noise on the gradient")
    steps: int = chz.field(default=30, doc="number of steps")
    seed: int = chz.field(default=0, doc="seed of the noise")


def main(config: Config) -> None:
    """Descend. Continue from the last checkpoint of an earlier attempt, if there is one."""
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
