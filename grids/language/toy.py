"""A quick program for the grids beside it: looks for the lowest point of a bowl, in two dimensions.

python grids/language/toy.py log_path=/tmp/toy learning_rate=0.1 schedule.warmup=5
"""

import json
import math
import os
import random
from typing import Literal

import chz


@chz.chz
class Schedule:
    kind: Literal["constant", "linear"] = chz.field(default="constant", doc="linear: down to 0")
    warmup: int = chz.field(default=0, doc="steps until the whole learning rate")


@chz.chz
class Config:
    log_path: str = chz.field(doc="folder for what is measured")
    optimizer: Literal["sgd", "adam"] = chz.field(default="sgd", doc="which steps to take")
    learning_rate: float = chz.field(default=0.1, doc="of the slope, a step")
    momentum: float = chz.field(default=0.0, doc="of sgd")
    beta2: float = chz.field(default=0.99, doc="of adam: memory of the squared slope")
    amsgrad: bool = chz.field(default=False, doc="of adam: the memory never shrinks")
    bowl: Literal["round", "narrow"] = chz.field(default="round", doc="what to descend in")
    start: list[float] = chz.field(default_factory=lambda: [3.0, 2.0], doc="where to begin")
    steps: int = chz.field(default=20, doc="how many")
    noise: float = chz.field(default=0.1, doc="standard deviation, on the slope")
    noise_seed: int | None = chz.field(default=None, doc="of the noise, if not the seed")
    seed: int = chz.field(default=0, doc="of all that is random")
    note: str = chz.field(default="", doc="printed at the end")
    schedule: Schedule = chz.field(default_factory=Schedule, doc="of the learning rate")


def main(config: Config) -> None:
    """Descend, and write the height after each step."""
    source = random.Random(config.seed if config.noise_seed is None else config.noise_seed)
    width = (1.0, 1.0) if config.bowl == "round" else (1.0, 10.0)
    at, velocity, square = list(config.start), [0.0, 0.0], [1e-8, 1e-8]
    os.makedirs(config.log_path, exist_ok=True)
    with open(os.path.join(config.log_path, "metrics.jsonl"), "w", encoding="utf-8") as file:
        for step in range(config.steps):
            rate = config.learning_rate * min(1.0, (step + 1) / (config.schedule.warmup + 1))
            if config.schedule.kind == "linear":
                rate *= 1 - step / config.steps
            for axis in (0, 1):
                slope = width[axis] * at[axis] + source.gauss(0.0, config.noise)
                if config.optimizer == "adam":
                    memory = config.beta2 * square[axis] + (1 - config.beta2) * slope**2
                    square[axis] = max(memory, square[axis]) if config.amsgrad else memory
                    at[axis] -= rate * slope / math.sqrt(square[axis])
                else:
                    velocity[axis] = config.momentum * velocity[axis] + slope
                    at[axis] -= rate * velocity[axis]
            height = sum(w * x * x / 2 for w, x in zip(width, at, strict=True))
            file.write(json.dumps({"step": step, "height": height}) + "\n")
    print(config.note or "done")


if __name__ == "__main__":
    chz.nested_entrypoint(main)
