"""Samples from the service with tinker-cookbook's `capture` switched on. It is a recipe, and runs
where tinker-cookbook is installed. `drawn.json` in its folder has the samples."""

# pyright: reportMissingImports=false

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import chz
import tinker
from tinker_cookbook.capture import (
    CaptureExporter,
    JsonlFileSink,
    capture,
    instrument_tinker,
    uninstrument_tinker,
)
from tinker_cookbook.capture.store import capture_to_store
from tinker_cookbook.stores.storage import LocalStorage

PROMPT = [72, 105, 33]


@chz.chz
class Config:
    log_path: str
    sink: str = "daemon"
    seed: int = 0


@contextmanager
def capturing(config: Config) -> Iterator[None]:
    if config.sink == "daemon":
        folder = f"{config.log_path}/capture"
        with capture_to_store("run", data_dir=folder, idle_shutdown_minutes=0.2):
            yield
        return
    exporter = CaptureExporter(JsonlFileSink(LocalStorage(config.log_path)))
    instrument_tinker(exporter)
    with capture(run_id="run"):
        yield
    uninstrument_tinker()
    exporter.wait_pending(timeout=5.0)
    exporter.shutdown()


def summary(group: int, number: int, turns: int) -> str:
    steps = [{"ob_len": 3, "ac_len": 4, "reward": 0.5, "logs": {"response": "hi"}}] * turns
    place = {"iteration": 0, "split": "train", "group_idx": group, "traj_idx": number}
    return json.dumps({**place, "total_reward": 0.5 * turns, "steps": steps}) + "\n"


def main(config: Config) -> None:
    sampler = tinker.ServiceClient().create_sampling_client(base_model="tiny/qwen3").result()
    params = tinker.SamplingParams(max_tokens=4, seed=config.seed)
    drawn: list[dict[str, object]] = []

    def draw(prompt: list[int], count: int) -> None:
        answer = sampler.sample(tinker.ModelInput.from_ints(prompt), count, params).result()
        drawn.extend(
            {
                "prompt_tokens": prompt,
                "sampled_tokens": sequence.tokens,
                "logprobs": sequence.logprobs,
            }
            for sequence in answer.sequences
        )

    with capturing(config):
        with capture(split="train", iteration=0, group_idx=0, traj_idx=1):
            draw(PROMPT, 1)
            draw([*PROMPT, 10], 1)  # its second turn
        with capture(split="train", iteration=1, purpose="rollout"):
            draw(PROMPT, 2)  # a group of two
    folder = Path(config.log_path)
    (folder / "iteration_000000").mkdir()
    lines = summary(0, 0, 1) + summary(0, 1, 2)
    (folder / "iteration_000000/train_rollout_summaries.jsonl").write_text(lines)
    (folder / "metrics.jsonl").write_text('{"step": 0, "x": 1}\n')
    (folder / "drawn.json").write_text(json.dumps(drawn))


if __name__ == "__main__":
    chz.nested_entrypoint(main)
