"""Direct preference optimization: make preferred answers likelier than rejected ones: `python -m
sweeper.recipes.dpo task=sorting load_checkpoint_path=/tmp/sft log_path=/tmp/dpo`."""

# The pairs come from a JSONL file (pairs.py describes the formats), or are made from generated
# problems: the right answer against one with a mistake in it. The loss is that of Rafailov et al.
# 2023 (arXiv:2305.18290); the reference is the weights that the run starts from:
#
# -log sigmoid(margin)    margin = dpo_beta (log p/ref of the chosen - log p/ref of the rejected)
#
# The service has no such loss and does not need one. The derivative of the loss with respect to a
# token's logprob depends only on the pair's margin, so a step takes two passes. A forward pass
# computes the margins. The second pass uses cross_entropy, which is linear in the logprobs, with
# the derivatives as weights: positive for chosen answers, negative for rejected ones. That gives
# the exact gradient of the loss, without torch.

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import chz

from . import (
    chat,
    estimates,
    evaluating,
    hyperparams,
    pairs,
    preview,
    samplers,
    service,
    settings,
    sft,
    tasks,
)
from .trainer import Trainer, not_finite, run

if TYPE_CHECKING:
    import tinker

Baseline = Callable[[], list[tuple[float, float]]]
"""A function that waits for two numbers of each pair, one for the chosen and one for the rejected
answer: the baselines of the two answers or, for the result of `forward`, their log ratios."""

EVEN = 1e-4
"""Two log ratios that differ by less than this (in nats) count as equal, because such a
difference may be a rounding error."""


@chz.chz
class Config(pairs.Settings, settings.Evaluated):
    """Configuration of a run. The same configuration gives the same metrics."""

    dpo_beta: float = chz.field(
        default=0.1, doc="cost of moving away from the reference: small values allow large changes"
    )
    learning_rate: float | settings.Auto = chz.field(
        default=1e-3, doc="Adam's initial rate; auto: by the model (hyperparams.py)"
    )
    reference_model_name: str | None = chz.field(
        default=None, doc="base model to use as the reference instead of the initial weights"
    )
    log_path: str = chz.field(default="runs/dpo", doc="directory for metrics and checkpoints")

    @chz.validate
    def _check(self) -> None:
        settings.check_positive(self, "dpo_beta")


def lacks(values: Mapping[str, Any]) -> list[str]:
    """Return a line for each mistake in the settings `data` and `eval` of a run."""
    return [*pairs.lacks(values), *evaluating.lacks(values)]


def notes(values: Mapping[str, Any]) -> list[str]:
    """Return lines for the plan of a run: the values chosen for `auto`, and notes on its data."""
    return [
        *hyperparams.notes("dpo", Config, values),
        *pairs.notes(values),
        *evaluating.notes(values),
    ]


def main(config: Config) -> None:
    """Train or resume. Exits with code 143 after SIGTERM and 130 after SIGINT."""
    run("dpo", PreferenceTrainer, config)


def examples(values: Mapping[str, Any], count: int) -> preview.Document:
    """Return the first pairs that a run would train on; see preview.py."""
    return preview.of_pairs(settings.made(Config, values), count, chat.render_answer)


def estimate(values: dict[str, Any]) -> estimates.Counts:
    """Estimate the tokens of a run with these values; see estimates.py."""
    config = settings.made(Config, values)
    train, test = estimates.pair_sizes(config)
    tally, reference = estimates.Tally(), config.reference_model_name or config.model_name
    tally_pairs(tally, config, train, test)
    pairs_used = min(train.number, config.max_steps * config.batch_size) + test.number
    tally.add(reference, "prefill", 2 * pairs_used * (train.prompt + train.answer))
    if config.data is None:
        times = estimates.evaluations(config) * test.number
        tally.add(config.model_name, "prefill", times * test.prompt)
        tally.add(config.model_name, "sample", times * test.answer)
    evaluating.tally(tally, config)
    return tally.counts()


def tally_pairs(
    tally: estimates.Tally, config: pairs.Settings, train: estimates.Sizes, test: estimates.Sizes
) -> None:
    """Add the tokens of a run on pairs to the tally. A step makes two passes over both answers of
    its pairs, and an evaluation makes one."""
    passed = 2 * config.max_steps * config.batch_size * train.whole
    held_out = 2 * estimates.evaluations(config) * test.number * test.whole
    tally.add(config.model_name, "prefill", passed + held_out)
    tally.add(config.model_name, "train", passed)


def slopes(ratios: Sequence[tuple[float, float]], beta: float) -> list[float]:
    """Return for each pair the derivative of the loss with respect to the log ratio of the
    rejected answer. The derivative for the chosen answer has the opposite sign. `ratios` has the
    log ratios of the chosen and the rejected answer of each pair: log p - log ref, summed over
    tokens."""
    count = len(ratios)
    return [beta / count * _sigmoid(-beta * (chosen - rejected)) for chosen, rejected in ratios]


def preference_metrics(ratios: Sequence[tuple[float, float]], beta: float) -> dict[str, float]:
    """Return loss, accuracy, margin and rewards, with tinker-cookbook's names. Accuracy is the
    fraction of pairs in which the chosen answer has the larger log ratio; a tie counts as half."""
    count = len(ratios)
    apart = [chosen - rejected for chosen, rejected in ratios]
    right = [0.5 if abs(gap) < EVEN else float(gap > 0) for gap in apart]
    return {
        "dpo_loss": sum(softplus(-beta * gap) for gap in apart) / count,
        "accuracy": sum(right) / count,
        "margin": beta * sum(apart) / count,
        "chosen_reward": beta * sum(chosen for chosen, _ in ratios) / count,
        "rejected_reward": beta * sum(rejected for _, rejected in ratios) / count,
    }


def softplus(x: float) -> float:
    """Return log(1 + e^x), which is -log sigmoid(-x)."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def _sigmoid(x: float) -> float:
    return math.exp(-softplus(-x))


def weighted(example: chat.Example, slope: float) -> "tinker.Datum":
    """Return the training datum of an answer for the loss `cross_entropy`. The weights of its
    tokens are multiplied by `slope`."""
    return chat.to_datum(example._replace(weights=[slope * weight for weight in example.weights]))


@dataclass(frozen=True)
class Passed:
    """The batch of a step, and the pending requests for its forward pass, evaluation and
    checkpoint. `scores` and `saved` are None if no evaluation or checkpoint is due."""

    step: int
    batch: list[pairs.Rendered]
    forward: Baseline
    scores: Callable[[], dict[str, float]] | None
    saved: "tinker.APIFuture[tinker.types.SaveWeightsResponse] | None"


@dataclass(frozen=True)
class Trained:
    """The pending training requests of a step, and the metrics of its forward pass."""

    passed: Passed
    metrics: dict[str, float]
    forward_backward: "tinker.APIFuture[tinker.ForwardBackwardOutput]"
    optim_step: "tinker.APIFuture[tinker.OptimStepResponse]"


class PairTrainer(Trainer):
    """The training loop on pairs. A step computes the margins in a forward pass, and then trains
    with the gradient of the loss. A margin is `beta` times (log ratio of the chosen answer - log
    ratio of the rejected answer). A log ratio is an answer's logprob minus a baseline logprob."""

    loss_name: ClassVar = "dpo_loss"

    @staticmethod
    def load_data(config: Any) -> pairs.PairSplit:
        """Load the configured pairs."""
        return pairs.load_pairs(config)

    def prepare(self, data: pairs.PairSplit) -> None:
        """Render all pairs as tokens."""
        self.train_pairs = self.render(data.train)
        self.test_pairs = self.render(data.test)

    @property
    @abstractmethod
    def beta(self) -> float:
        """The factor `beta` in the definition of a margin."""

    @abstractmethod
    def render(self, split: Sequence[pairs.Pair]) -> list[pairs.Rendered]:
        """Render both answers of each pair, with weight on the tokens that enter the margin."""

    @abstractmethod
    def begin_baseline(self, batch: list[pairs.Rendered]) -> Baseline:
        """Request the baseline logprobs of a batch. The returned function waits for them."""

    def measures(self, ratios: Sequence[tuple[float, float]]) -> dict[str, float]:
        """Return the metrics of a batch."""
        measures = preference_metrics(ratios, self.beta)
        return {self.loss_name: measures.pop("dpo_loss"), **measures}

    def train_steps(self) -> int:
        """Run the remaining steps, until a signal arrives. Return the number of finished steps. A
        step's forward pass is submitted before the previous step's results are read."""
        step = self.run.start_step
        passed = self.begin(step) if step < self.config.max_steps else None
        while passed is not None:
            trained = self.train_on(passed)
            step += 1
            going = step < self.config.max_steps and self.stop.signum is None
            passed = self.begin(step) if going else None
            self.complete(trained)
        return step

    def begin(self, step: int) -> Passed:
        """Submit the forward pass of a step, and its checkpoint and evaluation if they are due.
        All three use the weights at the beginning of the step."""
        config = self.config
        saved = self.save(step) if self.save_due(step) else None
        scores = self.begin_scores(step)
        indices = tasks.batch_indices(step, config.batch_size, len(self.train_pairs), config.seed)
        batch = [self.train_pairs[index] for index in indices]
        return Passed(step, batch, self.forward(batch), scores, saved)

    def forward(self, batch: list[pairs.Rendered]) -> Baseline:
        """Submit the forward pass of a batch, and request the baseline logprobs. The returned
        function waits for the log ratios of each pair."""
        flat = [example for pair in batch for example in pair]
        data = [weighted(example, 1.0) for example in flat]
        request = self.training.forward(data, "cross_entropy")
        baseline = self.begin_baseline(batch)

        def ratios() -> list[tuple[float, float]]:
            before = baseline()
            outputs = self.wait(request).loss_fn_outputs
            sums = [
                math.fsum(output["logprobs"].to_numpy()[example.answer - 1 :].tolist())
                for output, example in zip(outputs, flat, strict=True)
            ]
            by_pair = zip(sums[::2], sums[1::2], before, strict=True)
            return [(chosen - a, rejected - b) for chosen, rejected, (a, b) in by_pair]

        return ratios

    def train_on(self, passed: Passed) -> Trained:
        """Wait for the log ratios. Then submit the forward-backward pass and the optimizer's
        step."""
        with self.timed("forward"):
            ratios = passed.forward()
        measured = self.measures(ratios)
        if not_finite(measured):
            self.log(passed.step, measured)  # raises, which ends the run
        data: list[tinker.Datum] = []
        for pair, slope in zip(passed.batch, slopes(ratios, self.beta), strict=True):
            data += [weighted(pair.chosen, slope), weighted(pair.rejected, -slope)]
        loss = self.training.forward_backward(data, "cross_entropy")
        return Trained(passed, measured, loss, self.training.optim_step(self.adam(passed.step)))

    def complete(self, trained: Trained) -> None:
        """Wait for a step's results and log them."""
        config, passed = self.config, trained.passed
        step, batch = passed.step, passed.batch
        if passed.saved:
            # A checkpoint is recorded between the metrics of the last step and of this one, so that
            # a run can resume from it.
            self.record(step, passed.saved)
        with self.timed("forward_backward"):
            self.wait(trained.forward_backward)
        with self.timed("optim_step"):
            optimizer = self.wait(trained.optim_step).metrics or {}
        metrics: dict[str, Any] = {
            "epoch": step * config.batch_size // len(self.train_pairs),
            "learning_rate": settings.learning_rate_at(config, step),
            "num_pairs": len(batch),
            "num_tokens": sum(len(example.tokens) - 1 for pair in batch for example in pair),
            **trained.metrics,
            **optimizer,
        }
        if passed.scores:
            with self.timed("eval"):
                metrics |= passed.scores()
        self.log(step, metrics)

    def begin_evaluation(self, step: int) -> Callable[[], dict[str, float]]:
        """Submit the forward pass of the held-out pairs. The returned function waits for the
        metrics."""
        del step  # evaluates the current weights
        ratios = self.forward(self.test_pairs)

        def scores() -> dict[str, float]:
            measured = self.measures(ratios())
            measured["preference_accuracy"] = measured.pop("accuracy")
            return {f"test/{key}": value for key, value in measured.items()}

        return scores


class PreferenceTrainer(PairTrainer):
    """A trainer whose baselines are the logprobs of a reference model. The reference does not
    change, so its logprobs are requested only once for each pair."""

    config: Config
    shown: ClassVar = ("dpo_loss", "margin", "test/margin", "test/preference_accuracy")

    def prepare(self, data: pairs.PairSplit) -> None:
        """Render all pairs, and open the reference."""
        super().prepare(data)
        other = self.config.reference_model_name
        self.reference = samplers.open_sampler(
            self.connection, other or self.config.model_name, None if other else self.parent
        )
        # The keys are ids of pairs, which are valid because the pairs live as long as this object.
        self._baselines: dict[int, tuple[float, float]] = {}

    @property
    def beta(self) -> float:
        """The setting `dpo_beta`: how strongly the model is kept near the reference."""
        return self.config.dpo_beta

    def render(self, split: Sequence[pairs.Pair]) -> list[pairs.Rendered]:
        """Render both answers of each pair, with weight on all tokens of the answers."""
        render = partial(chat.render_answer, self.tokenizer)
        return pairs.render_pairs(split, render, self.config.max_length)

    def begin_baseline(self, batch: list[pairs.Rendered]) -> Baseline:
        """Request the reference's logprobs of the pairs whose logprobs are still unknown. The
        returned function waits for the logprobs of all pairs in the batch."""
        unknown = {id(pair): pair for pair in batch if id(pair) not in self._baselines}
        ask = partial(samplers.begin_answer_logprobs, self.connection, self.reference)
        requests = {key: (ask(pair.chosen), ask(pair.rejected)) for key, pair in unknown.items()}

        def baselines() -> list[tuple[float, float]]:
            for key, (chosen, rejected) in requests.items():
                self._baselines[key] = math.fsum(chosen()), math.fsum(rejected())
            return [self._baselines[id(pair)] for pair in batch]

        return baselines

    def begin_evaluation(self, step: int) -> Callable[[], dict[str, float]]:
        """Submit an evaluation. For generated problems, the evaluation also measures
        `test/accuracy`: the share of problems that greedy sampling answers correctly."""
        measured = super().begin_evaluation(step)
        if self.config.data is not None:
            return measured
        snapshot = self.training.save_weights_and_get_sampling_client()
        right = [pair.chosen for pair in self.test_pairs]

        def scores() -> dict[str, float]:
            scores = measured()
            if not_finite(scores):
                return scores
            answered = sft.begin_greedy(self.connection, snapshot, self.tokenizer, right)
            return scores | {"test/accuracy": answered()}

        return scores


if __name__ == "__main__":
    service.run_program(main, Config)
