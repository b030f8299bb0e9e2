"""The flags of the reading verbs. Loaded with the command line: nothing but argparse."""

from argparse import ArgumentParser

__all__ = ["diff", "export", "gc", "ls", "rollouts", "several", "show", "sql"]


def several(verb: ArgumentParser) -> None:
    """Which runs."""
    verb.add_argument(
        "runs",
        nargs="*",
        metavar="RUN",
        help="a sweep, sweep/run, a run's name, its beginning, a glob or an id (default: all)",
    )


def ls(verb: ArgumentParser) -> None:
    """Of ls."""
    verb.add_argument(
        "--metric", action="append", help="show the last value of this too; repeatable"
    )


def show(verb: ArgumentParser) -> None:
    """Of show."""
    verb.add_argument("run", help="sweep/name, the beginning of one, or an id")


def diff(verb: ArgumentParser) -> None:
    """Of diff."""
    verb.add_argument("--all", action="store_true", help="also what is the same in all")


def sql(verb: ArgumentParser) -> None:
    """Of sql."""
    verb.add_argument(
        "query", help="one SELECT over the tables runs, metrics, rollouts and checkpoints"
    )
    verb.add_argument("--run", action="append", metavar="RUN", help="only these runs; repeatable")


def rollouts(verb: ArgumentParser) -> None:
    """Of rollouts."""
    verb.add_argument("run", help="sweep/name, the beginning of one, or an id")
    verb.add_argument("--iteration", type=int, help="only this one; -1 is the last")
    verb.add_argument("--name", help="only files of this name: train, eval_test, ...")
    verb.add_argument("--group", type=int, help="only this group")
    order = verb.add_mutually_exclusive_group()
    order.add_argument("--best", action="store_true", help="highest reward first")
    order.add_argument("--worst", action="store_true", help="lowest reward first")
    for flag, what in (("reward", "total reward"), ("length", "sampled tokens")):
        verb.add_argument(f"--min-{flag}", type=float, help=f"only with so much {what} or more")
        verb.add_argument(f"--max-{flag}", type=float, help=f"only with so much {what} or less")
    verb.add_argument("--search", metavar="TEXT", help="only with this text in what was said")
    verb.add_argument("--full", action="store_true", help="the conversations too")
    verb.add_argument("-n", "--limit", type=int, default=20, help="how many (20); 0: all")
    verb.add_argument("--page", type=int, default=1, help="which so many (1 is the first)")


def export(verb: ArgumentParser) -> None:
    """Of export."""
    verb.add_argument("--format", required=True, choices=("csv", "parquet", "wandb"))
    verb.add_argument(
        "--table",
        choices=("metrics", "runs", "rollouts", "checkpoints"),
        default="metrics",
        help="what to write as CSV or Parquet (metrics)",
    )
    verb.add_argument(
        "--raw",
        action="store_true",
        help="CSV for programs: texts as recorded (else an apostrophe is set before each that a "
        "spreadsheet would compute)",
    )
    verb.add_argument("--out", help="the file to write; for wandb the folder of its files")
    verb.add_argument("--project", default="sweeper", help="the W&B project (sweeper)")


def gc(verb: ArgumentParser) -> None:
    """Of gc."""
    verb.add_argument("--delete", action="store_true", help="do it (else: say what it would do)")
    verb.add_argument(
        "--attempts",
        action="store_true",
        help="also rollouts and transcripts that a later attempt of the same run has written again",
    )
    verb.add_argument(
        "--days", type=float, default=7.0, help="leave what was used in the last DAYS days (7)"
    )
