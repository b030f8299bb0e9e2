"""Makes the findings about runs and their records: failed, diverged, identical or missing ones.
Pure."""

from collections import Counter
from collections.abc import Iterator

from sweeper.analysis import labels
from sweeper.analysis.comparison.cells import Ranking
from sweeper.analysis.findings.finding import Finding, names_of
from sweeper.analysis.reading.frames import PENDING, RunData, SweepData
from sweeper.analysis.reading.identical_runs import same_curves
from sweeper.analysis.statistics.looks import grown_from
from sweeper.analysis.statistics.noise import LEVEL
from sweeper.analysis.statistics.variances import split_noise
from sweeper.results.cells import center
from sweeper.sweep.labels import plural
from sweeper.sweep.metric import value_text
from sweeper.sweep.race import sentence as race_sentence


def tell_runs(data: SweepData, ranking: Ranking, *, diverged: bool = True) -> Iterator[Finding]:
    """Yield the findings about runs. Without `diverged`, the finding about diverged runs is left
    out, because another finding names them."""
    if diverged:
        yield from _diverged(data, ranking)
    yield from _missing_end(data)
    yield from _failed(data, ranking)
    yield from _repeated(data)
    yield from _noisy_ends(data)


def tell_records(data: SweepData, ranking: Ranking) -> Iterator[Finding]:
    """Yield the findings about missing results, and about limits of the recorded values."""
    yield from _incomplete(data)
    yield from _grown(data)
    yield from _replicates(data, ranking)
    yield from _records(data)


def _diverged(data: SweepData, ranking: Ranking) -> list[Finding]:
    runs = [run for run in data.runs if run.diverged]
    if not runs or data.metric is None:
        return []
    cells = tuple(dict.fromkeys(run.cell for run in runs))
    text = (
        f"{plural(len(runs), 'run')} of {plural(len(cells), 'cell')} diverged: the "
        f"last {data.metric.name} is NaN or infinite. Such runs are left out of every mean, and a "
        "cell that has one cannot be named best. Leave these settings out, or find out in the logs "
        "why they diverge."
    )
    ahead = ranking.passed_over
    if ahead:
        names = labels.listed(names_of(ahead), 3)
        text += f" The other runs of {names} are better than the best cell."
    evidence = {"runs": [run.name for run in runs], "better": [cell.name for cell in ahead]}
    return [Finding("diverged", "warning", text, cells, evidence)]


def _missing_end(data: SweepData) -> list[Finding]:
    """Return a warning if the last rows of some runs lack the metric. For these runs, an earlier
    value counts."""
    runs = [run for run in data.runs if run.missing and not run.diverged]
    if not runs or data.metric is None:
        return []
    first, name = runs[0], data.metric.name
    cells = tuple(dict.fromkeys(run.cell for run in runs))
    rows = f"{first.missing} rows have" if first.missing > 1 else "row has"
    text = (
        f"{plural(len(runs), 'run')} of {plural(len(cells), 'cell')} may have "
        f"diverged: the last {rows} no {name} in {first.name or 'the only run'}, although earlier "
        f"rows do. Some programs write null, or nothing, for NaN. The last number, from step "
        f"{first.step:g}, counts: check the log before you trust it."
    )
    evidence = {"runs": {run.name: run.missing for run in runs}}
    return [Finding("missing_end", "warning", text, cells, evidence)]


_RULES = {
    "worst": "Each counts as the worst value of all, {worst}",
    "drop": "Failed runs are left out of every mean",
    "bound": "Failed runs are left out of means, but a cell is named best only if it would still "
    "be the best with each of its failed runs counted as the worst value of all, {worst}",
}


def _failed(data: SweepData, ranking: Ranking) -> list[Finding]:
    """Return a finding that says how failed runs are treated, if a cell with failed runs was
    judged."""
    best, metric = ranking.best, data.metric
    cells = [cell for cell in ranking.measured if cell.failed]
    if metric is None or not cells or not (best or ranking.leaders):
        return []
    runs = sum(cell.failed for cell in cells)
    rule = _RULES[metric.failed].format(worst=labels.brief(ranking.worst))
    text = f"{plural(runs, 'run')} of {labels.listed(names_of(cells), 3)} failed. {rule}."
    if ranking.held_back:
        names = labels.listed(names_of(ranking.held_back), 3)
        text += f" The other runs of {names} are better than the best cell."
    elif best is not None and best.failed and metric.failed == "bound":
        text += " The best cell has failed runs, and would be the best even then."
    elif best is not None and best.failed and metric.failed == "drop":
        text += " The best cell is among them, and may look better without them."
    doubt = ranking.held_back or (best is not None and best.failed)
    level = "warning" if doubt else "note"
    evidence = {
        "rule": metric.failed,
        "worst": ranking.worst,
        "failed": {cell.name: cell.failed for cell in cells},
        "better": [cell.name for cell in ranking.held_back],
    }
    return [Finding("failed", level, text, tuple(cell.name for cell in cells), evidence)]


def _repeated(data: SweepData) -> list[Finding]:
    again = data.confirmed
    if again is None:
        return []
    text = (
        f"{labels.listed(again.fresh)} repeated {len(again.names)} of the {again.cells} cells of "
        f"{again.first} on fresh seeds. They are judged by the fresh seeds alone, because the runs "
        "that chose them make them look too good. The other cells are left out."
    )
    cells = tuple(again.names.values())
    return [Finding("confirmed", "note", text, cells, {"first": again.first, "by": again.fresh})]


def _noisy_ends(data: SweepData) -> list[Finding]:
    """Return a finding if a mean of the last values is used although the user did not choose it.
    The finding gives the reason."""
    ends, metric = data.ends, data.metric
    if ends is None or metric is None:
        return []
    scatter, between = labels.together(ends.scatter, ends.between)
    text = (
        f"{metric.name} is flat at the end but varies by about {scatter} from value to value "
        f"(seeds differ by {between}). So each run is judged by the {value_text(metric.at)}. To "
        "use the last value alone, write `at: last` in the grid's metric."
    )
    return [Finding("noisy_ends", "note", text, (), ends._asdict())]


def _incomplete(data: SweepData) -> list[Finding]:
    states = Counter(run.state for run in data.runs)
    done, planned = states["succeeded"], len(data.runs)
    if done == planned or states["failed"] == planned:
        return []
    rest = [f"{n} {state}" for state, n in sorted(states.items()) if state != "succeeded"]
    subject = "result is" if done == 1 else "results are"
    text = f"{done} of {planned} runs succeeded, {labels.listed(rest, 7)}"
    if any(states[state] for state in PENDING):
        stricter = " Until all have ended, a lead has to be larger to count."
        text += f": the {subject} preliminary.{stricter}" if done else "."
    else:
        text += "; the results of the others are unknown." if done else "."
    cells = tuple(dict.fromkeys(run.cell for run in data.runs if run.state != "succeeded"))
    evidence = {"planned": planned, "states": dict(sorted(states.items()))}
    return [Finding("incomplete", "warning", text, cells, evidence)]


def _grown(data: SweepData) -> list[Finding]:
    race = None if data.plan is None else race_sentence(data.plan)
    if race is not None:
        text = f"{race[0].upper()}{race[1:]}. Results are checked after each round, which gives "
        text += "chance several tries, so a lead has to be larger to count."
        return [Finding("raced", "note", text)]
    before = grown_from(data)
    if not before:
        return []
    text = (
        f"Seeds were added: an earlier launch had {plural(before, 'run')} per cell. Adding "
        "seeds until a winner shows would find one by chance, so a lead has to be larger to count."
    )
    return [Finding("grown", "note", text, (), {"seeds": before})]


def _each(count: int) -> str:
    return "1 cell" if count == 1 else f"each of {count} cells"


def _replicates(data: SweepData, ranking: Ranking) -> list[Finding]:
    findings: list[Finding] = []
    unseeded = data.plan is not None and data.plan.unseeded
    if unseeded:
        text = (
            "Seeds are not set: the grid says that runs of one cell differ anyway. The intervals "
            "are valid only if they do."
        )
        findings.append(Finding("unseeded", "note", text))
    identical = [cell for cell in ranking.cells if cell.summary.identical]
    unknown = "" if ranking.noise.shared else " No interval is given there."
    copies = [
        cell
        for cell in identical
        if same_curves([run for run in cell.runs if run.counts], data.metric_name)
    ]
    if copies:
        all_of, why = ("seeds", "the seed may not reach the recipe")
        if unseeded:
            all_of, why = ("replicates", "they do not differ without a seed")
        text = (
            f"In {_each(len(copies))} all {all_of} recorded exactly the same: {why}.{unknown} "
            "Check that the program uses its seed, then run these cells again."
        )
        findings.append(Finding("identical", "warning", text, tuple(c.name for c in copies)))
    equal = tuple(cell.name for cell in identical if cell not in copies)
    if equal:
        text = (
            f"In {_each(len(equal))} all runs ended at exactly the same value, "
            f"which shows nothing about the noise there.{unknown}"
        )
        findings.append(Finding("same_value", "note", text, equal))
    return [*findings, *_almost_identical(ranking), *_split(ranking)]


def _almost_identical(ranking: Ranking) -> list[Finding]:
    """Return a warning if the runs of each cell are nearly identical compared with the differences
    between cells. The seed may then have no effect."""
    cells = [] if ranking.leaders else [cell for cell in ranking.measured if cell.summary.sd]
    means = sorted(center(ranking.on_scale(cell)) for cell in cells)
    if len(means) < 2:
        return []
    between = means[(3 * len(means)) // 4] - means[len(means) // 4]
    widest = max(cell.summary.sd or 0.0 for cell in cells)
    if not widest < _ALMOST * between:
        return []
    text = (
        "Runs of one cell differ by less than a thousandth of the difference between cells. Check "
        "that the seed reaches the program: data order, initial weights and sampling should change "
        "with it. If they do not, these intervals are too narrow."
    )
    evidence = {"within": widest, "between": between}
    return [Finding("almost_identical", "warning", text, tuple(c.name for c in cells), evidence)]


_ALMOST = 1e-3


def _split(ranking: Ranking) -> list[Finding]:
    """Return a warning if some cells are much noisier than others. Intervals from a few seeds
    may then be too narrow."""
    split = split_noise([ranking.on_scale(cell) for cell in ranking.measured])
    if split is None or ranking.noise.p is None or ranking.noise.p > LEVEL:
        return []
    text = (
        f"Seeds of {split.close} cells end close together, those of {split.wide} others at least "
        f"{split.factor:.0f} times as far apart, as if training can end in two ways. Intervals "
        "from a few seeds may then be too narrow. Run more seeds of the cells at the top."
    )
    return [Finding("split_noise", "warning", text, (), split._asdict())]


def _own_keys(data: SweepData) -> list[Finding]:
    """Return the findings about configuration keys of runs in plain folders: keys that are not
    settings, and keys that are perhaps not settings."""
    keys, findings = data.own_keys, list[Finding]()
    seeds = [key for key in keys.seeds if key != "seed"]
    left_out = [key for key in keys.left_out if key not in ("log_path", *keys.ignored)]
    if seeds or left_out:
        parts = [f"{labels.listed(left_out, 6)}: each run has its own"] if left_out else []
        parts += [f"{labels.listed(seeds, 4)}: the seed"] if seeds else []
        text = (
            f"Left out of the settings: {'; '.join(parts)}. --ignore KEY leaves out another key, "
            "--seed KEY names the seed."
        )
        evidence = {"left_out": list(keys.left_out), "seeds": list(keys.seeds)}
        findings.append(Finding("own_keys", "note", text, (), evidence))
    if keys.doubtful:
        names = labels.listed(keys.doubtful, 4)
        text = (
            f"Each run has a different text in {names}, so each is a separate cell. If that is not "
            f"a setting, leave it out: --ignore {keys.doubtful[0]}."
        )
        findings.append(Finding("doubtful_keys", "note", text, (), {"keys": list(keys.doubtful)}))
    return findings


def _is_odd(run: RunData) -> bool:
    """Return whether a run's metrics file has problems other than skipped lines."""
    return any(not note.endswith("skipped") for note in run.notes)


def _records(data: SweepData) -> list[Finding]:
    findings: list[Finding] = []
    lines = sum(run.unreadable for run in data.runs)
    odd = [run for run in data.runs if run.notes]
    if odd:
        cells = tuple(dict.fromkeys(run.cell for run in odd))
        first = f"{odd[0].name or 'the only run'}: {'; '.join(odd[0].notes)}"
        more = f" (and {plural(len(odd) - 1, 'other run')})" if len(odd) > 1 else ""
        text = f"Oddities in the metrics of {first}{more}."
        evidence = {"lines": lines, "runs": {run.name: list(run.notes) for run in odd}}
        # Skipped lines alone are shown further down.
        kind = "odd_records" if any(_is_odd(run) for run in odd) else "unreadable"
        level = "warning" if kind == "odd_records" else "note"
        findings.append(
            Finding(kind, level, text, cells if kind == "odd_records" else (), evidence)
        )
    if data.metric is not None and data.metric.name in data.keys:
        valueless = [run for run in data.runs if run.state == "succeeded" and run.value is None]
        if valueless:
            cells = tuple(dict.fromkeys(run.cell for run in valueless))
            names = [run.name for run in valueless]
            text = (
                f"{labels.listed(names, 3)} succeeded, but recorded no {data.metric.name}. Check "
                "in the log whether the program wrote it."
            )
            findings.append(Finding("unmeasured", "warning", text, cells, {"runs": names}))
    if data.assumed:
        text = (
            f"No record says how {plural(data.assumed, 'run')} in plain folders ended: they "
            "count as finished."
        )
        findings.append(Finding("assumed", "note", text, (), {"runs": data.assumed}))
    findings += _own_keys(data)
    if data.retired:
        text = f"{plural(data.retired, 'run')} of an earlier version of the grid left out."
        findings.append(Finding("retired", "note", text, (), {"runs": data.retired}))
    return findings
