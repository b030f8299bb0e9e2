"""Arguments that several verbs share. This file imports only argparse, since every command line
loads it."""

import os
from argparse import Action, ArgumentParser, Namespace, _ArgumentGroup  # pyright: ignore[reportPrivateUsage]


class Once(Action):
    """Stores a value, and refuses a second one, which would replace the first without a word.
    `refusal` is the message, with `{first}` and `{second}` for the values."""

    refusal = "{second}: {first} is given already"

    def __call__(
        self,
        parser: ArgumentParser,
        namespace: Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        del option_string
        first = getattr(namespace, self.dest, None)
        if first is not None:
            parser.error(self.refusal.format(first=first, second=values))
        setattr(namespace, self.dest, values)


class OneRoot(Once):
    """The root of a verb that takes one."""

    refusal = "--root is given twice, but this verb takes one root"


def root(verb: ArgumentParser) -> None:
    """Add `--root`: where sweeps are stored."""
    verb.add_argument(
        "--root",
        action=OneRoot,
        help="where sweeps are kept (default: $SWEEPER_ROOT, else ./sweeps)",
    )


def roots(verb: ArgumentParser) -> None:
    """Add `--root` for a verb that reads from one or several roots."""
    verb.add_argument(
        "--root",
        action="append",
        help="where sweeps are kept (default: $SWEEPER_ROOT, else ./sweeps); repeatable",
    )


def json(verb: ArgumentParser) -> None:
    """Add `--json`: an answer for programs."""
    verb.add_argument("--json", action="store_true", help="print one JSON object")


def select(verb: ArgumentParser | _ArgumentGroup) -> None:
    """Add `--state` and `--where`, which select runs in addition to their names."""
    verb.add_argument("--state", action="append", help="only runs in this state; repeatable")
    verb.add_argument(
        "--where",
        help="only runs with this: 'lr < 1e-3 and not (seed = 1 or state in (failed, lost))'",
    )


def some_runs(verb: ArgumentParser, default: str = "all") -> None:
    """Add the names of runs of any sweeps; none means all."""
    verb.add_argument(
        "runs",
        nargs="*",
        default=[],
        metavar="RUN",
        help="a sweep, sweep/run, a run's name, its beginning, a glob or an id (default: "
        f"{default})",
    )


def sweep(verb: ArgumentParser, default: str = "the newest") -> None:
    """Add a sweep that may be left out; `default` says which one that means."""
    verb.add_argument("sweep", nargs="?", metavar="SWEEP", help=f"a sweep (default: {default})")


def runs(verb: ArgumentParser) -> None:
    """Add a sweep and the names of some of its runs; none means all."""
    verb.add_argument("sweep", help="a sweep")
    _runs(verb)


def some_of_its_runs(verb: ArgumentParser, default: str = "the newest") -> None:
    """The same; the sweep may be left out."""
    sweep(verb, default)
    _runs(verb)


def _runs(verb: ArgumentParser) -> None:
    verb.add_argument(
        "runs",
        nargs="*",
        default=[],
        metavar="RUN",
        help="a name, its beginning, a glob, an id",
    )


def run(verb: ArgumentParser) -> None:
    """Add the name of one run."""
    verb.add_argument("run", help="sweep/name, the beginning of one, or an id")


def grid(verb: ArgumentParser) -> None:
    """Add a grid, and the overrides of its values."""
    verb.add_argument("grid", help="the grid, a YAML file")
    verb.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="key=value",
        help="replace a base value or an axis; 'key=[a,b]' sets an axis, ~key drops one",
    )
    verb.add_argument("--backend", help="where jobs execute (default: the grid's, else tmux)")
    verb.add_argument("--max-parallel", type=int, help="most jobs at once")
    verb.add_argument(
        "--budget",
        metavar="KEY=VALUE,...",
        help="usd, tokens, hours or on_reach, over the grid's budget: usd=20,on_reach=pause",
    )
    verb.add_argument(
        "--no-validate", action="store_true", help="do not check configurations with the recipe"
    )


def wait(verb: ArgumentParser) -> None:
    """Add the options to wait for the launched runs, and to trust their sweep."""
    trust(verb)
    verb.add_argument(
        "--wait", action="store_true", help="run the launcher here, until all runs have ended"
    )
    verb.add_argument(
        "--plain", action="store_true", help="with --wait: print lines, not the live view"
    )
    verb.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="log all that the launcher does (`sweeper logs --launcher`), with --wait also here",
    )


def set_log_level(arguments: Namespace) -> None:
    """Do what `-v` asks for, for this process and the launcher that it starts."""
    if arguments.verbose:
        from sweeper.common.logs import LEVEL, SHOWN

        os.environ[LEVEL] = "debug"
        if arguments.wait:
            os.environ[SHOWN] = "1"
            arguments.plain = True


def trust(verb: ArgumentParser) -> None:
    """Add the option to execute the sweep of another user or machine."""
    verb.add_argument(
        "--trust",
        action="store_true",
        help="run a plan recorded by another user or machine",
    )


def judge(verb: ArgumentParser | _ArgumentGroup) -> None:
    """Add the metric by which runs are compared."""
    verb.add_argument("--metric", help="compare by this metric (default: the grid's)")
    verb.add_argument(
        "--goal", choices=["minimize", "maximize"], help="default: the grid's, or as its name says"
    )
    verb.add_argument(
        "--at",
        help="which value of a run counts: last, best, mean_of_last=5, auto (default: the grid's)",
    )
