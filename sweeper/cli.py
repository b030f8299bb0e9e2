"""The verbs: parse, call, print. Everything heavy is imported by the verb that needs it."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from sweeper.errors import SweeperError

__all__ = ["main", "parser"]

_EPILOG = """\
exit codes: 0 done, 1 a bug of ours, 2 usage or a bad grid, 3 some runs failed, 4 not finished
(launch --wait and status), 5 not found, 6 the environment, 130 interrupted"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (without the program's name); gives the exit code."""
    try:
        given = list(sys.argv[1:] if argv is None else argv)
        if given[:1] == ["engine"]:  # it has a command line of its own
            arguments = argparse.Namespace(verb="engine", rest=given[1:])
        else:
            arguments = parser().parse_args(given)
        code = _verb(arguments.verb)(arguments)
        sys.stdout.flush()
    except SweeperError as error:
        print(f"sweeper: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("sweeper: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (head, less) has gone. Python flushes at exit: give it somewhere to flush to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if os.environ.get("SWEEPER_DEBUG"):
            raise
        kind = type(error).__name__
        print(
            f"sweeper: a bug of ours: {kind}: {error} (SWEEPER_DEBUG=1 shows where)",
            file=sys.stderr,
        )
        return 1
    return code


def _verb(name: str) -> Callable[[argparse.Namespace], int]:
    """The function of a verb; its module is loaded only now, so that `--help` is quick."""
    from importlib import import_module

    home = "sweeper.watching" if name in ("status", "ls", "logs") else "sweeper.verbs"
    return getattr(import_module(home), name)


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="sweeper",
        description="Experiment sweeps for people who post-train language models.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action=_Version)
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    root = argparse.ArgumentParser(add_help=False)
    root.add_argument("--root", help="where sweeps lie (default: $SWEEPER_ROOT, else ./sweeps)")
    grid = argparse.ArgumentParser(add_help=False)
    grid.add_argument("grid", help="the grid, a YAML file")
    grid.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="replaces a base value or an axis; 'key=[a,b]' sets an axis, ~key drops one",
    )
    grid.add_argument("--backend", help="where jobs execute (default: the grid's, else tmux)")
    grid.add_argument("--max-parallel", type=int, help="most jobs at once")
    grid.add_argument("--no-validate", action="store_true", help="do not ask the recipe's config")
    json = argparse.ArgumentParser(add_help=False)
    json.add_argument("--json", action="store_true", help="print one JSON object")
    select = argparse.ArgumentParser(add_help=False)
    select.add_argument("--state", action="append", help="only runs in this state; repeatable")
    select.add_argument("--where", help="only runs for which this holds: 'learning_rate < 1e-3'")

    launch = verbs.add_parser("launch", parents=[grid, root], help="start a grid, or go on with it")
    launch.add_argument("--wait", action="store_true", help="be the launcher until all runs ended")
    plan = verbs.add_parser("plan", parents=[grid, root, json], help="what launch would start")
    plan.add_argument("--full", action="store_true", help="every run with its whole configuration")
    status = verbs.add_parser(
        "status", parents=[root, json, select], help="where sweeps, or the runs of one, stand"
    )
    status.add_argument("sweep", nargs="?", help="a sweep (default: a line for each)")
    status.add_argument("--follow", action="store_true", help="again and again until it has ended")
    ls = verbs.add_parser("ls", parents=[root, json, select], help="runs and what they reached")
    ls.add_argument("sweep", nargs="?", help="a sweep or a glob (default: all)")
    logs = verbs.add_parser("logs", parents=[root], help="what a run printed")
    logs.add_argument("run", help="sweep/name, the beginning of one, or an id")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the run has ended")
    logs.add_argument("-n", "--lines", type=int, help="only the last LINES lines")
    attach = verbs.add_parser("attach", parents=[root], help="look at a sweep's tmux windows")
    attach.add_argument("sweep", nargs="?", help="a sweep (default: the newest)")
    analyze = verbs.add_parser("analyze", parents=[root, json], help="the report: what won")
    analyze.add_argument("sweep", help="a sweep")
    analyze.add_argument("--metric", help="compare by this metric (default: the grid's)")
    analyze.add_argument("--goal", choices=["minimize", "maximize"])
    analyze.add_argument("--out", help="folder for the report (default: the sweep's report/)")
    verbs.add_parser("engine", help="the local Tinker-compatible service: serve, status, stop")
    verbs.add_parser("doctor", parents=[root, json], help="is what a sweep needs there?")
    return top


class _Version(argparse.Action):
    """Prints the version; found out only when asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the version")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from sweeper import __version__

        print(f"sweeper {__version__}")
        parser.exit()
