"""Evaluation: ask a model the questions of a suite, and grade its answers: `python -m
sweeper.recipes.eval suite=questions.jsonl load_checkpoint_path=/tmp/sft`."""

# A suite is a task (the problems that training holds out), a JSONL file, or several of both
# separated by commas. suites.py describes the lines of a file, graders.py the ways to judge an
# answer. `cookbook:gsm8k` is a benchmark of tinker-cookbook (benchmarks.py). Each item gets
# `samples` answers.
#
# Answers are recorded in `items.jsonl`, one line per sample: {"item", "sample", "score", "text",
# "task", "prompt", "answer", ...}. An item is identified by a hash of its content. So a stopped
# evaluation continues with the items that have no answer, one with a larger suite asks only the new
# items, and one with another grader grades the recorded answers again. The seed of each sample
# depends only on the run's seed and the item. On SIGTERM or Ctrl-C the evaluation waits for pending
# answers; if it is killed, it asks those again, at most `in_flight`.
#
# `metrics.jsonl` has a line for each tenth of the items: `test/accuracy` is the mean score of the
# items so far, `eval/<suite>/pass@k` the chance that one of k samples is right.

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import chz

from . import (
    benchmarks,
    chat,
    data_files,
    estimates,
    graders,
    rewards,
    rundir,
    samplers,
    scores,
    service,
    settings,
    suites,
    tracking,
)
from .suites import Item
from .trainer import PARENT

if TYPE_CHECKING:
    import tinker

FREE = settings.FREE | {
    *("suite", "grader", "samples", "in_flight", "max_items"),
    *("task", "digits", "length", "letters", "test_size", "function_seconds", "function_megabytes"),
}
"""Settings that may change between starts: those that select items and those that judge them."""

ENOUGH = 16
"""Answers after which an evaluation ends if its grader has failed on all of them."""

LINES = 10
"""Lines of metrics in an evaluation."""


@chz.chz
class Config(settings.Problems):
    """Configuration of a run. The same configuration gives the same answers."""

    suite: str | None = chz.field(
        default=None,
        doc="tasks, arithmetic, JSONL files, cookbook:gsm8k, commas between; else the task",
    )
    grader: str = chz.field(
        default="exact",
        doc="lines that name no grader: exact, numeric, regex, choice, or path/to/file.py:function",
    )
    samples: int = chz.field(default=1, doc="answers to each question; more than one: pass@k")
    temperature: float = chz.field(default=0.0, doc="sampling temperature; 0: the likeliest token")
    max_tokens: int = chz.field(default=64, doc="longest answer, in tokens")
    max_items: int | None = chz.field(default=None, doc="only this many items, the first ones")
    in_flight: int = chz.field(default=32, doc="questions asked at once")
    function_seconds: float = chz.field(
        default=5.0, doc="time limit of a call of a grader's function"
    )
    function_megabytes: int = chz.field(default=512, doc="memory limit of a grader's function")
    renderer_name: str | None = chz.field(
        default=None, doc="renderer of tinker-cookbook's benchmarks; default: by the model's name"
    )
    log_path: str = chz.field(default="runs/eval", doc="directory for metrics and answers")

    @chz.validate
    def _check(self) -> None:
        settings.check_at_least(self, samples=1, max_tokens=1, in_flight=1, function_megabytes=32)
        settings.check_positive(self, "function_seconds")
        if self.max_items is not None:
            settings.check_at_least(self, max_items=1)
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature must not be negative, not {self.temperature}")
        if self.samples > 1 and self.temperature == 0:
            raise ValueError("samples above 1 are all the same at temperature 0: raise it")


def lacks(values: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the files of a run's suite and with its grader."""
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
    own, _ = ("", []) if settings.comes_later(suite) else benchmarks.split(suite)
    return [suites.check(name, str(values.get("grader", "exact"))) for name in suites.names_of(own)]


def main(config: Config) -> None:
    """Ask the items that have no answer yet. Exits with code 143 after SIGTERM and 130 after
    SIGINT.
    """
    with service.errors_in_one_line(), service.stop_on_signals() as stop:
        values = chz.asdict(config)
        directory = rundir.open_run(config.log_path, values, FREE)
        model = None
        suite, names = benchmarks.wanted(config.suite)
        items = [] if suite == "" else suites.load_suites(config, suite, config.grader)
        if names:
            model = open_model(config, weights_of(config, directory), names)
            items += model.examples.items() if model.examples else []
        items = items[: config.max_items]
        own = graders.Graders(config.function_seconds, config.function_megabytes)
        try:
            check_functions(items, own)
            answers = Answers(directory, own)
            answers.keep(items)
            directory.write_config(values)
            directory.drop_steps_from(0)
            with tracking.tracked(config, directory, values) as tracker:
                if not Evaluation(config, directory, answers, stop, tracker, model).run(items):
                    raise SystemExit(stop.exit_code)
        finally:
            own.close()
            if model is not None and model.examples is not None:
                model.examples.close()


def estimate(values: dict[str, Any]) -> estimates.Counts:
    """Estimate the tokens of a run with these values; see estimates.py."""
    config = Config(**values)
    if benchmarks.PREFIX in (config.suite or ""):
        return {}  # only the data sets know the benchmarks' questions

    def measure() -> tuple[estimates.Sizes, float]:
        items = suites.load_suites(config, config.suite, config.grader)[: config.max_items]
        conversations = [
            [*i.messages, {"role": "assistant", "content": i.question.answer}] for i in items
        ]
        sizes = estimates.sizes_of(config.model_name, conversations)
        known = any(item.question.answer for item in items)
        return sizes, min(sizes.answer, config.max_tokens) if known else config.max_tokens

    about = config.suite, config.grader, config.max_items, config.max_tokens
    sizes, answer = estimates.once(config, measure, "suite", *about)
    tally = estimates.Tally()
    tally.add(config.model_name, "prefill", sizes.number * sizes.prompt)
    tally.add(config.model_name, "sample", sizes.number * config.samples * answer)
    return tally.counts()


def check_functions(items: Iterable[Item], own: graders.Graders) -> None:
    """Load each grader, and call functions on right answers before the model is asked anything."""
    checked: set[str] = set()
    for item in items:
        name = item.grader
        if name is None or name in checked or name == benchmarks.GRADER:
            continue
        checked.add(name)
        own.get(name)
        if ":" in name:
            question = item.question
            own.sandbox(name).check([(question.text, question.answer, question.answer)])


class Answers:
    """The answers recorded in `items.jsonl`, by item and sample."""

    def __init__(self, directory: rundir.RunDirectory, own: graders.Graders) -> None:
        self._directory, self._graders = directory, own
        self._rows: dict[str, dict[int, dict[str, Any]]] = {}
        for row in directory.read_items():
            if isinstance(row.get("item"), str) and isinstance(row.get("sample"), int):
                self._rows.setdefault(row["item"], {}).setdefault(row["sample"], row)

    def of(self, item: Item, samples: int) -> list[dict[str, Any]] | None:
        """Return an item's rows, or None if it has fewer samples."""
        rows = self._rows.get(item.key, {})
        answers = [rows[sample] for sample in range(samples) if sample in rows]
        return answers if len(answers) == samples else None

    def count(self, item: Item) -> int:
        """Return the number of an item's samples before the first missing one."""
        rows = self._rows.get(item.key, {})
        return next(number for number in range(len(rows) + 1) if number not in rows)

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Record an item's new samples in one write."""
        self._directory.append_items(rows)
        for row in rows:
            self._rows.setdefault(row["item"], {})[row["sample"]] = row

    def keep(self, items: Sequence[Item]) -> None:
        """Drop items that are no longer in the suite, and regrade answers of another grader.

        The file then holds exactly the suite's items, so that readers see this suite.
        """
        known = {item.key: item for item in items}
        answers: dict[str, dict[int, dict[str, Any]]] = {}
        for key, rows in self._rows.items():
            if item := known.get(key):
                answers[key] = {sample: self._graded(item, row) for sample, row in rows.items()}
        if answers != self._rows:
            self._rows = answers
            every = (row for rows in answers.values() for row in rows.values())
            self._directory.replace_items(list(every))

    def _graded(self, item: Item, row: dict[str, Any]) -> dict[str, Any]:
        fresh = described(item)
        if item.grader == benchmarks.GRADER:
            return row | fresh
        print_of = None if item.grader is None else self._graders.fingerprint(item.grader)
        if row.get("grader") == print_of:
            return row | fresh
        return row | fresh | self.grade(item, str(row.get("text", "")))

    def grade(self, item: Item, text: str) -> dict[str, Any]:
        """Return the score of a text and its grader, for a row."""
        if item.grader is None:
            return {"score": None, "grader": None}
        score, error = self._graders.get(item.grader)(item.question, text)
        return {"score": score, "grader": self._graders.fingerprint(item.grader), "error": error}


def described(item: Item) -> dict[str, Any]:
    """Return the fields of a row that describe its item."""
    fields = {"item": item.key, "task": item.suite}
    if item.grader != benchmarks.GRADER:  # its environment supplies the prompt when it is asked
        fields["prompt"] = item.question.text
    more = {"answer": item.question.answer, "cluster": item.cluster, "id": item.name}
    return fields | {key: value for key, value in more.items() if value}


def weights_of(config: Config, directory: rundir.RunDirectory) -> str | None:
    """Return the address of the weights to evaluate; None for the base model. Raises RecipeError
    if the recorded answers come from other weights: `log_path` of another run may have new
    checkpoints."""
    given = config.load_checkpoint_path
    path = None if given is None else rundir.sampler_path(given)
    before = (directory.last_record or {}).get(PARENT, path)
    if before != path:
        raise service.RecipeError(
            f"log_path={directory.path} holds answers of {before}, not of {path}: "
            "give another log_path"
        )
    return path


class Model(NamedTuple):
    """The model under evaluation, and the benchmarks prepared for it."""

    connection: service.Service
    sampler: "tinker.SamplingClient"
    tokenizer: Any
    examples: benchmarks.Benchmarks | None


def open_model(config: Config, weights: str | None, names: Sequence[str] = ()) -> Model:
    """Open the model under evaluation. Raises RecipeError."""
    connection = service.connect(config.base_url, {"recipe": "eval"})
    sampler = samplers.open_sampler(connection, config.model_name, weights)
    tokenizer = service.tokenizer_of(sampler)
    examples = benchmarks.Benchmarks(names, config, tokenizer) if names else None
    return Model(connection, sampler, tokenizer, examples)


class Asked(NamedTuple):
    """An item, and the pending request for its missing samples, if any."""

    item: Item
    first: int
    request: Any | None


class Evaluation:
    """Evaluation loop: questions are pending while answers are graded, in suite order."""

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
        self.model = model

    def run(self, items: Sequence[Item]) -> bool:
        """Ask and grade. Return False if a signal stopped it; then all pending answers are
        recorded.
        """
        missing = sum(self.answers.of(item, self.config.samples) is None for item in items)
        print(f"{len(items)} items, {missing} to ask", flush=True)
        if missing:
            self.prepare()
        self.stop.graceful = True
        done: list[tuple[Item, list[dict[str, Any]]]] = []
        due = {math.ceil(len(items) * part / LINES) for part in range(1, LINES + 1)}
        for question in self.under_way(items):
            done.append((question.item, self.answered(question)))
            if len(done) in due:
                self.log(done, len(items))
        if self.model is not None:
            self.model.connection.close()
        if len(done) < len(items):
            print(f"stopped by signal {self.stop.signum} after {len(done)} items", flush=True)
            return False
        final = {"name": "final", "batch": len(items), "final": True} | self.marks
        if self.directory.last_record != final:
            self.directory.record_checkpoint(final)
        return True

    def prepare(self) -> None:
        """Open the model under evaluation, unless it is open."""
        self.model = self.model or open_model(self.config, self.weights)
        if self.directory.last_record is None:  # a resumed run must find its marks
            self.directory.record_checkpoint({"name": "items", "batch": 0} | self.marks)

    @property
    def marks(self) -> dict[str, str]:
        """Values that checkpoint records need for the evaluation to resume."""
        return ({PARENT: self.weights} if self.weights else {}) | self.tracker.mark

    def under_way(self, items: Iterable[Item]) -> Iterator[Asked]:
        """Yield the items in order, with `in_flight` asked ahead. None begins after a signal."""
        waiting: deque[Asked] = deque()
        for item in items:
            if self.stop.signum is not None:
                break
            waiting.append(self.begin(item))
            if len(waiting) > self.config.in_flight:
                yield waiting.popleft()
        yield from waiting

    def begin(self, item: Item) -> Asked:
        """Submit the request for an item's missing samples."""
        import tinker

        config, first, model = self.config, self.answers.count(item), self.model
        if first >= config.samples or model is None:
            return Asked(item, first, None)
        if model.examples is not None and item.grader == benchmarks.GRADER:
            seeds = [self.seed(item, sample) for sample in range(first, config.samples)]
            return Asked(item, first, model.examples.begin(model.sampler, item, first, seeds))
        prompt, end = chat.render_prompt(model.tokenizer, item.messages)
        params = tinker.SamplingParams(
            max_tokens=config.max_tokens,
            temperature=config.temperature,
            stop=[end],
            seed=self.seed(item, first),
        )
        wanted = config.samples - first
        request = model.sampler.sample(tinker.ModelInput.from_ints(prompt), wanted, params)
        return Asked(item, first, request)

    def seed(self, item: Item, sample: int) -> int:
        """Return the seed of an item's samples, starting with this one."""
        return samplers.seed_of(f"eval/{self.config.seed}/{item.key}/{sample}")

    def answered(self, question: Asked) -> list[dict[str, Any]]:
        """Wait for an item's answers, grade and record them."""
        item, model = question.item, self.model
        if question.request is not None and model is not None:
            answer = model.connection.wait(question.request)
            if item.grader == benchmarks.GRADER:
                rows = [played.row() for played in answer]
            else:
                rows = [self.row(item, model.tokenizer, one) for one in answer.sequences]
            known = described(item)
            self.answers.add(
                [known | r | {"sample": question.first + n} for n, r in enumerate(rows)]
            )
        return self.answers.of(item, self.config.samples) or []

    def row(self, item: Item, tokenizer: Any, sequence: "tinker.SampledSequence") -> dict[str, Any]:
        """Return a sample's row. An answer cut off at `max_tokens` is graded as it is."""
        text = tokenizer.decode(list(sequence.tokens), skip_special_tokens=True)
        ended = sequence.stop_reason == "stop"
        row = {"sample": 0, "text": text, "tokens": len(sequence.tokens), "ended": ended}
        return row | self.answers.grade(item, text)

    def judging(
        self, step: int, done: Sequence[tuple[Item, list[dict[str, Any]]]]
    ) -> rewards.Judging:
        """Record the answers so far that a grader could not judge."""
        graded = [(item, row) for item, rows in done for row in rows if item.grader is not None]
        failures = [
            rewards.Failure(str(row["error"]), item.question.text, str(row.get("text", "")))
            for item, row in graded
            if row.get("error") is not None
        ]
        judges = {item.grader for item, row in graded if row.get("error") is not None}
        judge = f"the grader {', '.join(sorted(filter(None, judges)))}"
        return rewards.judging(self.directory, step, judge, failures, len(graded), "")

    def log(self, done: Sequence[tuple[Item, list[dict[str, Any]]]], total: int) -> None:
        """Log a line of metrics of the items so far, and print one."""
        step = len(done)
        judging = self.judging(step, done)
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
