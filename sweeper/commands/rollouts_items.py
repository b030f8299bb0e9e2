"""`sweeper rollouts` of an evaluation: shows a run's answers, item by item."""

import math
from argparse import Namespace
from collections.abc import Sequence

from sweeper.commands.output import (
    excerpt,
    page_of,
    print_json_answer,
    print_page_footer,
    print_text,
)
from sweeper.commands.selection import prefixes
from sweeper.common.sanitize import sanitize_lines
from sweeper.errors import NotFound
from sweeper.results.problems import tell_problems
from sweeper.results.registry import Registry
from sweeper.results.runs import RecordedRun
from sweeper.sweep.run_record import ItemRow
from sweeper.terminal import number, print_table, say

_COLUMNS = ("task", "item", "sample", "score", "prompt", "text")
_SHOWN = 40
_SOLVED = 1.0


def show_items(registry: Registry, runs: Sequence[RecordedRun], arguments: Namespace) -> int:
    """Print a page of answers; with `--failed` those that score below 1."""
    rows = registry.item_rows(runs)
    if not rows:
        which = f"{runs[0].sweep}/{runs[0].name} has" if len(runs) == 1 else "these runs have"
        raise NotFound(f"{which} recorded no answers to items")
    prefix = prefixes(runs)
    names = {(run.id, run.sweep, run.root): f"{prefix(run)}{run.name}" for run in runs}
    matches = [row for row in rows if _wanted(row, arguments)]
    if arguments.best or arguments.worst:
        sign = -1.0 if arguments.best else 1.0
        matches.sort(key=lambda row: (row["score"] is None, sign * (row["score"] or 0.0)))
    page = page_of(matches, arguments)
    if arguments.json:
        ids = {"run": runs[0].id} if len(runs) == 1 else {"runs": [run.id for run in runs]}
        document = {"schema": 1, **ids, "count": len(matches), "items": page}
        return print_json_answer(document, registry.problems)
    if arguments.full:
        for row in page:
            _print_whole(row)
    else:
        several = ["run"] if len(runs) > 1 else []
        lines = [
            [names[row["run"], row["sweep"], row["root"]]] * len(several)
            + [_short(row[column]) for column in _COLUMNS]
            for row in page
        ]
        print_table([*several, *_COLUMNS], lines)
    print_page_footer(matches, "answers", arguments)
    return tell_problems(registry.problems)


def show_against(
    registry: Registry, run: RecordedRun, other: RecordedRun, arguments: Namespace
) -> int:
    """Print the items that one run solves with every answer and another with none, with an answer
    of both. Items are the same if their task and content are."""
    solved, failed = (_by_item(registry, one, arguments) for one in (run, other))
    pairs = [
        (mine[0], theirs[0])
        for item, mine in solved.items()
        if (theirs := failed.get(item))
        and all((row["score"] or 0.0) >= _SOLVED for row in mine)
        and all((row["score"] or 0.0) < _SOLVED for row in theirs)
    ]
    page = page_of(pairs, arguments)
    shared = len(solved.keys() & failed.keys())
    if arguments.json:
        items = [{"solved": mine, "failed": theirs} for mine, theirs in page]
        counts = {"count": len(pairs), "shared": shared}
        document = {"schema": 1, "run": run.id, "against": other.id, **counts, "items": items}
        return print_json_answer(document, registry.problems)
    for mine, theirs in page if arguments.full else ():
        _print_whole(mine)
        say(f"{other.name}: {sanitize_lines(theirs['text'])}")
        print()
    if not arguments.full:
        columns = ("task", "item", "prompt", run.name, other.name)
        shown = ("task", "item", "prompt", "text")
        lines = [
            [*(_short(mine[key]) for key in shown), _short(theirs["text"])] for mine, theirs in page
        ]
        print_table(columns, lines)
    print(f"\n{len(page)} of {len(pairs)} items, of {shared} that both were asked")
    return tell_problems(registry.problems)


def _by_item(
    registry: Registry, run: RecordedRun, arguments: Namespace
) -> dict[tuple[str, str], list[ItemRow]]:
    """Return a run's judged answers, by task and item."""
    rows = registry.item_rows(run)
    if not rows:
        raise NotFound(f"{run.sweep}/{run.name} has recorded no answers to items")
    by_item: dict[tuple[str, str], list[ItemRow]] = {}
    for row in rows:
        if row["score"] is not None and _wanted(row, arguments):
            by_item.setdefault((row["task"], row["item"]), []).append(row)
    return by_item


def _wanted(row: ItemRow, arguments: Namespace) -> bool:
    score = row["score"]
    if arguments.failed and (score is None or score >= _SOLVED):
        return False
    if arguments.name is not None and row["task"] != arguments.name:
        return False
    least, most = arguments.min_reward, arguments.max_reward
    known = math.nan if score is None else score
    if (least is not None and not known >= least) or (most is not None and not known <= most):
        return False
    text = f"{row['prompt']}\n{row['text']}\n{row['answer']}"
    return not arguments.search or arguments.search.lower() in text.lower()


def _short(value: object) -> object:
    return excerpt(value, _SHOWN) if isinstance(value, str) else value


def _print_whole(row: ItemRow) -> None:
    score = "not judged" if row["score"] is None else f"score {number(row['score'])}"
    say(f"\u2500\u2500 {row['task']} {_short(row['item'])}, sample {row['sample']}: {score}")
    for who, text in (
        ("user", row["prompt"]),
        ("assistant", row["text"]),
        ("right", row["answer"]),
    ):
        print_text(who, text)
    print()
