"""Arguments that several verbs have. Nothing but argparse: loaded with the command line."""

from argparse import ArgumentParser

__all__ = ["grid", "json", "judge", "root", "run", "runs", "select", "some_runs", "wait"]


def root(verb: ArgumentParser) -> None:
    """Where sweeps lie."""
    verb.add_argument("--root", help="where sweeps lie (default: $SWEEPER_ROOT, else ./sweeps)")


def json(verb: ArgumentParser) -> None:
    """The answer for programs."""
    verb.add_argument("--json", action="store_true", help="print one JSON object")


def select(verb: ArgumentParser) -> None:
    """Which runs, beside their names."""
    verb.add_argument("--state", action="append", help="only runs in this state; repeatable")
    verb.add_argument(
        "--where",
        help="only runs with this: 'lr < 1e-3 and not (seed = 1 or state in (failed, lost))'",
    )


def some_runs(verb: ArgumentParser) -> None:
    """Runs of any sweeps, all of them without a name."""
    verb.add_argument(
        "runs",
        nargs="*",
        metavar="RUN",
        help="a sweep, sweep/run, a run's name, its beginning, a glob or an id (default: all)",
    )


def runs(verb: ArgumentParser) -> None:
    """A sweep and some of its runs, all of them without a name."""
    verb.add_argument("sweep", help="a sweep")
    verb.add_argument("runs", nargs="*", metavar="RUN", help="a name, its beginning, a glob, an id")


def run(verb: ArgumentParser) -> None:
    """One run."""
    verb.add_argument("run", help="sweep/name, the beginning of one, or an id")


def grid(verb: ArgumentParser) -> None:
    """A grid, and what replaces something in it."""
    verb.add_argument("grid", help="the grid, a YAML file")
    verb.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="replaces a base value or an axis; 'key=[a,b]' sets an axis, ~key drops one",
    )
    verb.add_argument("--backend", help="where jobs execute (default: the grid's, else tmux)")
    verb.add_argument("--max-parallel", type=int, help="most jobs at once")
    verb.add_argument(
        "--budget",
        metavar="KEY=VALUE,...",
        help="usd, tokens, hours or on_reach, over the grid's budget: usd=20,on_reach=pause",
    )
    verb.add_argument("--no-validate", action="store_true", help="do not ask the recipe's config")


def wait(verb: ArgumentParser) -> None:
    """Whether to wait for what is launched, and whose sweep may be executed."""
    verb.add_argument(
        "--trust",
        action="store_true",
        help="execute a sweep's plan though another user, or another machine, has recorded it",
    )
    verb.add_argument("--wait", action="store_true", help="be the launcher until all runs ended")
    verb.add_argument("--plain", action="store_true", help="with --wait: lines, not the live view")


def judge(verb: ArgumentParser) -> None:
    """What runs are compared by."""
    verb.add_argument("--metric", help="compare by this metric (default: the grid's)")
    verb.add_argument(
        "--goal", choices=["minimize", "maximize"], help="default: the grid's, or as its name says"
    )
    verb.add_argument(
        "--at",
        help="which value of a run counts: last, best or mean_of_last=5 (default: the grid's)",
    )
