"""The common parts of all runs that train: start, resumption, checkpoints and end. A recipe
defines a subclass of `Trainer` with the methods `prepare`, `train_steps` and `begin_evaluation`."""

# Line n of the metrics has step n's own results, and the evaluation of the weights that step n
# began with; the last line, at max_steps, has only an evaluation.

import math
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import chz

from . import evaluating, hyperparams, rundir, service, settings, thinking, tracking

if TYPE_CHECKING:
    import tinker


_SUITE = re.compile("eval/.+/score")


def run(recipe: str, trainer: type["Trainer"], config: settings.Training) -> None:
    """Train or resume. Exits with code 143 after SIGTERM and 130 after SIGINT."""
    with service.errors_in_one_line(), service.stop_on_signals() as stop:
        config, whys = found_numbers(recipe, config)
        values = chz.asdict(config)
        directory = rundir.open_run(config.log_path, values, settings.FREE)
        if directory.finished:
            steps = directory.start_step
            print(f"{config.log_path} already has this run, which finished at step {steps}")
            return
        data = trainer.load_data(config)
        connection = service.connect(config.base_url, {"recipe": recipe})
        loop = trainer(config, directory, connection, data, stop)
        directory.write_config(values | ({"auto": whys} if whys else {}))
        directory.drop_steps_from(directory.start_step)
        with tracking.tracked(config, directory, values) as tracker:
            try:
                finished = loop.train(tracker)
            finally:
                loop.close()
                if loop.suites is not None:
                    loop.suites.close()
            connection.close()
            if not finished:
                raise SystemExit(stop.exit_code)


class Diverged(service.RecipeError):
    """Raised if a training metric is NaN or infinite."""


class Trainer(ABC):
    """A run in progress. `training` is the SDK's training client. `wait` waits for a request and
    returns the result."""

    shown: ClassVar[tuple[str, ...]] = ()
    """The metrics that are also printed."""

    thinking: str | None = None
    """The setting `thinking`; None means the chat template's default."""

    def __init__(
        self,
        config: Any,
        directory: rundir.RunDirectory,
        connection: service.Service,
        data: Any,
        stop: service.Stop,
    ) -> None:
        self.config, self.run, self.stop = config, directory, stop
        self.connection, self.wait = connection, connection.wait
        self.parent = parent_of(config, directory)
        last = directory.last_state or directory.last_record or {}
        self.thinking = thinking.resolved(connection, config, last)
        self.training = open_training(connection, config, directory, self.parent, self.about)
        tokenizer = service.tokenizer_of(self.training)
        self.tokenizer = thinking.applied(tokenizer, self.thinking, config.model_name)
        self.suites = None
        if getattr(config, "eval", None) is not None:  # not every recipe has the setting
            about = directory, connection, self.tokenizer, self.thinking
            self.suites = evaluating.Suites(config, *about)
        self.last_line, self.stopwatch = time.monotonic(), Stopwatch()
        self.timed = self.stopwatch.span
        self.prepare(data)

    @staticmethod
    def load_data(config: Any) -> Any:
        """Load the training data and the held-out data, before any request to a service."""
        return settings.load_data(config)

    @abstractmethod
    def prepare(self, data: Any) -> None:
        """Prepare the data for training and evaluation."""

    @abstractmethod
    def train_steps(self) -> int:
        """Train and log from the run's start step on, until the end or until `stop` has received a
        signal. Return the number of steps trained, including those before a resumption."""

    @abstractmethod
    def begin_evaluation(self, step: int) -> Callable[[], dict[str, float]]:
        """Submit an evaluation of the current weights. The returned function waits for the scores
        and returns them. Requests that are submitted later do not change the scores."""

    def train(self, tracker: tracking.Tracker) -> bool:
        """Train until the end, record the final checkpoint and return True. If a signal stops the
        training, save a checkpoint to resume from and return False. After a signal, no checkpoint
        is saved if all steps are saved already, or if the run cannot resume at the current
        step."""
        self.tracker = tracker
        self.stop.graceful = True
        step = self.train_steps()
        if self.stop.signum is None:
            self.finish(step)
            return True
        if step > self.run.start_step and self.resumable(step) and not self.is_saved(step):
            self.record(step, self.save(step))
        print(f"stopped by signal {self.stop.signum} at step {step}", flush=True)
        return False

    def adam(self, step: int) -> "tinker.AdamParams":
        """Return the optimizer's parameters at a step."""
        import tinker

        rate = settings.learning_rate_at(self.config, step)
        return tinker.AdamParams(learning_rate=rate, beta1=0.9, beta2=0.95, eps=1e-8)

    def begin_scores(self, step: int, last: bool = False) -> Callable[[], dict[str, float]] | None:
        """Submit the evaluations (held-out examples, suites) that are due before a step. With
        `last`, submit all evaluations. Return a function that waits for the scores and returns
        them; None if no evaluation is due."""
        begun: list[Callable[[], dict[str, float]]] = []
        if last or settings.due(self.config.eval_every, step):
            begun.append(self.begin_evaluation(step))
        suites = self.suites
        if suites is not None and (tiers := suites.tiers if last else suites.due(step)):
            if self.run.last_record is None:  # so that the next attempt finds the answers
                self.run.record_checkpoint({"name": "suites", "batch": 0} | self.marks)
            sampler = self.begin_snapshot()
            begun.append(lambda: suites.scores(step, self.wait(sampler), tiers))

        def scores() -> dict[str, float]:
            measured: dict[str, float] = {}
            for result in begun:
                if not not_finite(measured):  # a model that has diverged cannot answer
                    measured |= result()
            return measured

        return scores if begun else None

    def begin_snapshot(self) -> "tinker.APIFuture[tinker.SamplingClient]":
        """Return a future of a client that samples with the current weights."""
        return self.training.save_weights_and_get_sampling_client()

    def save_due(self, step: int) -> bool:
        """Return whether the weights at the beginning of a step should be saved."""
        every = self.config.save_every
        return step > self.run.start_step and bool(every and step % every == 0)

    def close(self) -> None:  # noqa: B027  most recipes open nothing else
        """Close what a subclass has opened. (`run` closes the suites and the connection.)"""

    def is_saved(self, step: int) -> bool:
        """Return whether the last checkpoint has the weights at the beginning of a step."""
        last = self.run.last_record
        return last is not None and last.get("name") == _name_of(step)

    def resumable(self, step: int) -> bool:
        """Return whether a run that resumes at this step gets the same results as an uninterrupted
        run."""
        del step
        return True

    def save(self, step: int) -> "tinker.APIFuture[tinker.types.SaveWeightsResponse]":
        """Submit a checkpoint to resume from."""
        return self.training.save_state(_name_of(step), ttl_seconds=self.config.ttl_seconds)

    def record(
        self, step: int, saved: "tinker.APIFuture[tinker.types.SaveWeightsResponse]"
    ) -> None:
        """Wait for a checkpoint and record its address. Call this after logging the metrics of
        the last step before the checkpoint, and before logging those of the next step."""
        with self.timed("save"):
            state_path = self.wait(saved).path
        record = {"name": _name_of(step), "batch": step, "state_path": state_path}
        if self.config.ttl_seconds is not None:
            record["ttl_seconds"] = self.config.ttl_seconds
        self.run.record_checkpoint(record | self.marks)

    @property
    def about(self) -> dict[str, str]:
        """The facts that are recorded with each checkpoint, in checkpoints.jsonl and at the
        service."""
        return {thinking.KEY: self.thinking} if self.thinking else {}

    @property
    def marks(self) -> dict[str, Any]:
        """Values that a resumed run needs from a checkpoint's record, besides step and path."""
        parent = {rundir.PARENT: self.parent} if self.parent else {}
        return parent | self.about | self.tracker.mark

    def finish(self, step: int) -> None:
        """Run and log the last evaluation, after `step` steps, and record the final checkpoint."""
        scores = self.begin_scores(step, last=True)
        state = self.training.save_state("final")
        sampler = self.training.save_weights_for_sampler("final")
        with self.timed("eval"):
            evaluated = scores() if scores else {}
        self.log(step, evaluated)
        paths = {"state_path": self.wait(state).path, "sampler_path": self.wait(sampler).path}
        record = {"name": "final", "batch": step, "final": True, **paths}
        self.run.record_checkpoint(record | self.marks)

    def log(self, step: int, metrics: dict[str, Any]) -> None:
        """Log and print a line of metrics. `time/total` is the time since the previous line, and
        other keys `time/...` are parts of this time. Raises Diverged, after writing the line, if
        a metric is not finite."""
        now = time.monotonic()
        times = {"progress": step / self.config.max_steps, "time/total": now - self.last_line}
        times |= self.stopwatch.metrics()
        self.last_line = now
        self.run.log_metrics(step, metrics | times)
        self.tracker.log(step, metrics | times)
        keys = [*self.shown, *(key for key in metrics if _SUITE.fullmatch(key))]
        scores = "  ".join(f"{key} {metrics[key]:.4f}" for key in keys if key in metrics)
        print(f"step {step}/{self.config.max_steps}  {scores}", flush=True)
        if broken := not_finite(metrics):
            key, value = broken
            raise Diverged(
                f"training has diverged: {key} is {value} at step {step}; lower the learning rate"
            )


def _name_of(step: int) -> str:
    """Return the name of a checkpoint with the weights at the beginning of a step."""
    return f"{step:06d}"


def found_numbers(recipe: str, config: Any) -> tuple[Any, dict[str, str]]:
    """Replace each setting `auto` by a number, and print the reason for the number. Return the new
    configuration, and a dict from setting to reason. Raises RecipeError if no number is known."""
    try:
        numbers, whys = hyperparams.resolved(recipe, config)
    except ValueError as error:
        raise service.RecipeError(str(error)) from None
    for key, why in whys.items():
        print(f"{key}={getattr(numbers, key):g}: {why}", flush=True)
    return numbers, whys


def not_finite(metrics: Mapping[str, Any]) -> tuple[str, float] | None:
    """Return the first metric that is NaN or infinite, and its value; None if all are finite."""
    for key, value in metrics.items():
        if isinstance(value, float) and not math.isfinite(value):
            return key, value
    return None


def parent_of(config: settings.Training, directory: rundir.RunDirectory) -> str | None:
    """Return the address of the run's initial weights; None if the run starts with a new LoRA
    adapter. For a resumed run, return the recorded address, because the run in
    `load_checkpoint_path` may have saved newer checkpoints in the meantime."""
    last = directory.last_state or directory.last_record or {}
    if rundir.PARENT in last:
        return last[rundir.PARENT]
    if config.load_checkpoint_path is None:
        return None
    return rundir.state_path(config.load_checkpoint_path)


def open_training(
    connection: service.Service,
    config: settings.Training,
    directory: rundir.RunDirectory,
    parent: str | None,
    about: dict[str, str],
) -> "tinker.TrainingClient":
    """Open the first of these that exists: the run's last checkpoint with its optimizer state, the
    weights at `parent`, a new LoRA adapter. The service stores `about` as metadata."""
    client = connection.client
    if directory.last_state is not None:
        path = directory.last_state["state_path"]
        print(f"resuming after {directory.start_step} steps from {path}", flush=True)
        return connection.wait(
            client.create_training_client_from_state_with_optimizer(path, user_metadata=about)
        )
    if parent is not None:
        print(f"starting from {parent}", flush=True)
        return connection.wait(
            client.create_training_client_from_state(parent, user_metadata=about)
        )
    return connection.wait(
        client.create_lora_training_client(
            base_model=config.model_name,
            rank=int(config.lora_rank),
            seed=config.seed,
            user_metadata=about,
        )
    )


class Stopwatch:
    """Measures the seconds that a recipe waits for each kind of work. The service also works while
    the recipe does not wait; these seconds are not measured. A span inside another span is not
    counted separately. For example, the sampling of an evaluation counts as evaluation."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._running = False

    @contextmanager
    def span(self, kind: str) -> Generator[None]:
        """Add the seconds of the `with` block to a kind of work."""
        if self._running:
            yield
            return
        self._running, start = True, time.monotonic()
        try:
            yield
        finally:
            self._running = False
            self._seconds[kind] = self._seconds.get(kind, 0.0) + time.monotonic() - start

    def metrics(self) -> dict[str, float]:
        """Return the seconds since the last call as metrics, and start again from zero."""
        seconds, self._seconds = self._seconds, {}
        return {f"time/{kind}": value for kind, value in seconds.items()}
