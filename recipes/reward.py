"""Trains a preference model, which predicts which of two answers people prefer, by a score for
each answer: `python -m sweeper.recipes.reward data=pairs.jsonl log_path=/tmp/reward`."""

# The pairs are those of dpo.py. The model reads a question with an answer and is asked whether the
# answer is good; the score is the logprob of the verdict "yes". Training raises the score of the
# chosen answer above that of the rejected one (Bradley and Terry 1952): the loss is -log
# sigmoid(score of the chosen - score of the rejected). Its gradient is computed by cross_entropy
# with signed weights, as in dpo.py. The reward in `rl` is the chance that an answer is preferred to
# the right one. SFT, a preference model and RL are the three stages of RLHF (Ouyang et al. 2022,
# arXiv:2203.02155).

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import chz

from . import dpo, estimates, hyperparams, pairs, preview, rewards, service
from .trainer import run


@chz.chz
class Config(pairs.Settings):
    """Configuration of a run. The same configuration gives the same metrics."""

    log_path: str = chz.field(default="runs/reward", doc="directory for metrics and checkpoints")


lacks = pairs.lacks


def notes(values: Mapping[str, Any]) -> list[str]:
    """Return lines for the plan of a run: the values chosen for `auto`, and notes on its data."""
    return [*hyperparams.notes("reward", Config, values), *pairs.notes(values)]


def main(config: Config) -> None:
    """Train or resume. Exits with code 143 after SIGTERM and 130 after SIGINT."""
    run("reward", RewardTrainer, config)


def examples(values: Mapping[str, Any], count: int) -> preview.Document:
    """Return the first verdicts that a run would train on; see preview.py."""
    return preview.of_pairs(Config(**values), count, rewards.judged)


def estimate(values: dict[str, Any]) -> estimates.Counts:
    """Estimate the tokens of a run with these values; see estimates.py."""
    config = Config(**values)
    tally = estimates.Tally()
    dpo.tally_pairs(tally, config, *estimates.pair_sizes(config, judged=True))
    return tally.counts()


class RewardTrainer(dpo.PairTrainer):
    """The loop of dpo.py, with an answer's score in place of the log ratio. The score is the
    logprob of the verdict on the answer."""

    config: Config
    loss_name: ClassVar = "reward_loss"
    shown: ClassVar = ("reward_loss", "margin", "test/margin", "test/preference_accuracy")

    @property
    def beta(self) -> float:
        """The factor 1: a margin is the plain difference between two scores."""
        return 1.0

    def render(self, split: Sequence[pairs.Pair]) -> list[pairs.Rendered]:
        """Render a verdict on each answer of each pair."""
        render = partial(rewards.judged, self.tokenizer)
        return pairs.render_pairs(split, render, self.config.max_length)

    def begin_baseline(self, batch: list[pairs.Rendered]) -> dpo.Baseline:
        """Return a function that returns zeros, because scores have no baseline."""
        return lambda: [(0.0, 0.0)] * len(batch)


if __name__ == "__main__":
    service.run_program(main, Config)
