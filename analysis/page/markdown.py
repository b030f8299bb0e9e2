"""Writes the report as Markdown with PNGs."""

import html
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sweeper.analysis import labels
from sweeper.analysis.comparison.stability import RULE
from sweeper.analysis.figures.layouts import Panel
from sweeper.analysis.findings.axis_findings import KINDS
from sweeper.analysis.findings.finding import cell_text, method, noise_text, short_name
from sweeper.analysis.findings.next_steps import NOTHING_NEXT
from sweeper.analysis.findings.study import Study
from sweeper.analysis.page.celltables import AS_GOOD, cell_table
from sweeper.analysis.page.episodetables import episode_tables
from sweeper.analysis.page.itemtables import checkpoint_rows, held_rows, item_tables, task_rows
from sweeper.analysis.page.tables import (
    block_rows,
    executed,
    paired_about,
    paired_rows,
    provenance,
    rate_rows,
)
from sweeper.analysis.page.timetables import ABOUT, LINKED, time_table
from sweeper.analysis.reading.commands import reproducing
from sweeper.common.sanitize import sanitize, sanitize_lines
from sweeper.errors import UsageError
from sweeper.sweep.labels import plural

# With a handler, Python does not print matplotlib's log, for example about its list of fonts.
logging.getLogger("matplotlib").addHandler(logging.NullHandler())

_ROWS = 60
_CURVES, _FIGURES = 3, 10
_LATER = ("waiting", "undeclared", "retired", "unreadable", "own_keys")


def write(study: Study, panels: Sequence[Panel]) -> dict[str, bytes]:
    """Return a dict from file name to content, for `report.md` and its pictures."""
    picture = _loaded()
    pictures: dict[str, bytes] = {}
    shown: dict[str, list[tuple[str, str]]] = {}
    numbers: dict[str, int] = {}
    for panel in panels:
        number = numbers[panel.section] = numbers.get(panel.section, 0) + 1
        if number <= (_CURVES if panel.section == "curves" else _FIGURES):
            is_first = panel.section == "cells" and number == 1
            name = "cells.png" if is_first else f"{panel.section}-{number}.png"
            pictures[name] = picture(panel.figure, panel.name)
            shown.setdefault(panel.section, []).append((panel.description, name))
    text = "\n".join(_lines(study, shown)) + "\n"
    return {"report.md": text.encode("utf-8", "replace"), **pictures}


def _loaded() -> Callable[[Mapping[str, Any], str], bytes]:
    """Return the function that draws a picture. Raises `UsageError` if matplotlib cannot be
    loaded."""
    try:
        from sweeper.analysis.figures.pictures import picture
    except (ImportError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(
            f"matplotlib cannot be loaded: {reason}; check MPLBACKEND and the file matplotlibrc, "
            f"or use --no-pictures"
        ) from error
    return picture


def escape(text: str) -> str:
    """Escape text for a line of Markdown, so that it contains no link, no tag and no end of a
    table cell."""
    line = sanitize(" ".join(text.split()))
    return re.sub(r"([\\`*_{}\[\]()#+!|~$])", r"\\\1", html.escape(line, quote=False))


def fenced(text: str, kind: str = "") -> str:
    """Return a fenced block. The fence has more backticks than any sequence of backticks in the
    text."""
    text = sanitize_lines(text)
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{kind}\n{text.rstrip()}\n{fence}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table."""
    yield f"| {' | '.join(map(escape, head))} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(map(escape, row))} |"


def _images(shown: dict[str, list[tuple[str, str]]], section: str) -> Iterator[str]:
    for caption, name in shown.get(section, ()):
        yield f"\n![{escape(caption)}]({name})"


def _lines(study: Study, shown: dict[str, list[tuple[str, str]]]) -> Iterator[str]:
    ranking = study.ranking
    yield from _verdict(study)
    yield from _checkpoint(study)
    yield from _complete(study)
    yield "\n## Results\n"
    yield from _results(study)
    yield from _images(shown, "cells")
    how = method(ranking.scale, ranking.noise)
    yield f"\n{AS_GOOD}"
    yield "\n### How this was computed\n"
    yield escape(f"{noise_text(ranking.noise) or ''} {how}".strip())
    yield from _paired(study)
    yield from _answered(study)
    yield from _blocks(study)
    yield from _over_tasks(study, shown)
    yield from _checkpoints(study)
    yield from _axes(study, shown)
    yield from _next_grid(study)
    if "curves" in shown:
        yield "\n## Curves\n\nColours are as in the picture of the cells; other cells are grey."
        yield from _images(shown, "curves")
    if "trade" in shown:
        yield "\n## What it costs"
        yield from _images(shown, "trade")
    yield from _times(study)
    yield from _unstable(study)
    yield from _rollouts(study, shown)
    yield from _notes(study)
    yield from _reproduce(study)


def _verdict(study: Study) -> Iterator[str]:
    verdict, data, ranking = study.verdict, study.data, study.ranking
    yield f"# {escape(data.name)}: {escape(verdict.headline)}\n"
    yield f"**{escape(verdict.label)}** · {escape(verdict.measure)}\n"
    if verdict.number is not None:
        yield f"**{escape(verdict.number)}** {escape(verdict.spread or '')}\n"
    for line in (verdict.effect, verdict.against, verdict.cost):
        if line:
            yield f"{escape(labels.capitalised(line))}.\n"
    for check in verdict.checks:
        mark = "**!** " if check.good is False else ""
        yield f"- {mark}{escape(check.name)} {escape(check.answer)}"
    named = ranking.best is not None or ranking.leaders
    yield f"\n## {'Can it be believed?' if named else 'Why'}\n"
    for finding in verdict.believe:
        yield f"- {'**!** ' if finding.level == 'warning' else ''}{escape(finding.text)}"
    if verdict.caution:
        yield f"\n{escape(verdict.caution)}"
    yield "\n## What next\n"
    for position, step in enumerate(verdict.steps, start=1):
        yield f"{position}. {escape(step)}"
    if not verdict.steps:
        yield escape(NOTHING_NEXT)


def _axes(study: Study, shown: dict[str, list[tuple[str, str]]]) -> Iterator[str]:
    if not study.axes and study.surface is None:
        return
    yield "\n## Axes"
    yield from _images(shown, "axes")
    yield from _images(shown, "planes")
    yield from _images(shown, "parallel")
    yield ""
    yield from (f"- {escape(f.text)}" for f in study.findings if f.kind in KINDS)


def _next_grid(study: Study) -> Iterator[str]:
    if study.next is not None:
        yield f"\n## The grid to run next\n\n{escape(study.next.why)} Also in `next.yaml`.\n"
        yield fenced(study.next.command, "console") + "\n"
        yield from (f"{escape(note)}\n" for note in (study.next.note,) if note)
        yield fenced(study.next.yaml, "yaml")
    if study.no_next is not None:
        yield f"\n## The grid to run next\n\nThere is no next.yaml: {escape(study.no_next)}."


def _notes(study: Study) -> Iterator[str]:
    data = study.data
    if not data.noted.notes and not data.noted.tags:
        return
    yield "\n## Notes\n"
    for run, tags in data.noted.tags.items():
        yield f"- {escape(run or data.name)}: {escape(', '.join(tags))}"
    for note in data.noted.notes:
        yield f"\n{escape(note.run or data.name)}, {escape(note.by)}, {escape(note.time)}:\n"
        yield fenced(sanitize_lines(note.text))


def _blocks(study: Study) -> Iterator[str]:
    if study.blocks is None:
        return
    yield f"\n## By {escape(study.blocks.by)}\n"
    for row in block_rows(study):
        settings = escape(", ".join(row["settings"]))
        tied = f", {row['standing']}" if row["standing"] else ""
        ends = f"; at the end of {escape(row['ends'])}" if row["ends"] != labels.NONE else ""
        holes = f"; missing: {escape('; '.join(row['holes']))}" if row["holes"] else ""
        yield f"- {escape(row['name'])}: {settings}, {escape(row['mean'])}{tied}{ends}{holes}"


def _checkpoint(study: Study) -> Iterator[str]:
    checkpoint, run = study.verdict.checkpoint, study.ranking.best_run
    if checkpoint is not None:
        expires = f" ({checkpoint.expires})" if checkpoint.expires else ""
        yield f"\nCheckpoint of {escape(checkpoint.run)}{escape(expires)}:\n"
        yield fenced(checkpoint.path)
    if run is not None and run.link is not None:
        yield f"\n[The best run in W&B](<{_address(run.link)}>)"


def _complete(study: Study) -> Iterator[str]:
    states = Counter(run.state for run in study.data.runs)
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    yield f"\n## Is it complete?\n\n{len(study.data.runs)} planned: {counts or 'nothing'}.\n"
    if study.data.used:
        yield f"The runs {escape(study.data.used)}.\n"
    if study.data.places:
        counts = "; ".join(place.text for place in study.data.places)
        yield f"Where they ran: {escape(counts)}.\n"
    yield from (f"- {escape(f.text)}" for f in study.findings if f.kind in _LATER)
    for failure in study.failures[:12]:
        names = labels.listed([run.name for run in failure.runs], 6)
        yield f"\n{escape(names)}: {escape(failure.why)}\n"
        if failure.runs[0].log:
            yield fenced("\n".join(failure.runs[0].log))
    raised = [(run, alarm) for run in study.data.runs for alarm in run.alarms]
    if raised:
        yield "\nAlarms:\n"
        yield from (
            f"- {escape(run.name)}: {escape(alarm.message or alarm.rule)}"
            for run, alarm in raised[:20]
        )


def _address(link: str) -> str:
    """Return an address for a link, escaped so that no character in it ends the link."""
    return link.replace("<", "%3C").replace(">", "%3E").replace("\n", "%0A")


def _results(study: Study) -> Iterator[str]:
    rows = cell_table(study.ranking)["rows"]
    executes = [each.title for each in study.unlike]
    head = (
        "#",
        "cell",
        "mean",
        "95 % interval",
        "range",
        *executes,
        "against the best",
        "n",
        "time",
    )
    yield from table(
        head,
        (
            (
                str(row["rank"] or labels.NONE),
                cell_text(row["cell"]),
                row["mean"],
                row["interval"],
                row["range"],
                *executed(study, row["cell"]),
                ", ".join(part for part in row["standing"][1:] if part),
                f"{row['cell'].summary.n} of {len(row['cell'].runs)}",
                labels.duration(row["cell"].wall_s),
            )
            for row in rows[:_ROWS]
        ),
    )
    if len(rows) > _ROWS:
        yield f"\nThe first {_ROWS} of {len(study.ranking.cells)} cells."


def _paired(study: Study) -> Iterator[str]:
    rows = paired_rows(study)
    if not rows:
        return
    yield f"\nAgainst the best on the same seeds. {escape(paired_about(study))}\n"
    change = "ratio" if study.ranking.scale == "log" else "difference"
    head = ("cell", change, "95 % interval", "p")
    yield from table(head, ((r["name"], r["value"], r["interval"], r["p"]) for r in rows[:_ROWS]))


def _answered(study: Study) -> Iterator[str]:
    yield from _held_out(study)
    yield from _items(study)
    yield from _episodes(study)


def _held_out(study: Study) -> Iterator[str]:
    held = study.held_out
    if held is None:
        return
    yield "\n## Trained on and held out\n"
    head = ("cell", held.training, "95 % interval", held.metric.name, "95 % interval")
    rows = held_rows(study)
    yield from table(head, ((row["name"], *row["training"], *row["held_out"]) for row in rows))


def _over_tasks(study: Study, shown: dict[str, list[tuple[str, str]]]) -> Iterator[str]:
    if study.tasks is None:
        return
    yield f"\n## Over {plural(len(study.tasks.tasks), 'task')}\n"
    head = ("cell", "runs", "interquartile mean", "95 % bootstrap", "improves on the first")
    keys = ("name", "runs", "iqm", "interval", "improves")
    yield from table(head, ([str(row[key]) for key in keys] for row in task_rows(study)))
    yield from _images(shown, "tasks")


def _checkpoints(study: Study) -> Iterator[str]:
    if study.checkpoints is None:
        return
    yield "\n## Checkpoints by benchmark\n"
    head = ("cell", "checkpoint", "runs", *study.checkpoints.suites)
    rows = checkpoint_rows(study)
    yield from table(
        head, ((row["name"], row["checkpoint"], str(row["runs"]), *row["scores"]) for row in rows)
    )


def _items(study: Study) -> Iterator[str]:
    for task in item_tables(study):
        yield f"\n## Question by question: {escape(task['title'])}\n\n{escape(task['about'])}\n"
        head = ("cell", "runs", "mean", "95 % interval", "over", "less than the best", "standing")
        keys = ("name", "runs", "mean", "interval", "over", "difference", "standing")
        yield from table(head, ([str(row[key]) for key in keys] for row in task["rows"]))


def _episodes(study: Study) -> Iterator[str]:
    for split in episode_tables(study):
        yield f"\n## Episodes: {escape(split['title'])}\n\n{escape(split['about'])}\n"
        yield from (f"- {escape(point)}" for point in split["points"])
        yield ""
        head = ("cell", "episodes", "first reward", "last", "solved", "tasks ever solved", "turns")
        head += ("ended by a limit", "environments failed", "time of one")
        keys = ("name", "episodes", "first", "reward", "solved", "tasks", "turns")
        keys += ("limited", "failures", "seconds")
        yield from table(head, ([str(row[key]) for key in keys] for row in split["rows"]))
        yield ""
        yield from table(
            ("task", *split["columns"], "ever solved by", "p"),
            (
                [
                    row["task"],
                    *(labels.NONE if place is None else place[0] for place in row["places"]),
                    row["solved_by"],
                    row["p"],
                ]
                for row in split["tasks"]
            ),
        )


def _times(study: Study) -> Iterator[str]:
    times = time_table(study.ranking)
    if times is not None:
        yield f"\n## Where the time goes\n\n{ABOUT}\n"
        head = ("cell", "seconds", *times["parts"])
        rows = ([row["name"], row["seconds"], *row["shares"]] for row in times["rows"])
        yield from table(head, rows)
        yield ""
        for row in times["rows"]:
            links = (
                f"[{kind}]({place})" if place.startswith(LINKED) else f"{kind} {escape(place)}"
                for kind, place in row["timelines"].items()
            )
            if row["timelines"]:
                yield f"- {escape(row['name'])}: {', '.join(links)}"


def _unstable(study: Study) -> Iterator[str]:
    stability = study.stability
    if not stability.diverged and not stability.unstable:
        return
    yield f"\n## Diverged and unstable runs\n\n{escape(RULE)}\n"
    yield from (f"- {escape(run.name)} diverged" for run in stability.diverged[:30])
    for run in stability.unstable[:30]:
        values = labels.listed([labels.number(v) for v in (run.first, run.best, run.last)])
        yield f"- {escape(run.run)}: first, best and last {escape(values)}"
    if stability.rates:
        yield ""
        head = ("axis", "value", "went wrong", "share", "95 % interval (Wilson)")
        rows = rate_rows(stability.rates)
        yield from table(
            head,
            (
                (r["axis"], r["value"], f"{r['count']} of {r['trials']}", r["share"], r["interval"])
                for r in rows
            ),
        )


def _rollouts(study: Study, shown: dict[str, list[tuple[str, str]]]) -> Iterator[str]:
    behaviour = study.behaviour
    if behaviour is None:
        return
    yield "\n## What the models wrote"
    yield from (f"\n{escape(f.text)}" for f in study.findings if f.kind.startswith("rollouts_"))
    yield from _images(shown, "rollouts")
    for example in behaviour.examples:
        yield (
            f"\n{example.why}: reward {labels.number(example.rollout.reward, 3)}, "
            f"{escape(example.run)}\n"
        )
        yield fenced(f"{example.rollout.prompt}\n\n{example.rollout.response}".strip()[:1500])
    if behaviour.disagreements:
        cells = [cell.cell for cell in behaviour.cells[:5]]
        yield "\nQuestions that cells answer differently (mean reward):\n"
        names = [short_name(cell) for cell in study.ranking.cells if cell.name in cells]
        order = [cell.name for cell in study.ranking.cells if cell.name in cells]
        yield from table(
            ("question", *names),
            (
                (
                    item.prompt[:120],
                    *(
                        labels.number(item.rewards[c][0], 3) if c in item.rewards else labels.NONE
                        for c in order
                    ),
                )
                for item in behaviour.disagreements
            ),
        )


def _reproduce(study: Study) -> Iterator[str]:
    yield "\n## How to reproduce\n"
    yield fenced("\n".join(reproducing(study.data, study.prices)), "console") + "\n"
    for key, value in provenance(study.data):
        yield f"- {escape(key)}: {escape(value)}"
    again = [run for run in study.data.runs if run.attempts > 1]
    if again:
        names = labels.listed([f"{run.name} ({run.attempts})" for run in again], 12)
        yield f"- more than one attempt: {escape(names)}"
    plan = study.data.plan
    if plan is not None and plan.grid_text:
        yield "\n" + fenced(plan.grid_text, "yaml")
