"""Supervised fine-tuning: train the model on questions with their answers: `python -m
sweeper.recipes.sft task=sorting learning_rate=8e-3 lora_rank=16 log_path=/tmp/sft`."""

# The data are problems generated for a task, or conversations from a JSONL file. Requests are
# pipelined: a step is submitted before the previous one's results are read, so that the service
# always has work. A run that is stopped (SIGTERM, Ctrl-C) and started again with the same log_path
# resumes from its last checkpoint as if nothing had happened.

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import chz

from . import chat, estimates, evaluating, hyperparams, preview, service, settings, tasks
from .trainer import Trainer, run

if TYPE_CHECKING:
    from collections.abc import Callable

    import tinker


@chz.chz
class Config(settings.Settings, settings.Evaluated):
    """Configuration of a run. The same configuration gives the same metrics."""

    batch_size: int = chz.field(default=32, doc="examples per step")
    train_on_what: chat.Learned = chz.field(
        default="all_assistant_messages",
        doc="the part of a conversation to learn; never messages with trainable: false",
    )
    log_path: str = chz.field(default="runs/sft", doc="directory for metrics and checkpoints")

    @chz.validate
    def _check(self) -> None:
        settings.check_at_least(self, batch_size=1)


def lacks(values: Mapping[str, Any]) -> list[str]:
    """Return the mistakes in the files of a run's data and suites."""
    return [*settings.lacks(values), *evaluating.lacks(values)]


def notes(values: Mapping[str, Any]) -> list[str]:
    """Return the plan's notes on a run: the values chosen for `auto`, its data and its suites."""
    return [
        *hyperparams.notes("sft", Config, values),
        *settings.notes(values),
        *evaluating.notes(values),
    ]


def main(config: Config) -> None:
    """Train or resume. Exits with code 143 after SIGTERM and 130 after SIGINT."""
    run("sft", SupervisedTrainer, config)


def examples(values: Mapping[str, Any], count: int) -> preview.Document:
    """Return the first examples that a run would train on; see preview.py."""
    config = settings.made(Config, values)
    return preview.of_conversations(config, count, config.train_on_what)


def estimate(values: dict[str, Any]) -> estimates.Counts:
    """Estimate the tokens of a run with these values; see estimates.py."""
    config = settings.made(Config, values)
    train, test = estimates.split_sizes(config)
    tally, model = estimates.Tally(), config.model_name
    tally.add(model, "train", config.max_steps * config.batch_size * train.whole)
    tally_evaluation(tally, model, test, estimates.evaluations(config))
    evaluating.tally(tally, config)
    return tally.counts()


def tally_evaluation(tally: estimates.Tally, model: str, test: estimates.Sizes, times: int) -> None:
    """Count the tokens of `times` evaluations: a forward pass over the held-out examples, and
    greedy answers to them."""
    tally.add(model, "prefill", times * test.number * (test.whole + test.prompt))
    tally.add(model, "sample", times * test.number * test.answer)


def mean_nll(outputs: list[dict[str, Any]], data: list["tinker.Datum"]) -> float:
    """Return nats per weighted token: -sum(w log p) / sum(w), in double precision."""
    import numpy as np

    total = weight = 0.0
    for output, datum in zip(outputs, data, strict=True):
        weights = datum.loss_fn_inputs["weights"].to_numpy().astype(np.float64)
        total -= float(weights @ output["logprobs"].to_numpy().astype(np.float64))
        weight += float(weights.sum())
    return total / weight


class Evaluation:
    """An evaluation of the held-out examples with the weights at the moment of its creation.

    Creating one only submits requests; training requests submitted later don't affect it.
    """

    def __init__(self, training: "tinker.TrainingClient", data: list["tinker.Datum"]) -> None:
        self._data = data
        self._forward = training.forward(data, "cross_entropy")
        self._sampler = training.save_weights_and_get_sampling_client()

    def result(
        self, connection: service.Service, tokenizer: Any, examples: list[chat.Example]
    ) -> dict[str, float]:
        """Return `test/nll`, in nats per answer token, and `test/accuracy`, the share of answers
        whose text greedy sampling reproduces. If the model has diverged, return only
        `test/nll`."""
        accuracy = begin_greedy(connection, self._sampler, tokenizer, examples)
        nll = mean_nll(connection.wait(self._forward).loss_fn_outputs, self._data)
        if not math.isfinite(nll):
            return {"test/nll": nll}
        return {"test/nll": nll, "test/accuracy": accuracy()}


def begin_greedy(
    connection: service.Service, sampler: Any, tokenizer: Any, examples: list[chat.Example]
) -> "Callable[[], float]":
    """Request greedy answers to the questions of `examples`. The returned function waits for the
    answers, and returns the share of answers with the right text (see `chat.same_text`).
    `sampler` is a future of a sampling client."""
    import tinker

    client = connection.wait(sampler)
    answers = [example.tokens[example.answer :] for example in examples]
    requests = [
        client.sample(
            tinker.ModelInput.from_ints(example.tokens[: example.answer]),
            1,
            # At most as long as the right answer, because any longer answer is wrong.
            tinker.SamplingParams(max_tokens=len(answer), temperature=0.0, stop=answer[-1:]),
        )
        for example, answer in zip(examples, answers, strict=True)
    ]

    def share_right() -> float:
        samples = [connection.wait(request).sequences[0] for request in requests]
        right = sum(
            sample.stop_reason == "stop" and chat.same_text(tokenizer, sample.tokens, answer)
            for sample, answer in zip(samples, answers, strict=True)
        )
        return right / len(examples)

    return share_right


@dataclass(frozen=True)
class Submitted:
    """The pending requests of one step."""

    step: int
    batch: list["tinker.Datum"]
    forward_backward: "tinker.APIFuture[tinker.ForwardBackwardOutput]"
    optim_step: "tinker.APIFuture[tinker.OptimStepResponse]"
    scores: "Callable[[], dict[str, float]] | None"
    saved: "tinker.APIFuture[tinker.types.SaveWeightsResponse] | None"


class SupervisedTrainer(Trainer):
    """The training loop. It submits each step's requests, and logs their results when they
    arrive."""

    config: Config
    shown: ClassVar = ("train_mean_nll", "test/nll", "test/accuracy")

    def prepare(self, data: tasks.Split) -> None:
        """Render all conversations as tokens."""
        self.train_data = self.render_train(data)
        self.test = chat.render_all(self.tokenizer, data.test, self.config.max_length, self.learn)
        self.test_data = [chat.to_datum(example) for example in self.test]

    @property
    def learn(self) -> chat.Learned:
        """The setting `train_on_what`, which also selects what is evaluated."""
        return self.config.train_on_what

    def render_train(self, data: tasks.Split) -> list[chat.Example]:
        """Return the examples to train on."""
        return chat.render_all(self.tokenizer, data.train, self.config.max_length, self.learn)

    def train_steps(self) -> int:
        """See `Trainer`. Each step is submitted before the previous step's results are read."""
        under_way: Submitted | None = None
        step = self.run.start_step
        while step < self.config.max_steps and self.stop.signum is None:
            submitted = self.submit(step)
            if under_way:
                self.complete(under_way)
            under_way = submitted
            step += 1
        if under_way:
            self.complete(under_way)
        return step

    def begin_evaluation(self, step: int) -> "Callable[[], dict[str, float]]":
        """Submit an evaluation. The returned function waits for its metrics and returns them."""
        del step  # evaluates the current weights
        evaluation = Evaluation(self.training, self.test_data)
        return lambda: evaluation.result(self.connection, self.tokenizer, self.test)

    def submit(self, step: int) -> Submitted:
        """Submit all requests of a step. The service executes them in the order in which they
        are submitted: first a checkpoint and evaluations if they are due, then the training."""
        saved = self.save(step) if self.save_due(step) else None
        scores = self.begin_scores(step)
        batch = self.shown_at(step)
        return Submitted(
            step=step,
            batch=batch,
            forward_backward=self.training.forward_backward(batch, "cross_entropy"),
            optim_step=self.training.optim_step(self.adam(step)),
            scores=scores,
            saved=saved,
        )

    def shown_at(self, step: int) -> list["tinker.Datum"]:
        """Return the examples of a step."""
        config, count = self.config, len(self.train_data)
        indices = tasks.batch_indices(step, config.batch_size, count, config.seed)
        return [chat.to_datum(self.train_data[index]) for index in indices]

    def complete(self, submitted: Submitted) -> None:
        """Wait for a step's results and log them."""
        config, step, batch = self.config, submitted.step, submitted.batch
        # A checkpoint is recorded between the metrics of the last step and of this one, so that a
        # run can resume from it.
        if submitted.saved:
            self.record(step, submitted.saved)
        with self.timed("forward_backward"):
            outputs = self.wait(submitted.forward_backward).loss_fn_outputs
        with self.timed("optim_step"):
            optimizer = self.wait(submitted.optim_step).metrics or {}
        metrics: dict[str, Any] = {
            "epoch": step * config.batch_size // len(self.train_data),
            "learning_rate": settings.learning_rate_at(config, step),
            "num_sequences": len(batch),
            "num_tokens": sum(datum.model_input.length for datum in batch),
            "train_mean_nll": mean_nll(outputs, batch),
            **optimizer,
        }
        if submitted.scores:
            with self.timed("eval"):
                metrics |= submitted.scores()
        self.log(step, metrics)


if __name__ == "__main__":
    service.run_program(main, Config)
