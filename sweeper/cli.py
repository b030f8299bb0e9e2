"""The verbs: parse, call, print. Everything heavy is imported by the verb that needs it."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from sweeper.errors import EnvironmentFailure, SweeperError
from sweeper.limits import lacking
from sweeper.reading import flags
from sweeper.sanitize import guarded
from sweeper.terminal import complain, warn

__all__ = ["main", "parser"]

_EPILOG = """\
exit codes: 0 done, 1 a bug of ours, 2 usage or a bad grid, 3 some runs failed, 4 not finished
(launch --wait and status), 5 not found, 6 the environment, 130 interrupted"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (without the program's name); gives the exit code."""
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what may follow
        from sweeper.verbs.completion import complete

        complete(parser())
    with guarded():
        return _main(list(sys.argv[1:] if argv is None else argv))


def _main(given: list[str]) -> int:
    try:
        code = _run(given)
        sys.stdout.flush()
    except SweeperError as error:
        return complain(error)
    except KeyboardInterrupt:
        warn("interrupted")
        return 130
    except BrokenPipeError:
        # The reader (head, less) has gone. Python flushes at exit: give it somewhere to flush to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if os.environ.get("SWEEPER_DEBUG"):
            raise
        if (lack := lacking(error)) is not None:
            return complain(EnvironmentFailure(str(lack)))
        warn(f"a bug of ours: {type(error).__name__}: {error} (SWEEPER_DEBUG=1 shows where)")
        return 1
    return code


def _run(given: list[str]) -> int:
    if given[:1] == ["engine"]:  # it has a command line of its own
        return _function("engine")(argparse.Namespace(verb="engine", rest=given[1:]))
    if given[:1] != ["plan"]:
        arguments = _parse(given)
        return _function(arguments.verb)(arguments)
    from sweeper.recipe.inquiry import ahead

    with ahead():  # the recipe's interpreter gets ready while the rest is loaded
        arguments = _parse(given)
        return _function(arguments.verb)(arguments)


def _parse(given: list[str]) -> argparse.Namespace:
    """The arguments. What may stand any number of times may stand behind flags as well, which
    argparse does not offer for verbs: `launch grid.yaml --wait max_steps=5`."""
    top = parser(given)
    arguments, rest = top.parse_known_args(given)
    many = next((name for name in _MANY if isinstance(getattr(arguments, name, None), list)), None)
    if rest and (many is None or any(word.startswith("-") for word in rest)):
        top.error(f"unrecognized arguments: {' '.join(rest)}")
    if many is not None:
        getattr(arguments, many).extend(rest)
    return arguments


def parser(given: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """The whole command line. Of `given` arguments only the verbs that stand among them get flags
    of their own: making those of all costs the start of each some milliseconds."""
    top = argparse.ArgumentParser(
        prog="sweeper",
        description="Experiment sweeps for people who post-train language models.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action=_Version)
    top.add_argument("--completion", action=_Completion, choices=("bash", "zsh", "fish"))
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB", prog="sweeper")
    for name, verb in VERBS.items():
        made = verbs.add_parser(name, help=verb.help)
        if given is None or name in given:
            for add in verb.flags:
                add(made)
    return top


def _root(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--root", help="where sweeps lie (default: $SWEEPER_ROOT, else ./sweeps)")


def _json(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--json", action="store_true", help="print one JSON object")


def _doctor(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--backend", help="look at what this backend needs, too")
    verb.add_argument(
        "--grid", metavar="FILE", help="a grid, whose `launch` says how (default: config.toml)"
    )


def _grid(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("grid", help="the grid, a YAML file")
    verb.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="replaces a base value or an axis; 'key=[a,b]' sets an axis, ~key drops one",
    )
    verb.add_argument("--backend", help="where jobs execute (default: the grid's, else tmux)")
    verb.add_argument("--max-parallel", type=int, help="most jobs at once")
    verb.add_argument("--no-validate", action="store_true", help="do not ask the recipe's config")


def _select(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--state", action="append", help="only runs in this state; repeatable")
    verb.add_argument(
        "--where",
        help="only runs with this: 'lr < 1e-3 and not (seed = 1 or state in (failed, lost))'",
    )


def _launch(verb: argparse.ArgumentParser) -> None:
    _wait(verb)
    verb.add_argument("--smoke", action="store_true", help="one run first; the rest if it succeeds")
    verb.add_argument(
        "--live", action="store_true", help="run the checkout itself, not a copy as it is now"
    )


def _wait(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--trust",
        action="store_true",
        help="execute a sweep's plan though another user, or another machine, has recorded it",
    )
    verb.add_argument("--wait", action="store_true", help="be the launcher until all runs ended")
    verb.add_argument("--plain", action="store_true", help="with --wait: lines, not the live view")


def _runs(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("sweep", help="a sweep")
    verb.add_argument("runs", nargs="*", metavar="RUN", help="a name, its beginning, a glob, an id")


def _retry(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--failed", action="store_true", help="those that failed (the same as to name none)"
    )


def _plan(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--full", action="store_true", help="every run with its whole configuration")


def _status(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("sweep", nargs="?", help="a sweep (default: a line for each)")
    verb.add_argument("--follow", action="store_true", help="again and again until it has ended")


def _watch(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("sweep", nargs="?", help="a sweep (default: the newest)")
    verb.add_argument("--plain", action="store_true", help="lines, as without a terminal")
    verb.add_argument(
        "--until-ended",
        action="store_true",
        help="leave when the sweep has ended: ten minutes after the last key, soon without any",
    )
    # By `launch --wait`, which shows this view and may end before it: its process.
    verb.add_argument("--guest", type=int, help=argparse.SUPPRESS)


def _logs(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("-f", "--follow", action="store_true", help="go on until all have ended")
    verb.add_argument("-n", "--lines", type=int, help="only the last LINES lines of each")
    verb.add_argument("--grep", metavar="PATTERN", help="only lines that this is found in")


def _attach(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("sweep", nargs="?", help="a sweep (default: the newest)")


def _judge(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--metric", help="compare by this metric (default: the grid's)")
    verb.add_argument(
        "--goal", choices=["minimize", "maximize"], help="default: the grid's, or as its name says"
    )
    verb.add_argument(
        "--at", choices=["last", "best"], help="which value of a run counts (default: the grid's)"
    )


def _analyze(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("sweeps", nargs="+", metavar="SWEEP", help="a sweep, or a sweep's folder")
    verb.add_argument("--out", help="folder for the report (default: the sweep's report/)")
    verb.add_argument(
        "--prices", help="dollars per million tokens: train=0.4,sample=0.8,prefill=0.1"
    )
    verb.add_argument("--no-pictures", action="store_true", help="no report.md with its PNGs")


def _compare(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("a", help="a sweep, or sweep/cell")
    verb.add_argument("b", help="another")


def _engine(verb: argparse.ArgumentParser) -> None:
    """For completion only: the engine has a command line of its own."""
    verb.add_argument("action", choices=("start", "serve", "status", "stop"))


def _sync(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("sweep", nargs="?", help="of this sweep only")


def _init(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "recipe", nargs="?", help="a short name, module, module:Class or file.py (default: sft)"
    )
    verb.add_argument("--out", help="the file to write (default: <recipe>.yaml; -: print it)")
    verb.add_argument("--python", help="the recipe's interpreter (default: sweeper's own)")
    verb.add_argument("--backend", help="where jobs execute: its options are written as comments")
    verb.add_argument("--list", action="store_true", help="the short names of recipes")
    verb.add_argument("--schema", action="store_true", help="print the JSON Schema of grids")


class _Verb:
    """A verb: the module with the function of its name, a line of help, what adds its flags."""

    def __init__(
        self, module: str, line: str, *flags: Callable[[argparse.ArgumentParser], None]
    ) -> None:
        self.module, self.help, self.flags = module, line, flags


_MANY = ("overrides", "runs", "sweeps")

_CHOICE = (_root, _json, _select, flags.several)

VERBS = {
    "launch": _Verb("verbs.launching", "start a grid, or go on with it", _grid, _root, _launch),
    "plan": _Verb("verbs.planning_view", "what launch would start", _grid, _root, _json, _plan),
    "status": _Verb(
        "verbs.watching", "where sweeps, or the runs of one, stand", _root, _json, _select, _status
    ),
    "watch": _Verb("tui.watch", "a sweep on the whole screen, live", _root, _watch),
    "ls": _Verb("reading.ls", "runs and what they reached", *_CHOICE, flags.ls),
    "show": _Verb("reading.show", "everything about one run", _root, _json, flags.show),
    "diff": _Verb("reading.diff", "how runs differ", *_CHOICE, flags.diff),
    "sql": _Verb(
        "reading.sql",
        "a SELECT over runs, metrics, rollouts, checkpoints",
        _root,
        _json,
        _select,
        flags.sql,
    ),
    "rollouts": _Verb("reading.rollouts", "what a run sampled", _root, _json, flags.rollouts),
    "export": _Verb(
        "reading.export", "to CSV, Parquet or W&B", _root, _select, flags.several, flags.export
    ),
    "gc": _Verb("reading.gc", "remove what nobody needs", *_CHOICE, flags.gc),
    "logs": _Verb("reading.logs", "what runs print", *_CHOICE, _logs),
    "attach": _Verb("verbs.launching", "look at a sweep's tmux windows", _root, _attach),
    "alarms": _Verb("verbs.alarms", "what is wrong with runs", _root, _json, _select, _runs),
    "cancel": _Verb(
        "verbs.cancel",
        "stop runs, and start them no more",
        _root,
        _json,
        _select,
        _runs,
    ),
    "retry": _Verb("verbs.retry", "start runs again", _root, _select, _runs, _retry, _wait),
    "analyze": _Verb("verbs.analyzing", "the report: what won", _root, _json, _judge, _analyze),
    "compare": _Verb(
        "verbs.analyzing", "two sweeps cell by cell, or two cells", _root, _json, _judge, _compare
    ),
    "engine": _Verb(
        "verbs.launching",
        "the local Tinker-compatible service: start, status, stop",
        _engine,
    ),
    "sync": _Verb(
        "launcher.elsewhere",
        "bring what workers that died left here into its store",
        _root,
        _json,
        _sync,
    ),
    "doctor": _Verb("verbs.doctor", "is what a sweep needs there?", _root, _json, _doctor),
    "init": _Verb("verbs.starter", "write a commented grid for a recipe, to start from", _init),
}


def _function(name: str) -> Callable[[argparse.Namespace], int]:
    """The function of a verb; its module is loaded only now, so that `--help` is quick."""
    from importlib import import_module

    return getattr(import_module(f"sweeper.{VERBS[name].module}"), name)


class _Version(argparse.Action):
    """Prints the version; found out only when asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the version")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from sweeper import __version__

        print(f"sweeper {__version__}")
        parser.exit()


class _Completion(argparse.Action):
    """Prints what a shell has to be told once, so that it completes what is typed."""

    def __init__(self, option_strings: Sequence[str], dest: str, choices: Sequence[str]) -> None:
        super().__init__(
            option_strings,
            dest,
            choices=choices,
            help='print shell code; in ~/.bashrc: eval "$(sweeper --completion bash)"',
        )

    def __call__(self, parser: argparse.ArgumentParser, *given: object) -> None:
        from sweeper.verbs.completion import shell_code

        print(shell_code(str(given[1])))
        parser.exit()
