"""`sweeper rollouts`: shows the rollouts of runs, one trajectory at a time."""

import json
import math
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

from sweeper.commands import arguments as shared
from sweeper.commands.output import (
    excerpt,
    page_of,
    print_json_answer,
    print_page_footer,
    print_text,
)
from sweeper.commands.selection import chosen, open_registry, prefixes
from sweeper.common.json_values import is_table, list_of
from sweeper.common.sanitize import sanitize_lines
from sweeper.errors import NotFound, UsageError
from sweeper.metrics.rollout_files import COLUMNS, SummaryFile, summary_files
from sweeper.metrics.rows import as_float
from sweeper.results.captured import TOKENS, captured, with_tokens
from sweeper.results.conversations import WHOSE, Transcript, answers, turns_logged
from sweeper.results.items import files_of, item_files
from sweeper.results.problems import tell_problems
from sweeper.results.registry import Registry
from sweeper.results.rollouts import Found, Words, read
from sweeper.results.runs import RecordedRun
from sweeper.sweep.labels import plural
from sweeper.sweep.run_record import ItemRow
from sweeper.telemetry.collector import address_of, send
from sweeper.telemetry.traces import Trace, batches, rows, trace_of
from sweeper.terminal import measurement, number, print_table, say, warn


def export(
    rollouts: Sequence[tuple[RecordedRun, Found]], path: str | None, collector: str | None
) -> None:
    """Write rollouts to the file at `path` ("-": standard output), one JSON line for each step
    of a trajectory. If `collector` is an address, send the rollouts there as OpenTelemetry
    spans. Raises `UsageError` for an invalid path or address, and `EnvironmentFailure` if the
    collector does not accept the spans."""
    now = time.time()
    traces: list[Trace] = []
    for run, rollout in rollouts:
        names = {"sweep": run.sweep, "run": run.name, "run_id": run.id, "name": rollout.file.name}
        traces.append(trace_of(rollout.record, names, now))
    steps = plural(sum(len(trace.steps) for trace in traces), "step")
    count = f"{steps} of {plural(len(traces), 'trajectory', 'trajectories')}"
    if path is not None:
        _write(path, traces)
        if path != "-":
            say(f"wrote {count} to {path}")
    if collector is not None:
        url = address_of(collector)
        for body in batches(traces):
            send(url, body)
        print(f"sent {count} to {url}", file=sys.stderr)


def _write(path: str, traces: Sequence[Trace]) -> None:
    lines = (json.dumps(row) + "\n" for trace in traces for row in rows(trace))
    if path == "-":
        sys.stdout.writelines(lines)
        return
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(lines)
    except OSError as error:
        raise UsageError(f"--export {path}: {error.strerror}") from None


_COLUMNS = ("iteration", "name", "group_idx", "traj_idx", "total_reward", "turns", "ac_len")
_LINE = 60


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper rollouts`."""
    shared.group(verb, shared.RUNS).add_argument(
        "runs", nargs="+", metavar="RUN", help="a sweep, sweep/run, a glob or an id"
    )
    shared.select(verb)
    where = shared.group(verb, "which samples")
    where.add_argument(
        "--iteration", type=int, metavar="N", help="samples of this iteration; -1: the last"
    )
    where.add_argument("--name", help="samples in files with this name, such as train or eval_test")
    where.add_argument("--group", type=int, metavar="N", help="samples of this group")
    where.add_argument(
        "--task", metavar="TAG", help="samples with this tag, such as the name of a task"
    )
    where.add_argument("--search", metavar="TEXT", help="samples that contain this text")
    where.add_argument(
        "--against",
        metavar="RUN",
        help="compare with RUN: items that the chosen run solves and RUN fails, with both answers",
    )
    score = shared.group(verb, "rewards and lengths")
    shared.flag(score, "--failed", "answers in the last evaluations that score below 1")
    order = score.add_mutually_exclusive_group()
    shared.flag(order, "--best", "highest reward first")
    shared.flag(order, "--worst", "lowest reward first")
    for flag, minimum, maximum in (
        ("reward", "a total reward of at least N", "a total reward of at most N"),
        ("length", "at least N sampled tokens", "at most N sampled tokens"),
    ):
        score.add_argument(f"--min-{flag}", type=float, metavar="N", help=f"with {minimum}")
        score.add_argument(f"--max-{flag}", type=float, metavar="N", help=f"with {maximum}")
    shared.roots(verb)
    output = shared.group(verb, shared.OUTPUT)
    shared.flag(output, "--full", "also show the conversations")
    output.add_argument(
        "--export",
        metavar="FILE",
        help="write all chosen samples as JSON, a line for each turn (-: standard output)",
    )
    output.add_argument(
        "--otlp",
        metavar="URL",
        help="send all chosen samples to an OpenTelemetry collector, such as http://HOST:4318",
    )
    output.add_argument(
        "-n",
        "--limit",
        type=int,
        default=20,
        metavar="N",
        help="how many to show (default: 20; 0: all)",
    )
    output.add_argument(
        "--page", type=int, default=1, metavar="N", help="page number, starting at 1"
    )
    shared.json(verb)


def run(arguments: Namespace) -> int:
    """Print or export the rollouts of runs, or print their answers to evaluation items."""
    if arguments.limit < 0 or arguments.page < 1:
        raise UsageError("--limit takes 0 or more, and --page 1 or more")
    registry = open_registry(arguments, snapshot=True)
    if arguments.against is not None:
        if len(arguments.runs) > 1:
            raise UsageError("--against RUN: name exactly one run to compare with RUN")
        run = registry.run(arguments.runs[0])
        return show_against(registry, run, registry.run(arguments.against), arguments)
    runs = chosen(registry, arguments)
    if not runs:
        raise NotFound("no run matches")
    exported = arguments.export is not None or arguments.otlp is not None
    if (arguments.failed and not exported) or all(_only_items(run) for run in runs):
        return show_items(registry, runs, arguments)
    try:
        matches, skipped = _read(runs, arguments)
    except NotFound:
        tell_problems(registry.problems)
        raise
    if exported:
        export([(match.run, match.rollout) for match in matches], arguments.export, arguments.otlp)
        return tell_problems(registry.problems)
    page = page_of(matches, arguments)
    if skipped:
        warn(f"{plural(skipped, 'line')} of rollout summaries could not be read")
    if arguments.json:
        shown = [{**match.run.key, **_document(match.rollout, match.transcript)} for match in page]
        ids = {"run": runs[0].id} if len(runs) == 1 else {"runs": [run.id for run in runs]}
        document = {"schema": 1, **ids, "count": len(matches), "skipped": skipped}
        return print_json_answer(document | {"rollouts": shown}, registry.problems)
    prefix = prefixes(runs)
    names = {id(run): f"{prefix(run)}{run.name}" for run in runs} if len(runs) > 1 else {}
    if arguments.full:
        for match in page:
            _print_conversation(match.rollout, match.transcript, names.get(id(match.run), ""))
    else:
        _print_page(page, names)
    print_page_footer(matches, "rollouts", arguments)
    return tell_problems(registry.problems)


class _Match(NamedTuple):
    run: RecordedRun
    rollout: Found
    words: Words

    @property
    def transcript(self) -> Transcript:
        return self.words.of(self.rollout)


def _read(runs: Sequence[RecordedRun], arguments: Namespace) -> tuple[list[_Match], int]:
    """Return the requested trajectories in the requested order, and the number of unreadable lines.
    Runs without rollouts are skipped. Raises `NotFound` if no run has rollouts."""
    matches: list[_Match] = []
    skipped, missing = 0, list[NotFound]()
    for run in runs:
        try:
            rollouts, bad = _of_run(run, arguments)
        except NotFound as error:
            missing.append(error)
            continue
        skipped += bad
        words = Words(run, rollouts)
        wanted = (rollout for rollout in rollouts if _wanted(rollout, words, arguments))
        matches += [_Match(run, rollout, words) for rollout in wanted]
    if len(missing) == len(runs):
        raise missing[0]
    if arguments.best or arguments.worst:
        sign = -1.0 if arguments.best else 1.0

        def place(match: _Match) -> tuple[bool, float]:
            # A trajectory without a reward comes last in both orders.
            reward = _reward(match.rollout)
            return reward is None, sign * (reward or 0.0)

        matches.sort(key=place)
    return matches, skipped


def _print_page(page: Sequence[_Match], names: Mapping[int, str]) -> None:
    """Print a line for each trajectory. `names` is {id(run): name}, or {} if there is only one
    run."""
    texts = [excerpt(_last_answer(match.rollout, match.transcript), _LINE) for match in page]
    columns = [*(["run"] if names else []), *_COLUMNS, *(["text"] if any(texts) else [])]
    rows: list[list[object]] = []
    for match, text in zip(page, texts, strict=True):
        values = {**match.rollout.numbers, "name": match.rollout.file.name}
        row: list[object] = [values.get(column) for column in _COLUMNS]
        name = [names[id(match.run)]] if names else []
        rows.append([*name, *row, *([text] if any(texts) else [])])
    print_table(columns, rows)
    if page and not any(texts):
        print(
            "\nno text: neither the turns nor a transcript contain text (tinker-cookbook writes no "
            "transcript in asynchronous training)"
        )
    if any(match.transcript.whose == "order" for match in page):
        print(f"\n?: {WHOSE['order']}")


def _only_items(run: RecordedRun) -> bool:
    """Return whether a run has recorded answers to items of an evaluation, but no rollouts."""
    recorded = summary_files(run.files, run.folders()) or captured(run)
    return not recorded and bool(item_files(files_of(run).items()))


def _of_run(run: RecordedRun, arguments: Namespace) -> tuple[list[Found], int]:
    """Return the trajectories in the requested files of a run, and the number of unreadable lines.
    If the run captured the tokens of a trajectory, the trajectory includes these tokens."""
    summaries, captures = summary_files(run.files, run.folders()), captured(run)
    recorded = [*summaries, *dict.fromkeys(capture.file for capture in captures)]
    files = set(_files(run, recorded, arguments))
    rollouts, bad = read(run, [file for file in summaries if file in files])
    return with_tokens(rollouts, [each for each in captures if each.file in files]), bad


def _files(run: RecordedRun, files: list[SummaryFile], arguments: Namespace) -> list[SummaryFile]:
    if arguments.name is not None:
        files = [file for file in files if file.name == arguments.name]
    if not files:
        raise NotFound(f"{run.sweep}/{run.name} has recorded no rollout summaries")
    iterations = sorted({file.iteration for file in files})
    iteration: int | None = arguments.iteration
    if iteration is None:
        return files
    if iteration < 0:
        iteration = iterations[iteration] if -iteration <= len(iterations) else None
    chosen = [file for file in files if file.iteration == iteration]
    if not chosen:
        raise NotFound(
            f"no iteration {arguments.iteration}: the run has {iterations[0]} to {iterations[-1]}"
        )
    return chosen


def _reward(rollout: Found) -> float | None:
    return as_float(rollout.numbers.get("total_reward"))


def _wanted(rollout: Found, words: Words, arguments: Namespace) -> bool:
    if arguments.group is not None and rollout.numbers.get("group_idx") != arguments.group:
        return False
    if arguments.task is not None and arguments.task not in _tags(rollout):
        return False
    reward, length = _reward(rollout), as_float(rollout.numbers.get("ac_len"))
    if arguments.failed and reward is not None and reward >= 1:
        return False
    if not (
        _is_between(reward, arguments.min_reward, arguments.max_reward)
        and _is_between(length, arguments.min_length, arguments.max_length)
    ):
        return False
    return not arguments.search or arguments.search.lower() in words.text(rollout).lower()


def _is_between(value: float | None, minimum: float | None, maximum: float | None) -> bool:
    number = math.nan if value is None else value
    return (minimum is None or number >= minimum) and (maximum is None or number <= maximum)


def _tags(rollout: Found) -> list[str]:
    """Return the tags of a trajectory. For a tag `organisation/name`, also return `name`."""
    tags: object = rollout.record.get("tags")
    texts = [str(tag) for tag in cast("list[object]", tags)] if isinstance(tags, list) else []
    return [*texts, *(tag.rpartition("/")[2] for tag in texts)]


def _last_answer(rollout: Found, conversation: Transcript) -> str:
    """Return the text that a table shows for a trajectory: the model's last answer, or the last
    messages if there is no answer. `?` precedes an answer that may belong to another trajectory. If
    the transcript does not separate the trajectories of a group, return a hint to `--full`."""
    logged = turns_logged(rollout.record)
    if conversation.whose == "group":
        return "(in the group's conversations: see --full)"
    answer = answers(logged) or answers(conversation.spoken)
    if answer:
        return answer[-1] if conversation.whose == "trajectory" else f"? {answer[-1]}"
    steps = list_of(rollout.record.get("steps"))
    last = turns_logged({"steps": steps[-1:]}) if logged else conversation.spoken[-1:]
    return ", ".join(f"{who}: {text}" for who, text in last)


def _document(rollout: Found, conversation: Transcript) -> dict[str, object]:
    file = rollout.file
    labels = {"name": file.name, "tags": rollout.record.get("tags"), "path": file.path}
    messages = [{"who": who, "text": text} for who, text in conversation.spoken]
    document = {**rollout.numbers, **labels, "whose": conversation.whose, "conversation": messages}
    steps = [step for step in list_of(rollout.record.get("steps")) if is_table(step)]
    tokens = [{key: step[key] for key in TOKENS if key in step} for step in steps]
    return document | ({"tokens": tokens} if any(tokens) else {})


def _print_conversation(rollout: Found, conversation: Transcript, run: str) -> None:
    """Print a trajectory's conversation, reward and other recorded numbers."""
    numbers = rollout.numbers
    name, group = rollout.file.name, numbers.get("group_idx")
    head = f"iteration {numbers.get('iteration')} {name}, group {group}"
    reward = f"reward {numbers.get('total_reward')}, {numbers.get('ac_len')} tokens"
    head = f"{run} {head}" if run else head
    say(f"\u2500\u2500 {head}, trajectory {numbers.get('traj_idx')}: {reward}")
    measured = {key: value for key, value in numbers.items() if key not in COLUMNS}
    repeated = {*measured, "reward"} if conversation.whose == "trajectory" else set[str]()
    spoken = [message for message in conversation.shown() if message[0] not in repeated]
    spoken += [(key, measurement(key, value)) for key, value in measured.items()]
    for who, message in spoken:
        print_text(who, message)
    print()


_ITEM_COLUMNS = ("task", "item", "sample", "score", "prompt", "text")
_SHOWN = 40
_SOLVED = 1.0


def show_items(registry: Registry, runs: Sequence[RecordedRun], arguments: Namespace) -> int:
    """Print a page of answers to items of evaluations. With `--failed`, print only answers with
    a score below 1."""
    rows = registry.item_rows(runs)
    if not rows:
        runs_text = f"{runs[0].sweep}/{runs[0].name} has" if len(runs) == 1 else "these runs have"
        raise NotFound(f"{runs_text} recorded no answers to items")
    prefix = prefixes(runs)
    names = {(run.id, run.sweep, run.root): f"{prefix(run)}{run.name}" for run in runs}
    matches = [row for row in rows if _wanted_items(row, arguments)]
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
            + [_short(row[column]) for column in _ITEM_COLUMNS]
            for row in page
        ]
        print_table([*several, *_ITEM_COLUMNS], lines)
    print_page_footer(matches, "answers", arguments)
    return tell_problems(registry.problems)


def show_against(
    registry: Registry, run: RecordedRun, other: RecordedRun, arguments: Namespace
) -> int:
    """Print the items that `run` solves (each answer is right) and `other` fails (each answer is
    wrong), with one answer of each run. Items are compared by `task` and `item`."""
    solved, failed = (_by_item(registry, each, arguments) for each in (run, other))
    pairs = [
        (solution[0], failure[0])
        for item, solution in solved.items()
        if (failure := failed.get(item))
        and all((row["score"] or 0.0) >= _SOLVED for row in solution)
        and all((row["score"] or 0.0) < _SOLVED for row in failure)
    ]
    page = page_of(pairs, arguments)
    shared = len(solved.keys() & failed.keys())
    if arguments.json:
        items = [{"solved": solution, "failed": failure} for solution, failure in page]
        counts = {"count": len(pairs), "shared": shared}
        document = {"schema": 1, "run": run.id, "against": other.id, **counts, "items": items}
        return print_json_answer(document, registry.problems)
    for solution, failure in page if arguments.full else ():
        _print_whole(solution)
        say(f"{other.name}: {sanitize_lines(failure['text'])}")
        print()
    if not arguments.full:
        columns = ("task", "item", "prompt", run.name, other.name)
        shown = ("task", "item", "prompt", "text")
        lines = [
            [*(_short(solution[key]) for key in shown), _short(failure["text"])]
            for solution, failure in page
        ]
        print_table(columns, lines)
    print(f"\n{len(page)} of {len(pairs)} such items (both runs answered {shared} items)")
    return tell_problems(registry.problems)


def _by_item(
    registry: Registry, run: RecordedRun, arguments: Namespace
) -> dict[tuple[str, str], list[ItemRow]]:
    """Return {(task, item): answers} with the requested answers of a run. Answers without a score
    are left out. Raises `NotFound` if the run has recorded no answers."""
    rows = registry.item_rows(run)
    if not rows:
        raise NotFound(f"{run.sweep}/{run.name} has recorded no answers to items")
    by_item: dict[tuple[str, str], list[ItemRow]] = {}
    for row in rows:
        if row["score"] is not None and _wanted_items(row, arguments):
            by_item.setdefault((row["task"], row["item"]), []).append(row)
    return by_item


def _wanted_items(row: ItemRow, arguments: Namespace) -> bool:
    score = row["score"]
    if arguments.failed and (score is None or score >= _SOLVED):
        return False
    if arguments.name is not None and row["task"] != arguments.name:
        return False
    if not _is_between(score, arguments.min_reward, arguments.max_reward):
        return False
    text = f"{row['prompt']}\n{row['text']}\n{row['answer']}"
    return not arguments.search or arguments.search.lower() in text.lower()


def _short(value: object) -> object:
    return excerpt(value, _SHOWN) if isinstance(value, str) else value


def _print_whole(row: ItemRow) -> None:
    score = "not judged" if row["score"] is None else f"score {number(row['score'])}"
    say(f"\u2500\u2500 {row['task']} {_short(row['item'])}, sample {row['sample']}: {score}")
    texts = {"user": row["prompt"], "assistant": row["text"], "right": row["answer"]}
    for who, text in texts.items():
        print_text(who, text)
    print()
