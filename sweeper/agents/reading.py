"""The tools that read results. Most tools call the same functions as the verbs of the same
names. Agents read the docstrings and argument descriptions of tools."""

import re
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from sweeper.agents.answers import MOST, Ours, Text, page
from sweeper.agents.arguments import Cell, Either, Metric, Name, Number, RunName, Selectors, Size
from sweeper.agents.workspace import Workspace
from sweeper.errors import UsageError
from sweeper.results.registry import Registry
from sweeper.results.selectors import pick

if TYPE_CHECKING:
    from sweeper.analysis.statistics.inference import Estimate

_DATA = re.compile(r"(^|[._])(task|data|dataset|eval|test|bench\w*|suite|prompts?|grader|split)")
"""Matches names of settings that may change the data on which runs are evaluated."""


def check_claim(
    registry: Registry, better: str, worse: str, metric: str | None
) -> dict[str, object]:
    """Check the claim that the cell `better` (sweep/cell) beats the cell `worse`. The result has
    `holds` (None if the runs do not decide the claim), the reason `because`, and the values that
    were compared. Raises `NotFound`, `UsageError`."""
    from sweeper import analysis

    if "/" not in better or "/" not in worse:
        raise UsageError("name two cells, each as sweep/cell, not whole sweeps")
    comparison = analysis.versus(registry, better, worse, metric=metric)
    if len(comparison.rows) != 1:
        raise UsageError(
            "these cells cannot be compared: name two single cells that each have a run with a "
            "value"
        )
    row, minimize = comparison.rows[0], comparison.metric.goal == "minimize"
    a, b = row.a.summary, row.b.summary
    figures: dict[str, object] = {
        "metric": comparison.metric.name,
        "goal": comparison.metric.goal,
        "better": {"cell": comparison.a, "n": a.n, "mean": a.mean},
        "worse": {"cell": comparison.b, "n": b.n, "mean": b.mean},
        "difference": row.difference._asdict(),
        "scale": comparison.scale,
        "changed": [key for key, _, _ in comparison.changed],
    }
    holds, why = _judged(a.n, b.n, row.difference, minimize)
    other = [key for key, _, _ in comparison.changed if _DATA.search(key)]
    if other:
        holds, why = (
            None,
            f"the cells may be evaluated on different data: {', '.join(other)} differ",
        )
    return {"holds": holds, "because": why, **figures}


def _judged(a: int, b: int, difference: "Estimate", minimize: bool) -> tuple[bool | None, str]:
    """Return whether the claim "the first cell is better" holds (None: undecided), and why. The
    cells have `a` and `b` seeds. `difference` is the second cell's value minus the first's."""
    if not a or not b:
        return None, "one of the cells has no run with a value"
    if min(a, b) < 2:
        return None, (
            f"{a} seed against {b}: one seed shows nothing, because another seed of the same cell "
            f"may differ by as much; run at least three seeds of each cell"
        )
    if difference.low is None or difference.p is None:
        return None, "the interval is unknown: run more seeds"
    ahead = difference.value > 0 if minimize else difference.value < 0
    interval = f"95 % interval {difference.low:.4g} to {difference.high:.4g}"
    if difference.p >= 0.05:
        return None, f"noise can explain the difference ({interval}, p {difference.p:.2g})"
    if not ahead:
        return False, f"the opposite is true ({interval}, p {difference.p:.2g})"
    return True, f"the difference is beyond the noise ({interval}, p {difference.p:.2g})"


class Reading:
    """Tools that read results and write notes. Each returns JSON values or raises
    `SweeperError`."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def runs(
        self,
        sweep: Name,
        selectors: Selectors = [],  # noqa: B006 - the protocol's default
        where: Annotated[
            str | None,
            Field(max_length=1000, description="a condition, such as lr < 1e-3 and state = failed"),
        ] = None,
        number: Number = 1,
        size: Size = 20,
    ) -> dict[str, object]:
        """Return a page of the runs of a sweep, each with its state, metric value and settings."""
        runs = self._workspace.registry.sweep(sweep)
        chosen = page(pick(runs.runs, selectors, None, where), number, size)
        columns = ("id", "name", "cell", "seed", "state", "reason", "attempts", "metric", "value",
                "wall_s", "code", "config")  # fmt: skip
        records = [run.record() for run in chosen.items]
        return chosen.under("runs", [{key: row[key] for key in columns} for row in records])

    def verdict(self, sweep: Name, metric: Metric = None) -> dict[str, object]:
        """Say which cell won in a sweep, by how much, and whether to believe the result. Return
        the text, the best cells with their intervals over seeds, doubts, and what to run next.
        For one stage of a sweep, give `sweep/stage`. This also writes the report."""
        from sweeper import analysis

        report = analysis.analyze(self._workspace.registry, sweep, metric=metric, pictures=False)
        document = report.document
        keys = ("cell", "n", "mean", "low", "high", "diverged", "told_apart", "p")
        verdict, grid = document["verdict"], document["next_grid"]
        return {
            "text": Text(verdict["text"], 8000),
            "kind": verdict["kind"],
            "best": verdict["best"],
            "tied": verdict["tied"][:20],
            "against_baseline": verdict["against"],
            "checks": verdict["checks"],
            "next": verdict["next"],
            "seeds_to_part": verdict["seeds_to_part"],
            "checkpoint": verdict["checkpoint"],
            "cells": [{key: row[key] for key in keys} for row in document["cells"][:20]],
            "next_grid": None if grid is None else Ours(grid["yaml"]),
            "report": report.html_path,
        }

    def compare(self, a: Either, b: Either, metric: Metric = None) -> dict[str, object]:
        """Compare two sweeps cell by cell, or two cells (sweep/cell) seed by seed, with
        intervals."""
        from sweeper import analysis

        comparison = analysis.versus(self._workspace.registry, a, b, metric=metric)
        document = comparison.document
        return {**document, "cells": document["cells"][:MOST], "text": Text(comparison.text, 8000)}

    def record_result(
        self,
        claim: Annotated[
            str, Field(min_length=5, max_length=2000, description="the claim, one sentence")
        ],
        better: Cell,
        worse: Cell,
        metric: Metric = None,
    ) -> dict[str, object]:
        """Check your claim that one cell is better than another, such as a baseline. Seeds,
        interval and data are checked, and the claim and the result are written as a note on the
        sweep. `holds` is true, false, or null if the runs cannot decide the claim. If `holds` is
        not true, say so, and do not repeat the claim."""
        from sweeper.results.annotations import Noted, mark

        checked = check_claim(self._workspace.registry, better, worse, metric)
        words: dict[object, str] = {True: "holds", False: "does not hold", None: "is not shown"}
        word = words[checked["holds"]]
        text = f"claim: {claim}\nchecked: it {word}: {checked['because']}"
        sweep = better.partition("/")[0]
        mark(sweep, Noted(text), root=self._workspace.root, by=self._workspace.by)
        return checked

    def rollouts(
        self,
        run: RunName,
        order: Annotated[
            str,
            Field(
                pattern="^(last|best|worst)$",
                description="which rollouts come first: last, best or worst",
            ),
        ] = "last",
        search: Annotated[
            str, Field(max_length=300, description="only rollouts with this text")
        ] = "",
        number: Number = 1,
        size: Annotated[int, Field(ge=1, le=10, description="entries per page")] = 3,
    ) -> dict[str, object]:
        """Return a page of the conversations that a run sampled in training, with rewards. Read
        some rollouts of every run before you believe its metric."""
        from sweeper.metrics.rollout_files import summary_files
        from sweeper.metrics.rows import as_float
        from sweeper.results.captured import captured, with_tokens
        from sweeper.results.rollouts import Words, read

        record = self._workspace.registry.run(run)
        recorded, _ = read(record, summary_files(record.files, record.folders()))
        recorded = with_tokens(recorded, captured(record))
        words = Words(record, recorded)
        matches = [rollout for rollout in recorded if search.lower() in words.text(rollout).lower()]
        if order == "last":
            matches.reverse()
        else:
            sign = -1.0 if order == "best" else 1.0
            matches.sort(
                key=lambda rollout: sign * (as_float(rollout.numbers.get("total_reward")) or 0.0)
            )
        chosen = page(matches, number, size)
        shown = [
            {
                "iteration": rollout.numbers.get("iteration"),
                "group": rollout.numbers.get("group_idx"),
                "reward": rollout.numbers.get("total_reward"),
                "said": [
                    {"who": Text(who, 40), "text": Text(text)}
                    for who, text in words.of(rollout).spoken[:20]
                ],
            }
            for rollout in chosen.items
        ]
        return chosen.under("rollouts", shown)

    def items(
        self, run: RunName, only_wrong: bool = True, number: Number = 1, size: Size = 10
    ) -> dict[str, object]:
        """Return a page of the model's answers in a run's last evaluation, with questions and
        scores."""
        rows = self._workspace.registry.item_rows(run)
        matches = [
            row for row in rows if not only_wrong or (row["score"] is not None and row["score"] < 1)
        ]
        chosen = page(matches, number, size)
        shown = [
            {
                **{key: Text(str(row[key] or ""), 200) for key in ("task", "item")},
                "score": row["score"],
                **{key: Text(str(row[key] or ""), 1500) for key in ("prompt", "text", "answer")},
            }
            for row in chosen.items
        ]
        return chosen.under("items", shown)

    def logs(
        self,
        run: RunName,
        lines: Annotated[int, Field(ge=1, le=200, description="number of lines")] = 40,
    ) -> dict[str, object]:
        """Return the last lines that a run printed, including its errors."""
        record = self._workspace.registry.run(run)
        text = "\n".join(record.log_tail(lines))
        answer = {"run": f"{record.sweep}/{record.name}", "state": record.state.value}
        return {**answer, "log": Text(text, 20_000)}

    def checkpoints(self, run: RunName, number: Number = 1, size: Size = 20) -> dict[str, object]:
        """Return a page of a run's recorded checkpoints, newest first."""
        record = self._workspace.registry.run(run)
        columns = ("attempt", "name", "batch", "epoch", "sampler_path", "state_path", "final")
        records = reversed(record.checkpoint_records())
        shown = [{key: row[key] for key in columns if key in row} for row in records]
        return page(shown, number, size).under("checkpoints")

    def note(
        self,
        target: Annotated[
            str, Field(min_length=1, max_length=600, description="a sweep, or sweep/run")
        ],
        text: Annotated[
            str | None, Field(max_length=20_000, description="the note; null: only read")
        ] = None,
        tag: Annotated[list[str], Field(max_length=20, description="tags to add")] = [],  # noqa: B006
        untag: Annotated[list[str], Field(max_length=20, description="tags to remove")] = [],  # noqa: B006
        star: Annotated[
            bool | None, Field(description="true: add a star; false: remove the star")
        ] = None,
    ) -> dict[str, object]:
        """Write a note on a sweep or a run: what you expected, what you saw and what you
        conclude. Without `text`, no note is written. The answer has the latest notes."""
        from sweeper.results.annotations import Noted, mark

        change = Noted(text, tag, untag, star)
        marks = mark(target, change, root=self._workspace.root, by=self._workspace.by)
        notes = [{"text": Text(n.text), "by": n.by, "time": n.time} for n in marks.notes]
        return {**marks.record(), "notes": notes[-MOST:]}
