"""`sweeper checkpoints`: lists the checkpoints that the service stores and their cost, deletes
checkpoints, or sets when they expire."""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from sweeper.commands import arguments as shared
from sweeper.commands.output import confirmed, print_json_answer
from sweeper.commands.selection import chosen, open_registry
from sweeper.errors import NotFound, UsageError
from sweeper.fields.kinds import seconds
from sweeper.money import prices
from sweeper.results import kept_checkpoints
from sweeper.results.kept_checkpoints import KEEP, Kept
from sweeper.results.problems import tell_problems
from sweeper.results.runs import RecordedRun
from sweeper.results.service_requests import Service, of_sweeps
from sweeper.sweep.labels import plural
from sweeper.terminal import is_screen, print_table, say, warn

_GIGABYTE = 1e9
_HOUR, _TEN_YEARS = 3600, 10 * 365 * 86_400

RunCheckpoint = tuple[RecordedRun, str, Kept]


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper checkpoints`."""
    shared.runs_of_any_sweeps(verb)
    shared.select(verb)
    delete = shared.group(verb, "what to delete")
    shared.flag(delete, "--delete", "delete the listed checkpoints, after asking")
    delete.add_argument(
        "--ttl",
        metavar="30d",
        help="delete the listed checkpoints after this time (never: keep them)",
    )
    delete.add_argument(
        "--keep",
        default="",
        metavar="best,final",
        help="which checkpoints of each run --delete and --ttl leave unchanged: best (by the "
        "metric), final, or best,final",
    )
    shared.flag(delete, "--yes", "do not ask")
    shared.root(verb)
    shared.json(verb)


def run(arguments: Namespace) -> int:
    """List checkpoints, then execute `--delete` or `--ttl`. Both skip the checkpoints that must be
    kept. Only `--ttl never`, which deletes nothing, changes all listed checkpoints."""
    keep = _keep(arguments.keep)
    ttl = _ttl(arguments.ttl)
    if arguments.delete and arguments.ttl is not None:
        raise UsageError("use either --delete or --ttl")
    registry = open_registry(arguments, snapshot=True)
    runs = chosen(registry, arguments, archived=True)
    if not runs:
        raise NotFound("no run matches")
    service = of_sweeps([registry.sweep(name) for name in dict.fromkeys(run.sweep for run in runs)])
    checkpoints = kept_checkpoints.of_runs(runs, kept_checkpoints.listed(service))
    spared = kept_checkpoints.spared(checkpoints, registry.all_handles(), keep)
    if arguments.json and not (arguments.delete or arguments.ttl is not None):
        listed = [
            {"run": f"{run.sweep}/{run.name}", "name": name, **checkpoint.record(),
             "spared": spared.get(checkpoint.path)}
            for run, name, checkpoint in checkpoints
        ]  # fmt: skip
        return print_json_answer({"schema": 1, "checkpoints": listed}, registry.problems)
    _show(checkpoints, spared)
    never = arguments.ttl is not None and ttl is None  # `never` deletes nothing
    targets = [kept for _, _, kept in checkpoints if never or kept.path not in spared]
    if arguments.delete or arguments.ttl is not None:
        _act(service, targets, arguments, ttl)
    return tell_problems(registry.problems)


def _keep(text: str) -> tuple[str, ...]:
    words = tuple(filter(None, text.split(",")))
    for word in words:
        if word not in KEEP:
            raise UsageError(f"--keep {text}: {word!r} is not best or final")
    return words


def _ttl(text: str | None) -> int | None:
    if text in (None, "never"):
        return None
    duration = seconds(text)
    if duration is None or not _HOUR <= duration <= _TEN_YEARS:
        raise UsageError(f"--ttl {text}: write a duration from 1h to 3650d, or never")
    return int(duration)


def _show(checkpoints: Sequence[RunCheckpoint], spared: dict[str, str]) -> None:
    several = len({run.sweep for run, _, _ in checkpoints}) > 1
    rows = [
        (
            f"{run.sweep}/{run.name}" if several else run.name,
            name,
            f"{checkpoint.size / 1e6:,.1f} MB",
            checkpoint.expires or "-",
            spared.get(checkpoint.path, "-"),
            checkpoint.path,
        )
        for run, name, checkpoint in checkpoints
    ]
    print_table(("run", "name", "size", "expires", "needed because", "path"), rows)
    size = sum(checkpoint.size for _, _, checkpoint in checkpoints)
    table = prices.load()
    cost = ""
    if table.storage_gb_month is not None:
        usd = prices.money(size / _GIGABYTE * table.storage_gb_month)
        cost = f", about {usd} dollars a month at prices of {table.date}"
    print(f"\n{plural(len(checkpoints), 'checkpoint')}, {size / _GIGABYTE:,.3f} GB{cost}")


def _act(service: Service, targets: Sequence[Kept], arguments: Namespace, ttl: int | None) -> None:
    """Delete checkpoints, or set when they expire. Raises `UsageError` if the user does not
    confirm. Without a terminal, `--yes` must be given."""
    if not targets:
        say("nothing to change: no listed checkpoint may be deleted (see `needed because`)")
        return
    size = sum(checkpoint.size for checkpoint in targets) / _GIGABYTE
    when = "never" if arguments.ttl == "never" else f"after {arguments.ttl}"
    action = "delete" if arguments.delete else f"delete {when}"
    if not arguments.yes:
        question = f"{plural(len(targets), 'checkpoint')} ({size:,.3f} GB): {action}?"
        if not is_screen():
            raise UsageError(f"{question} Confirm with --yes")
        if not confirmed(question):
            raise UsageError("nothing was changed")
    done = 0
    try:
        for checkpoint in targets:
            if arguments.delete:
                done += kept_checkpoints.delete(service, checkpoint)
            else:
                done += kept_checkpoints.expire(service, checkpoint, ttl)
    finally:
        if done < len(targets):
            warn(
                f"{plural(len(targets) - done, 'checkpoint')} not changed: already deleted, or "
                "this command was interrupted"
            )
    outcome = "deleted" if arguments.delete else f"to be deleted {when}"
    say(f"{plural(done, 'checkpoint')} {outcome}")
