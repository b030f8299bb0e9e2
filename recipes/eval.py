"""Evaluation: ask a model the questions of a suite, and grade its answers: `python -m
sweeper.recipes.eval suite=questions.jsonl load_checkpoint_path=/tmp/sft`."""

# A suite is a task (the problems that training holds out), a JSONL file, or several of both
# separated by commas. suites.py describes the lines of a file, graders.py the ways to judge an
# answer. `cookbook:gsm8k` is a benchmark of tinker-cookbook (benchmarks.py). Each item gets
# `samples` answers.
#
# Answers are recorded in `items.jsonl`, one line per sample: {"item", "sample", "score", "text",
# "task", "prompt", "answer", ...}. An item is identified by a hash of its content. So a stopped
# evaluation continues with the items that have no answer. With a larger suite, it asks only the new
# items. With another grader, it grades the recorded answers again. The seed of each sample depends
# only on the run's seed and the item. On SIGTERM or Ctrl-C the evaluation waits for pending
# answers. If it is killed, it asks the pending questions again, at most `in_flight`.
#
# `metrics.jsonl` has a line for each tenth of the items. `test/accuracy` is the mean score of the
# items so far, and `eval/<suite>/pass@k` the chance that at least one of k samples is right.

import math
from collections.abc import Mapping, Sequence
from typing import Any

import chz

from . import (
    answering,
    benchmarks,
    data_files,
    estimates,
    graders,
    rundir,
    samplers,
    scores,
    service,
    settings,
    suites,
    thinking,
    tracking,
)
from .answering import Answers, Asker, Model
from .suites import Item

FREE = settings.FREE | {
    *("suite", "grader", "samples", "in_flight", "max_items"),
    *("task", "digits", "length", "letters", "test_size", "function_seconds", "function_megabytes"),
}
"""Settings that may change when a run is started again. Recorded answers stay valid, because
none of these settings changes how the model answers a question."""

ENOUGH = 16
"""An evaluation fails if no answer could be graded. This is checked when metrics are logged, if
there are at least this many answers, and at the end."""

LINES = 10
"""The maximum number of lines of metrics that an evaluation logs."""


@chz.chz
class Config(settings.Problems, settings.Answering, settings.Thinking):
    """Configuration of a run. The same configuration gives the same answers."""

    suite: str | None = chz.field(
        default=None,
        doc="tasks, arithmetic, JSONL files, cookbook:NAME, separated by commas; default: task",
    )
    max_items: int | None = chz.field(default=None, doc="use only this many items, the first ones")
    log_path: str = chz.field(default="runs/eval", doc="directory for metrics and answers")

    @chz.validate
    def _check(self) -> None:
        settings.check_answering(self)
        if self.max_items is not None:
            settings.check_at_least(self, max_items=1)


def lacks(values: Mapping[str, Any]) -> list[str]:
    """Return a line for each mistake in the settings `suite` and `grader` of a run."""
    checks = _checked_suites(values)
    lacking = [f"suite: {check.mistake}" for check in checks if check.mistake is not None]
    if ":" in str(values.get("grader", "")):
        lacking += settings.lacking_function(values, "grader")
    return lacking


def notes(values: Mapping[str, Any]) -> list[str]:
    """Return lines for the plan of a run about its suite and its weights."""
    notes = [note for check in _checked_suites(values) for note in check.notes]
    return [*notes, *settings.missing_folders(values)]


def _checked_suites(values: Mapping[str, Any]) -> list[data_files.Checked]:
    suite = str(values.get("suite") or "")
    names = [] if settings.comes_later(suite) else suites.names_of(suite)
    return answering.check_suites(names, str(values.get("grader", "exact")))


def main(config: Config) -> None:
    """Ask the questions that are not answered yet, and log the scores. Exits with code 143 after
    SIGTERM and 130 after SIGINT."""
    with service.errors_in_one_line(), service.stop_on_signals() as stop:
        values = chz.asdict(config)
        directory = rundir.open_run(config.log_path, values, FREE)
        model = None
        suite, names = benchmarks.wanted(config.suite)
        items = [] if suite == "" else suites.load_suites(config, suite, config.grader)
        if names:
            model = open_model(config, directory, weights_of(config, directory), names)
            items += model.examples.items(suites.by_suite(items)) if model.examples else []
        items = items[: config.max_items]
        run_graders = graders.Graders(config.function_seconds, config.function_megabytes)
        try:
            answering.check_functions(items, run_graders)
            answers = Answers(directory, run_graders, directory.read_items())
            answers.keep(items)
            directory.write_config(values)
            directory.drop_steps_from(0)
            with tracking.tracked(config, directory, values) as tracker:
                if not Evaluation(config, directory, answers, stop, tracker, model).run(items):
                    raise SystemExit(stop.exit_code)
        finally:
            run_graders.close()
            if model is not None and model.examples is not None:
                model.examples.close()


def estimate(values: dict[str, Any]) -> estimates.Counts:
    """Estimate the tokens of a run with these values; see estimates.py."""
    config = Config(**values)
    if benchmarks.PREFIX in (config.suite or ""):
        return {}  # only the data sets know the benchmarks' questions

    sizes, answer = estimates.suite_sizes(config, config.suite, config, config.max_items)
    tally = estimates.Tally()
    tally.add(config.model_name, "prefill", sizes.number * sizes.prompt)
    tally.add(config.model_name, "sample", sizes.number * config.samples * answer)
    return tally.counts()


def weights_of(config: Config, directory: rundir.RunDirectory) -> str | None:
    """Return the address of the weights to evaluate; None for the base model. Raises RecipeError
    if the recorded answers come from other weights, for example from an earlier checkpoint of the
    run in `load_checkpoint_path`."""
    start = config.load_checkpoint_path
    path = None if start is None else rundir.sampler_path(start)
    before = (directory.last_record or {}).get(rundir.PARENT, path)
    if before != path:
        raise service.RecipeError(
            f"log_path={directory.path} holds answers of {before}, not of {path}: "
            "use another log_path"
        )
    return path


def open_model(
    config: Config, directory: rundir.RunDirectory, weights: str | None, names: Sequence[str] = ()
) -> Model:
    """Open the model under evaluation, and the benchmarks `names`. Raises RecipeError."""
    connection = service.connect(config.base_url, {"recipe": "eval"})
    sampler = samplers.open_sampler(connection, config.model_name, weights)
    thinks = thinking.resolved(connection, config, directory.last_record or {})
    tokenizer = thinking.applied(service.tokenizer_of(sampler), thinks, config.model_name)
    examples = None
    if names:
        about = benchmarks.About(config.model_name, thinks, config.max_items)
        examples = benchmarks.Benchmarks(names, config, about, tokenizer)
    return Model(connection, sampler, tokenizer, examples, thinks)


class Evaluation:
    """The evaluation loop. It grades the answers in the suite's order."""

    def __init__(
        self,
        config: Config,
        directory: rundir.RunDirectory,
        answers: Answers,
        stop: service.Stop,
        tracker: tracking.Tracker,
        model: Model | None = None,
    ) -> None:
        self.config, self.directory, self.answers = config, directory, answers
        self.stop, self.tracker = stop, tracker
        self.weights = weights_of(config, directory)
        self.asker = Asker(config, config.seed, answers, model)

    def run(self, items: Sequence[Item]) -> bool:
        """Ask the unanswered questions and grade their answers. Return False if a signal stopped
        the evaluation; the answers to pending requests are recorded first."""
        missing = sum(self.answers.of(item, self.config.samples) is None for item in items)
        print(f"items to ask: {missing} of {len(items)}", flush=True)
        if missing:
            self.prepare()
        self.stop.graceful = True
        done: list[tuple[Item, list[dict[str, Any]]]] = []
        due = {math.ceil(len(items) * part / LINES) for part in range(1, LINES + 1)}
        for question in self.asker.under_way(items, self.stop):
            done.append((question.item, self.asker.answered(question)))
            if len(done) in due:
                self.log(done, len(items))
        if self.asker.model is not None:
            self.asker.model.connection.close()
        if len(done) < len(items):
            print(f"stopped by signal {self.stop.signum}; answered items: {len(done)}", flush=True)
            return False
        final = {"name": "final", "batch": len(items), "final": True} | self.marks
        if self.directory.last_record != final:
            self.directory.record_checkpoint(final)
        return True

    def prepare(self) -> None:
        """Open the model under evaluation if needed. In a new run, record a first checkpoint."""
        self.asker.model = self.asker.model or open_model(self.config, self.directory, self.weights)
        if self.directory.last_record is None:  # a resumed run must find its marks
            self.directory.record_checkpoint({"name": "items", "batch": 0} | self.marks)

    @property
    def marks(self) -> dict[str, str]:
        """Fields that are added to each checkpoint's record, so that a run can resume."""
        model, last = self.asker.model, self.directory.last_record or {}
        thinks = last.get(thinking.KEY) if model is None else model.thinking
        about = {rundir.PARENT: self.weights, thinking.KEY: thinks}
        return {key: value for key, value in about.items() if value} | self.tracker.mark

    def log(self, done: scores.Done, total: int) -> None:
        """Log the metrics of the items that are done, and print a line. Raises JudgeFailed if no
        answer could be graded, but not before `ENOUGH` answers or the end."""
        step = len(done)
        judging = answering.judging(self.directory, step, done)
        metrics = {"progress": step / total, **scores.measures(done)}
        self.directory.log_metrics(step, metrics)
        self.tracker.log(step, metrics)
        if judging.answers >= ENOUGH or step == total:
            judging.check()
        shown = metrics.get("test/accuracy")
        score = "" if shown is None else f"  test/accuracy {shown:.4f}"
        print(f"step {step}/{total}{score}", flush=True)


if __name__ == "__main__":
    service.run_program(main, Config)
