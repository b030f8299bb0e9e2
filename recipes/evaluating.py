"""Evaluates suites while a run trains: the setting `eval` of sft, rl, dpo and distill. Answers
are graded and recorded as the recipe eval does; each row also has the `step`."""

# eval: {suites: [gsm8k.jsonl, cookbook:gsm8k], every: 20, items: 100, infrequent: {every: 200}}
#
# The answers to step n come from the weights that step n begins with. A run that resumes from a
# checkpoint asks only the items that these weights have not answered, and asks all items of later
# steps again, because the weights of those steps are lost. A suite in both tiers is asked once at a
# step where both are due. In the rarer tier its metrics are named `eval/<suite>-all/...`, with the
# number of items instead of `all` if it is limited.

from collections.abc import Mapping, Sequence
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from . import answering, benchmarks, estimates, graders, rundir, scores, service, settings, suites
from .data_files import Checked
from .suites import Item

if TYPE_CHECKING:
    import tinker


class Tier(NamedTuple):
    """Items that are evaluated together every `every` steps. The keys of `items` are the suites'
    names, as they appear in the keys of metrics."""

    every: int
    items: Mapping[str, Sequence[Item]]


class Suites:
    """The suites of a run. `scores` evaluates them."""

    def __init__(
        self,
        config: Any,
        directory: rundir.RunDirectory,
        connection: service.Service,
        tokenizer: Any,
        thinking: str | None,
    ) -> None:
        how: settings.Suites = config.eval
        self._config, self._how, self._directory = config, how, directory
        self._connection, self._tokenizer, self._thinking = connection, tokenizer, thinking
        self._graders = graders.Graders(how.function_seconds, how.function_megabytes)
        self._examples = self._open_benchmarks()
        items = self._items_by_name()
        frequent = {name: items[name][: how.items] for name in how.suites}
        self.tiers = [Tier(how.every, suites.by_suite(chain.from_iterable(frequent.values())))]
        if (rare := how.infrequent) is not None:
            rare_items = [items[name][: rare.items] for name in rare.suites or how.suites]
            rarer = suites.by_suite(chain.from_iterable(rare_items))
            self.tiers.append(Tier(rare.every, _renamed(rarer, self.tiers[0], rare.items)))
        answering.check_functions(chain.from_iterable(items.values()), self._graders)
        directory.drop_items_after(directory.start_step)

    def _open_benchmarks(self) -> benchmarks.Benchmarks | None:
        names = _benchmarks_of(self._how)
        if not names:
            return None
        rare = self._how.infrequent
        limits = [self._how.items, *([rare.items] if rare else [])]
        most = None if None in limits else max(limit or 0 for limit in limits)
        about = benchmarks.About(self._config.model_name, self._thinking, most)
        return benchmarks.Benchmarks(names, self._how, about, self._tokenizer)

    def _items_by_name(self) -> dict[str, list[Item]]:
        config, grader = self._config, self._how.grader
        if same := suites.same_names(names_of(self._how)):
            raise service.RecipeError(same)
        items = {
            name: suites.load_suites(config, name, grader)
            for name in names_of(self._how)
            if not name.startswith(benchmarks.PREFIX)
        }
        if self._examples is not None:
            taken = suites.by_suite(chain.from_iterable(items.values()))
            for name, examples in groupby(self._examples.items(taken), key=self._examples.name_of):
                items[f"{benchmarks.PREFIX}{name}"] = list(examples)
        return items

    def due(self, step: int) -> list[Tier]:
        """Return the tiers that are due before a step."""
        return [tier for tier in self.tiers if settings.due(tier.every, step)]

    def scores(
        self, step: int, sampler: "tinker.SamplingClient", tiers: Sequence[Tier]
    ) -> dict[str, float]:
        """Ask the unanswered questions of the tiers, and return the metrics. A signal does not
        interrupt the evaluation."""
        items = {i.key: i for tier in tiers for i in chain.from_iterable(tier.items.values())}
        is_first = step == self._directory.start_step  # these weights may have answered before
        other_records: list[dict[str, Any]] = []
        rows: list[dict[str, Any]] = []
        for row in self._directory.read_items() if is_first else ():
            (rows if row.get("step") == step else other_records).append(row)
        answers = answering.Answers(self._directory, self._graders, rows, {"step": step})
        if is_first:
            answers.keep(items.values(), other_records)
        model = answering.Model(self._connection, sampler, self._tokenizer, self._examples)
        asker = answering.Asker(self._how, self._config.seed, answers, model)
        answered = {q.item.key: asker.answered(q) for q in asker.under_way(items.values())}
        done = [(item, answered[item.key]) for item in items.values()]
        answering.judging(self._directory, step, done, "eval_")
        measured = scores.failures(done)
        for tier in tiers:
            for name, in_suite in tier.items.items():
                measured |= scores.of_suite(name, [(item, answered[item.key]) for item in in_suite])
        return measured

    def close(self) -> None:
        """End the graders' processes and the benchmarks' event loop."""
        self._graders.close()
        if self._examples is not None:
            self._examples.close()


def _renamed(
    by_suite: dict[str, list[Item]], other: Tier, items: int | None
) -> dict[str, list[Item]]:
    """Return the suites of a tier, by name. A name that the other tier also has gets a suffix: for
    example `-20` if `items` is 20, and `-all` if `items` is None."""
    part = "all" if items is None else items
    return {
        f"{name}-{part}" if name in other.items else name: in_suite
        for name, in_suite in by_suite.items()
    }


def names_of(how: settings.Suites) -> list[str]:
    """Return the names of the suites of both tiers, without duplicates."""
    rare = how.infrequent.suites if how.infrequent is not None else None
    return list(dict.fromkeys([*how.suites, *(rare or ())]))


def _benchmarks_of(how: settings.Suites) -> list[str]:
    return [
        name.removeprefix(benchmarks.PREFIX)
        for name in names_of(how)
        if name.startswith(benchmarks.PREFIX)
    ]


def lacks(values: Mapping[str, Any]) -> list[str]:
    """Return a line for each mistake in the suites and the grader of a run, and for each package
    that the suites need and this interpreter lacks."""
    lacking = [f"eval.suites: {c.mistake}" for c in _checked(values) if c.mistake is not None]
    if ":" in str(values.get("eval.grader", "")):
        lacking += settings.lacking_function(values, "eval.grader")
    return lacking


def notes(values: Mapping[str, Any]) -> list[str]:
    """Return lines for the plan of a run about its suites."""
    notes = [note for checked in _checked(values) for note in checked.notes]
    if unknown := [name for name in _suite_names(values) if name.startswith(benchmarks.PREFIX)]:
        notes.append(f"the estimate leaves out the tokens of {', '.join(unknown)}")
    return notes


def _suite_names(values: Mapping[str, Any]) -> list[str]:
    both = [values.get("eval.suites") or (), values.get("eval.infrequent.suites") or ()]
    names = [str(name) for part in both for name in part if not settings.comes_later(name)]
    return list(dict.fromkeys(names))


def _checked(values: Mapping[str, Any]) -> list[Checked]:
    return answering.check_suites(_suite_names(values), str(values.get("eval.grader", "exact")))


def tally(tally: estimates.Tally, config: Any) -> None:
    """Add the tokens of all evaluations of suites to the tally. Benchmarks are left out, because
    their tokens are unknown."""
    how: settings.Suites | None = config.eval
    if how is None:
        return
    tiers: list[tuple[Sequence[str], int, int | None]] = [(how.suites, how.every, how.items)]
    if (rare := how.infrequent) is not None:
        tiers.append((rare.suites or how.suites, rare.every, rare.items))
    for names, every, most in tiers:
        times = estimates.times(every, config.max_steps)
        for name in names:
            if not name.startswith(benchmarks.PREFIX):
                sizes, answer = estimates.suite_sizes(config, name, how, most)
                tally.add(config.model_name, "prefill", times * sizes.number * sizes.prompt)
                samples = times * sizes.number * how.samples
                tally.add(config.model_name, "sample", samples * answer)
