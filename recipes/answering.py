"""Asks a model the questions of suites, grades the answers and records them. The recipe eval uses
this module, and so do the evaluations of training runs (evaluating.py)."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import (
    benchmarks,
    chat,
    data_files,
    graders,
    rewards,
    rundir,
    samplers,
    scores,
    service,
    settings,
    suites,
)
from .suites import Item

if TYPE_CHECKING:
    import tinker


def check_functions(items: Iterable[Item], run_graders: graders.Graders) -> None:
    """Load the graders of all items. Call each grader that is a user's function on the right answer
    of one item, and on the EXAMPLES of the function's file. Raises RecipeError if a call fails, or
    if a score differs from the one in EXAMPLES."""
    checked: set[str] = set()
    for item in items:
        name = item.grader
        if name is None or name in checked or name == benchmarks.GRADER:
            continue
        checked.add(name)
        run_graders.get(name)
        if ":" in name:
            question = item.question
            run_graders.sandbox(name).check([(question.text, question.answer, question.answer)])


class Answers:
    """The answers in `items.jsonl`, by item and number of the sample. `rows` are the recorded rows.
    Each row that is added also gets the fields in `more`."""

    def __init__(
        self,
        directory: rundir.RunDirectory,
        run_graders: graders.Graders,
        rows: Iterable[dict[str, Any]],
        more: Mapping[str, Any] | None = None,
    ) -> None:
        self._directory, self._graders, self._more = directory, run_graders, dict(more or {})
        self._rows: dict[str, dict[int, dict[str, Any]]] = {}
        for row in rows:
            if isinstance(row.get("item"), str) and isinstance(row.get("sample"), int):
                self._rows.setdefault(row["item"], {}).setdefault(row["sample"], row)

    def of(self, item: Item, samples: int) -> list[dict[str, Any]] | None:
        """Return the rows of an item's first `samples` samples, or None if one of them is
        missing."""
        rows = self._rows.get(item.key, {})
        answers = [rows[sample] for sample in range(samples) if sample in rows]
        return answers if len(answers) == samples else None

    def count(self, item: Item) -> int:
        """Return the number of the first sample that an item lacks; the samples before it exist."""
        rows = self._rows.get(item.key, {})
        return next(number for number in range(len(rows) + 1) if number not in rows)

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Record an item's new samples in one write."""
        rows = [self._more | row for row in rows]
        self._directory.append_items(rows)
        for row in rows:
            self._rows.setdefault(row["item"], {})[row["sample"]] = row

    def keep(self, items: Iterable[Item], others: Iterable[dict[str, Any]] = ()) -> None:
        """Drop the answers to all items that are not in `items`. Grade an answer again if the
        grader of its item has changed; answers of benchmarks are never graded again. If anything
        changes, rewrite the file: first the rows `others`, then the answers."""
        by_key = {item.key: item for item in items}
        answers: dict[str, dict[int, dict[str, Any]]] = {}
        for key, rows in self._rows.items():
            if item := by_key.get(key):
                answers[key] = {sample: self._graded(item, row) for sample, row in rows.items()}
        if answers != self._rows:
            self._rows = answers
            every = (row for rows in answers.values() for row in rows.values())
            self._directory.replace_items([*others, *every])

    def _graded(self, item: Item, row: dict[str, Any]) -> dict[str, Any]:
        fresh = described(item)
        if item.grader == benchmarks.GRADER:
            return row | fresh
        print_of = None if item.grader is None else self._graders.fingerprint(item.grader)
        if row.get("grader") == print_of:
            return row | fresh
        return row | fresh | self.grade(item, str(row.get("text", "")))

    def grade(self, item: Item, text: str) -> dict[str, Any]:
        """Grade the answer `text`. Return the fields of a row: the score, the grader's fingerprint
        and the grader's error. Without a grader, score and fingerprint are None."""
        if item.grader is None:
            return {"score": None, "grader": None}
        score, error = self._graders.get(item.grader)(item.question, text)
        return {"score": score, "grader": self._graders.fingerprint(item.grader), "error": error}


def described(item: Item) -> dict[str, Any]:
    """Return the fields that describe an item in the rows of its answers."""
    fields = {"item": item.key, "task": item.suite}
    if item.grader != benchmarks.GRADER:  # a benchmark's environment supplies the prompt later
        fields["prompt"] = item.question.text
    more = {"answer": item.question.answer, "cluster": item.cluster, "id": item.name}
    return fields | {key: value for key, value in more.items() if value}


class Model(NamedTuple):
    """The model under evaluation, and the benchmarks prepared for it."""

    connection: service.Service
    sampler: "tinker.SamplingClient"
    tokenizer: Any
    examples: benchmarks.Benchmarks | None
    thinking: str | None = None


class Pending(NamedTuple):
    """An item, and the pending request for its missing samples, which begin at the number `first`.
    `request` is None if no sample is missing, or if there is no model."""

    item: Item
    first: int
    request: Any | None


class Asker:
    """Asks the questions of items. Answers are graded in order, while later requests are
    pending."""

    def __init__(
        self, how: settings.Answering, run_seed: int, answers: Answers, model: Model | None
    ) -> None:
        self.how, self.run_seed, self.answers, self.model = how, run_seed, answers, model

    def under_way(
        self, items: Iterable[Item], stop: service.Stop | None = None
    ) -> Iterator[Pending]:
        """Yield each item with its request, in order. The requests of up to `in_flight` later items
        are already submitted then. Submit no request after `stop` has received a signal."""
        waiting: deque[Pending] = deque()
        for item in items:
            if stop is not None and stop.signum is not None:
                break
            waiting.append(self.begin(item))
            if len(waiting) > self.how.in_flight:
                yield waiting.popleft()
        yield from waiting

    def begin(self, item: Item) -> Pending:
        """Submit a request for an item's missing samples, and return it."""
        import tinker

        how, first, model = self.how, self.answers.count(item), self.model
        if first >= how.samples or model is None:
            return Pending(item, first, None)
        if model.examples is not None and item.grader == benchmarks.GRADER:
            seeds = [self.seed(item, sample) for sample in range(first, how.samples)]
            return Pending(item, first, model.examples.begin(model.sampler, item, first, seeds))
        prompt, end = chat.render_prompt(model.tokenizer, item.messages)
        params = tinker.SamplingParams(
            max_tokens=how.max_tokens,
            temperature=how.temperature,
            stop=[end],
            seed=self.seed(item, first),
        )
        wanted = how.samples - first
        request = model.sampler.sample(tinker.ModelInput.from_ints(prompt), wanted, params)
        return Pending(item, first, request)

    def seed(self, item: Item, sample: int) -> int:
        """Return the seed of a request for samples that begin at the number `sample`."""
        return samplers.seed_of(f"eval/{self.run_seed}/{item.key}/{sample}")

    def answered(self, question: Pending) -> list[dict[str, Any]]:
        """Wait for an item's answers and record them with their scores. Return the rows of the
        item's samples, or an empty list if samples are missing."""
        item, model = question.item, self.model
        if question.request is not None and model is not None:
            answer = model.connection.wait(question.request)
            if item.grader == benchmarks.GRADER:
                rows = [played.row() for played in answer]
            else:
                rows = [self.row(item, model.tokenizer, sequence) for sequence in answer.sequences]
            fields, numbered = described(item), enumerate(rows, question.first)
            self.answers.add([fields | row | {"sample": number} for number, row in numbered])
        return self.answers.of(item, self.how.samples) or []

    def row(self, item: Item, tokenizer: Any, sequence: "tinker.SampledSequence") -> dict[str, Any]:
        """Return a sample's row. An answer that was cut off at `max_tokens` is graded too."""
        text = tokenizer.decode(list(sequence.tokens), skip_special_tokens=True)
        ended = sequence.stop_reason == "stop"
        row = {"sample": 0, "text": text, "tokens": len(sequence.tokens), "ended": ended}
        return row | self.answers.grade(item, text)


def check_suites(names: Sequence[str], grader: str) -> list[data_files.Checked]:
    """Check suites (tasks, files and benchmarks) while a grid is planned. Return a result for each
    suite, or a single mistake if two suites have the same name."""
    if same := suites.same_names(names):
        return [data_files.Checked(same)]
    return [
        benchmarks.check(name) if name.startswith(benchmarks.PREFIX) else suites.check(name, grader)
        for name in names
    ]


def judging(
    directory: rundir.RunDirectory, step: int, done: scores.Done, name: str = ""
) -> rewards.Judging:
    """Count the answers with a grader, and those for which the grader failed. Write the latter to a
    file whose name begins with `name`."""
    graded = [(item, row) for item, rows in done for row in rows if item.grader is not None]
    failed = [(item, row) for item, row in graded if row.get("error") is not None]
    failures = [
        rewards.Failure(str(row["error"]), item.question.text, str(row.get("text", "")))
        for item, row in failed
    ]
    judge = f"the grader {', '.join(sorted({str(item.grader) for item, _ in failed}))}"
    return rewards.judging(directory, step, judge, failures, len(graded), name)
