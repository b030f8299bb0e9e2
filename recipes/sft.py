"""Supervised fine-tuning: show the model questions with their answers.

    python -m recipes.sft task=sorting learning_rate=8e-3 lora_rank=16 log_path=/tmp/sft

The data are problems generated for a task, or conversations from a JSONL file. Requests are
pipelined: a step is submitted before the last one's results are read, so that the service
always has the next to work on. Stopped at any time (SIGTERM, Ctrl-C) and started again with
the same log_path, a run goes on from its last checkpoint as if nothing had happened.
"""

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import chz

from . import chat, rundir, service, tasks

if TYPE_CHECKING:
    import tinker

# What may change between a run's start and its resumption without making it another run.
FREE = frozenset({"log_path", "base_url", "save_every", "ttl_seconds"})


@chz.chz
class Config:
    """What a run is; the same configuration gives the same metrics."""

    model_name: str = chz.field(default="tiny/qwen3", doc="base model, as the service names it")
    task: Literal["addition", "reversal", "sorting"] = chz.field(
        default="sorting", doc="which problems to generate"
    )
    digits: int = chz.field(default=1, doc="addition: digits of each number, 1 to 8")
    length: int = chz.field(default=5, doc="reversal, sorting: letters of a word, 1 to 12")
    letters: int = chz.field(default=8, doc="reversal, sorting: size of the alphabet, 2 to 26")
    train_size: int = chz.field(default=1000, doc="problems to train on, as far as there are any")
    test_size: int = chz.field(default=64, doc="examples held out, the same for every seed")
    data: str | None = chz.field(
        default=None, doc='JSONL of {"messages": [{"role", "content"}]} instead of a task'
    )
    learning_rate: float = chz.field(default=8e-3, doc="Adam's, at the first step")
    lr_schedule: Literal["constant", "linear"] = chz.field(
        default="linear", doc="linear: falls to zero over max_steps"
    )
    lora_rank: int = chz.field(default=16, doc="rank of the LoRA adapter")
    batch_size: int = chz.field(default=32, doc="examples a step")
    max_steps: int = chz.field(default=80, doc="steps to train")
    max_length: int = chz.field(default=1024, doc="longer examples are left out, in tokens")
    eval_every: int = chz.field(default=20, doc="steps between evaluations; 0: first and last only")
    save_every: int = chz.field(default=0, doc="steps between checkpoints; 0: the final one only")
    ttl_seconds: int | None = chz.field(
        default=604800, doc="how long the service keeps checkpoints before the final one"
    )
    seed: int = chz.field(default=0, doc="LoRA initialisation, choice and order of the data")
    log_path: str = chz.field(default="runs/sft", doc="directory for metrics and checkpoints")
    base_url: str | None = chz.field(
        default=None, doc="address of the service; else $TINKER_BASE_URL, else the hosted one"
    )

    @chz.validate
    def _check(self) -> None:
        at_least = {"train_size": 1, "test_size": 1, "lora_rank": 1, "batch_size": 1}
        at_least |= {"max_steps": 1, "max_length": 2, "eval_every": 0, "save_every": 0, "seed": 0}
        for key, least in at_least.items():
            if getattr(self, key) < least:
                raise ValueError(f"{key} must be at least {least}, not {getattr(self, key)}")
        for key, low, high in (("digits", 1, 8), ("length", 1, 12), ("letters", 2, 26)):
            if not low <= getattr(self, key) <= high:
                raise ValueError(f"{key} must be {low} to {high}, not {getattr(self, key)}")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise ValueError(f"learning_rate must be positive, not {self.learning_rate}")
        if self.ttl_seconds is not None and self.ttl_seconds < 3600:
            raise ValueError(f"ttl_seconds must be at least 3600, not {self.ttl_seconds}")
        if not self.log_path:
            raise ValueError("log_path must not be empty")


def main(config: Config) -> None:
    """Train, or go on training. Exit code 143 after SIGTERM and 130 after SIGINT."""
    with service.errors_in_one_line(), service.stop_on_signals() as stop:
        settings = chz.asdict(config)
        run = rundir.open_run(config.log_path, settings, FREE)
        if run.finished:
            print(f"{config.log_path} holds this run, finished after {run.start_step} steps")
            return
        data = load_data(config)
        connection = service.connect(config.base_url, {"recipe": "sft"})
        trainer = Trainer(config, run, connection, data, stop)
        run.write_config(settings)
        run.drop_steps_from(run.start_step)
        finished = trainer.train()
        connection.close()
        if not finished:
            raise SystemExit(stop.exit_code)


def load_data(config: Config) -> tasks.Split:
    """The configured conversations, training and held out."""
    if config.data is not None:
        return tasks.load(config.data, config.test_size)
    if config.task == "addition":
        task = tasks.addition(config.digits)
    elif config.task == "reversal":
        task = tasks.reversal(config.length, config.letters)
    else:
        task = tasks.sorting(config.length, config.letters)
    return tasks.generate(task, config.train_size, config.test_size, config.seed)


def learning_rate_at(config: Config, step: int) -> float:
    """The rate of a step: 0 <= step < max_steps."""
    if config.lr_schedule == "constant":
        return config.learning_rate
    return config.learning_rate * (1.0 - step / config.max_steps)


def open_training(
    connection: service.Service, config: Config, run: rundir.RunDirectory
) -> "tinker.TrainingClient":
    """A new LoRA adapter, or the run's last checkpoint with its optimizer."""
    if run.last_state is None:
        return connection.wait(
            connection.client.create_lora_training_client(
                base_model=config.model_name, rank=config.lora_rank, seed=config.seed
            )
        )
    path = run.last_state["state_path"]
    print(f"resuming after {run.start_step} steps from {path}", flush=True)
    return connection.wait(connection.client.create_training_client_from_state_with_optimizer(path))


def mean_nll(outputs: list[dict[str, Any]], data: list["tinker.Datum"]) -> float:
    """Nats per weighted token: -sum(w log p) / sum(w), in double precision."""
    import numpy as np

    total = weight = 0.0
    for output, datum in zip(outputs, data, strict=True):
        weights = datum.loss_fn_inputs["weights"].to_numpy().astype(np.float64)
        total -= float(weights @ output["logprobs"].to_numpy().astype(np.float64))
        weight += float(weights.sum())
    return total / weight


class Evaluation:
    """The held-out examples under the weights at the moment of its creation.

    Creating one only submits requests; training requests submitted later don't affect it.
    """

    def __init__(self, training: "tinker.TrainingClient", data: list["tinker.Datum"]) -> None:
        self._data = data
        self._forward = training.forward(data, "cross_entropy")
        self._sampler = training.save_weights_and_get_sampling_client()

    def result(
        self, connection: service.Service, tokenizer: Any, examples: list[chat.Example]
    ) -> dict[str, float]:
        """`test/nll`, in nats per answer token, and `test/accuracy`, the share of answers
        that greedy sampling reproduces exactly."""
        import tinker

        sampler = connection.wait(self._sampler)
        answers = [example.tokens[example.answer :] for example in examples]
        requests = [
            sampler.sample(
                tinker.ModelInput.from_ints(example.tokens[: example.answer]),
                1,
                # As long as the right answer: a longer one is wrong already.
                tinker.SamplingParams(max_tokens=len(answer), temperature=0.0, stop=answer[-1:]),
            )
            for example, answer in zip(examples, answers, strict=True)
        ]
        nll = mean_nll(connection.wait(self._forward).loss_fn_outputs, self._data)
        samples = [connection.wait(request).sequences[0] for request in requests]
        right = sum(
            sample.stop_reason == "stop" and chat.same_text(tokenizer, sample.tokens, answer)
            for sample, answer in zip(samples, answers, strict=True)
        )
        return {"test/nll": nll, "test/accuracy": right / len(examples)}


@dataclass(frozen=True)
class Submitted:
    """The requests of one step, under way."""

    step: int
    batch: list["tinker.Datum"]
    forward_backward: "tinker.APIFuture[tinker.ForwardBackwardOutput]"
    optim_step: "tinker.APIFuture[Any]"
    evaluation: Evaluation | None
    saved: "tinker.APIFuture[Any] | None"


class Trainer:
    """The loop: what is submitted when, and what is written when its results are there.

    Line n of the metrics has step n's own results, and the evaluation of the weights that
    step n began with; the last line, at max_steps, has only an evaluation.
    """

    def __init__(
        self,
        config: Config,
        run: rundir.RunDirectory,
        connection: service.Service,
        data: tasks.Split,
        stop: service.Stop,
    ) -> None:
        self.config, self.run, self.stop = config, run, stop
        self.connection, self.wait = connection, connection.wait
        self.training = open_training(connection, config, run)
        self.tokenizer = service.tokenizer_of(self.training)
        train = chat.render_all(self.tokenizer, data.train, config.max_length)
        self.train_data = [chat.to_datum(example) for example in train]
        self.test = chat.render_all(self.tokenizer, data.test, config.max_length)
        self.test_data = [chat.to_datum(example) for example in self.test]
        self.last_line = time.monotonic()

    def train(self) -> bool:
        """Train from the run's start; True at the end, False when stopped by a signal.

        Either way a checkpoint is there: the final one, or one to resume from.
        """
        self.stop.graceful = True
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
        if self.stop.signum is None:
            self.finish()
            return True
        if step > self.run.start_step:
            self.record(step, self.save(step))
        print(f"stopped by signal {self.stop.signum} after {step} steps", flush=True)
        return False

    def submit(self, step: int) -> Submitted:
        """Send all of a step's requests; the service executes them in this order."""
        import tinker

        config = self.config
        due = step > self.run.start_step and config.save_every and step % config.save_every == 0
        saved = self.save(step) if due else None
        evaluate = step == 0 or (config.eval_every and step % config.eval_every == 0)
        evaluation = Evaluation(self.training, self.test_data) if evaluate else None
        indices = tasks.batch_indices(step, config.batch_size, len(self.train_data), config.seed)
        batch = [self.train_data[index] for index in indices]
        adam = tinker.AdamParams(
            learning_rate=learning_rate_at(config, step), beta1=0.9, beta2=0.95, eps=1e-8
        )
        return Submitted(
            step=step,
            batch=batch,
            forward_backward=self.training.forward_backward(batch, "cross_entropy"),
            optim_step=self.training.optim_step(adam),
            evaluation=evaluation,
            saved=saved,
        )

    def complete(self, submitted: Submitted) -> None:
        """Wait for a step's results and write them down."""
        config, step, batch = self.config, submitted.step, submitted.batch
        if submitted.saved:  # before this step's line, after the last one's: safe to resume from
            self.record(step, submitted.saved)
        outputs = self.wait(submitted.forward_backward).loss_fn_outputs
        metrics: dict[str, Any] = {
            "epoch": step * config.batch_size // len(self.train_data),
            "learning_rate": learning_rate_at(config, step),
            "num_sequences": len(batch),
            "num_tokens": sum(datum.model_input.length for datum in batch),
            "train_mean_nll": mean_nll(outputs, batch),
            **(self.wait(submitted.optim_step).metrics or {}),
        }
        if submitted.evaluation:
            metrics |= submitted.evaluation.result(self.connection, self.tokenizer, self.test)
        self.log(step, metrics)

    def finish(self) -> None:
        """The last evaluation and, once it is written, the final checkpoint."""
        step = self.config.max_steps
        evaluation = Evaluation(self.training, self.test_data)
        state = self.training.save_state("final")
        sampler = self.training.save_weights_for_sampler("final")
        self.log(step, evaluation.result(self.connection, self.tokenizer, self.test))
        paths = {"state_path": self.wait(state).path, "sampler_path": self.wait(sampler).path}
        self.run.record_checkpoint({"name": "final", "batch": step, "final": True, **paths})

    def save(self, step: int) -> "tinker.APIFuture[Any]":
        """Submit a checkpoint to resume from."""
        return self.training.save_state(f"{step:06d}", ttl_seconds=self.config.ttl_seconds)

    def record(self, step: int, saved: "tinker.APIFuture[Any]") -> None:
        """Wait for a checkpoint and write down where it is."""
        record = {"name": f"{step:06d}", "batch": step, "state_path": self.wait(saved).path}
        if self.config.ttl_seconds is not None:
            record["ttl_seconds"] = self.config.ttl_seconds
        self.run.record_checkpoint(record)

    def log(self, step: int, metrics: dict[str, Any]) -> None:
        """A line of metrics, and one on the screen. `time/total` is since the line before."""
        now = time.monotonic()
        metrics["progress"] = step / self.config.max_steps
        metrics["time/total"] = now - self.last_line
        self.last_line = now
        self.run.log_metrics(step, metrics)
        shown = [k for k in ("train_mean_nll", "test/nll", "test/accuracy") if k in metrics]
        scores = "  ".join(f"{key} {metrics[key]:.4f}" for key in shown)
        print(f"step {step}/{self.config.max_steps}  {scores}", flush=True)


if __name__ == "__main__":
    main(service.parse_arguments(Config))
