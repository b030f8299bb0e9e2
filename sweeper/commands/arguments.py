"""Arguments that several verbs share, and the titles of groups of options in `--help`. Every
command line loads this file, so it imports only argparse."""

import os
from argparse import Action, ArgumentParser, Namespace, _ArgumentGroup  # pyright: ignore[reportPrivateUsage]

RUNS = "which runs"
SWEEP = "which sweep"
LAUNCH = "how to launch"
COMPARE = "how to compare"
WHERE = "where sweeps are stored"
OUTPUT = "output"


def group(verb: ArgumentParser, title: str) -> _ArgumentGroup:
    """Return the verb's group of arguments with this title, and create it if needed. Help shows
    groups in the order of their creation."""
    groups = verb._action_groups  # pyright: ignore[reportPrivateUsage]
    same = (each for each in groups if each.title == title)
    return next(same, None) or verb.add_argument_group(title)


def flag(group: _ArgumentGroup, name: str, about: str) -> None:
    """Add an option that takes no value."""
    group.add_argument(name, action="store_true", help=about)


class Once(Action):
    """An action for an option that may be given only once. argparse would silently use the last
    value. `refusal` is the error message, with `{first}` and `{second}` for the values."""

    refusal = "{second}: {first} is already given; give only one"

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
    """The action of `--root` for a verb that accepts only one root."""

    refusal = "--root is given twice, but this verb takes one root"


def root(verb: ArgumentParser) -> None:
    """Add `--root`, which names the store."""
    group(verb, WHERE).add_argument(
        "--root",
        action=OneRoot,
        help="where sweeps are stored (default: $SWEEPER_ROOT, else ./sweeps)",
    )


def roots(verb: ArgumentParser) -> None:
    """Add `--root` for a verb that reads one or several roots."""
    group(verb, WHERE).add_argument(
        "--root",
        action="append",
        help="where sweeps are stored (default: $SWEEPER_ROOT, else ./sweeps); repeatable",
    )


def json(verb: ArgumentParser) -> None:
    """Add `--json`, which makes a verb print its answer as JSON."""
    flag(group(verb, OUTPUT), "--json", "print one JSON object")


def help_option(verb: ArgumentParser) -> None:
    """Add `--help` as the last option of a verb."""
    output = group(verb, OUTPUT)
    groups = verb._action_groups  # pyright: ignore[reportPrivateUsage]
    groups.append(groups.pop(groups.index(output)))
    output.add_argument("-h", "--help", action="help", help="print this help")


def select(verb: ArgumentParser, title: str = RUNS) -> None:
    """Add `--state` and `--where`, which narrow the selection of runs."""
    options = group(verb, title)
    options.add_argument("--state", action="append", help="only runs in this state; repeatable")
    options.add_argument(
        "--where",
        help="only runs that meet a condition, such as 'lr < 1e-3 and not (seed = 1 or state in "
        "(failed, lost))'",
    )


def runs_of_any_sweeps(verb: ArgumentParser, default: str = "all") -> None:
    """Add an argument for names of runs of any sweeps. The help shows the text `default`."""
    group(verb, RUNS).add_argument(
        "runs",
        nargs="*",
        default=[],
        metavar="RUN",
        help="a sweep, sweep/run, a run's name, the beginning of a name, a glob or an id "
        f"(default: {default})",
    )


def optional_sweep(verb: ArgumentParser, default: str = "the newest", title: str = SWEEP) -> None:
    """Add an argument for an optional sweep. The help shows the text `default`."""
    group(verb, title).add_argument(
        "sweep", nargs="?", metavar="SWEEP", help=f"a sweep (default: {default})"
    )


def required_sweep(verb: ArgumentParser, about: str = "a sweep", title: str = SWEEP) -> None:
    """Add an argument for a required sweep."""
    group(verb, title).add_argument("sweep", metavar="SWEEP", help=about)


def runs_of_required_sweep(verb: ArgumentParser) -> None:
    """Add arguments for a required sweep and for names of its runs. Without names, all runs of
    the sweep are selected."""
    required_sweep(verb, title=RUNS)
    _runs(verb)


def runs_of_optional_sweep(verb: ArgumentParser, default: str = "the newest") -> None:
    """Add arguments for an optional sweep and for names of its runs. Without names, all runs of
    the sweep are selected."""
    optional_sweep(verb, default, RUNS)
    _runs(verb)


def _runs(verb: ArgumentParser) -> None:
    group(verb, RUNS).add_argument(
        "runs",
        nargs="*",
        default=[],
        metavar="RUN",
        help="a run's name, the beginning of a name, a glob or an id (default: all)",
    )


def grid(verb: ArgumentParser) -> None:
    """Add the argument for a grid, overrides of the grid's values, and options of the launch."""
    grid = group(verb, "the grid")
    grid.add_argument("grid", metavar="GRID", help="a YAML file")
    grid.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="key=value",
        help="replace a base value or an axis; key=a,b sets an axis, ~key removes an axis",
    )
    flag(grid, "--no-validate", "do not check configurations with the recipe")
    launch_options(verb)


def launch_options(verb: ArgumentParser) -> _ArgumentGroup:
    """Add options that override a grid's launch settings. Return their group."""
    launch = group(verb, LAUNCH)
    launch.add_argument("--backend", help="where jobs execute (default: the grid's, else tmux)")
    launch.add_argument(
        "--max-parallel", type=int, metavar="N", help="largest number of jobs at once"
    )
    launch.add_argument(
        "--budget",
        metavar="KEY=VALUE,...",
        help="replace usd, tokens, hours or on_reach in the grid's budget, as in "
        "usd=20,on_reach=pause",
    )
    return launch


def wait(verb: ArgumentParser) -> None:
    """Add `--trust`, `--verbose` and the options for waiting until the launched runs have ended."""
    trust(verb)
    waiting = group(verb, "waiting")
    flag(waiting, "--wait", "run the launcher in this terminal until all runs have ended")
    flag(waiting, "--plain", "with --wait: print lines instead of the live view")
    waiting.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="write more details to the launcher's log, which `sweeper logs --launcher` prints; "
        "with --wait also print the details",
    )


def set_log_level(arguments: Namespace) -> None:
    """Apply `-v` to this process and to the launcher that this process starts."""
    if arguments.verbose:
        from sweeper.common.logs import LEVEL, SHOWN

        os.environ[LEVEL] = "debug"
        if arguments.wait:
            os.environ[SHOWN] = "1"
            arguments.plain = True


def trust(verb: ArgumentParser, title: str = LAUNCH) -> None:
    """Add `--trust`, the permission to execute a plan that another user or machine recorded."""
    flag(group(verb, title), "--trust", "run a plan recorded by another user or machine")


def weights(verb: ArgumentParser) -> None:
    """Add arguments for a run (or a sweep's best run) and for one of the run's checkpoints."""
    options = group(verb, "which weights")
    options.add_argument("of", metavar="SWEEP|RUN", help="a run, or a sweep (its best run)")
    options.add_argument(
        "--which",
        default="final",
        metavar="final|best|NAME",
        help="the checkpoint: final (default), best (by the metric), or a checkpoint's name",
    )


def judge(verb: ArgumentParser, title: str = COMPARE) -> None:
    """Add `--metric`, `--goal` and `--at`, which determine how runs are compared."""
    compare = group(verb, title)
    compare.add_argument("--metric", help="compare by this metric (default: the grid's)")
    compare.add_argument(
        "--goal",
        choices=["minimize", "maximize"],
        help="which values are better (default: the grid's goal, or by the metric's name)",
    )
    compare.add_argument(
        "--at",
        help="which value of a run is compared: last, best, mean_of_last=5 or auto (default: "
        "the grid's)",
    )
