"""Writes evaluations of a base model and of two checkpoints with tinker-cookbook's EvalStore. It is
a recipe, and runs where tinker-cookbook is installed.

    .venv-cookbook/bin/python tests/support/write_eval_store.py log_path=DIRECTORY
"""

import chz
from tinker_cookbook.eval.benchmarks._types import BenchmarkResult, StoredTrajectory, StoredTurn
from tinker_cookbook.stores.eval_store import EvalStore

ITEMS = 4
RIGHT = {None: 0, "000010": 1, "final": 2}
"""The right answers to gsm8k of each checkpoint; ifeval has one more."""


@chz.chz
class Config:
    log_path: str
    model_name: str = "Qwen/Qwen3-8B"
    bonus: int = 0
    seed: int = 0


def main(config: Config) -> None:
    store = EvalStore(config.log_path)
    for name, right in RIGHT.items():
        path = None if name is None else f"tinker://run-{config.bonus}/sampler_weights/{name}"
        suites = {"gsm8k": right + config.bonus, "ifeval": right + config.bonus + 1}
        run = store.create_run(config.model_name, [*suites], path, name, {"max_tokens": 64})
        for suite, solved in suites.items():
            for number in range(ITEMS):
                store.write_trajectory(run, suite, trajectory(suite, number, number < solved))
            score = solved / ITEMS
            store.write_result(run, BenchmarkResult(suite, score, ITEMS, solved, num_errors=0))
        store.finalize_run(run)


def trajectory(suite: str, number: int, right: bool) -> StoredTrajectory:
    return StoredTrajectory(
        idx=number,
        benchmark=suite,
        example_id=f"{suite}-{number}",
        turns=[
            StoredTurn(role="user", content=f"What is {number}?", token_count=3),
            StoredTurn(role="assistant", content=f"It is {number}.", token_count=3),
        ],
        reward=float(right),
        logs={"expected": str(number)},
    )


if __name__ == "__main__":
    chz.nested_entrypoint(main)
