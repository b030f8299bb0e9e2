"""The command `sweeper engine start|serve|status|env|stop`, also `python -P -m sweeper.engine`."""

import argparse
import math
import shlex
import sys
from collections.abc import Callable, Sequence

from sweeper.engine import foreground, lifecycle
from sweeper.engine.access_token import TOKEN
from sweeper.engine.limits import add_limits, limits_of
from sweeper.errors import EngineError, SweeperError

_NAMED = 5  # sweeps to name if they use the engine that is to stop
_SHOWN = 10  # sessions to show


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sweeper engine", description="the local Tinker-compatible service"
    )
    actions = parser.add_subparsers(dest="action", required=True)
    _add_settings(actions.add_parser("start", help="start an engine in the background"))
    _add_settings(actions.add_parser("serve", help="run an engine in the foreground"))
    status = actions.add_parser("status", help="show whether an engine runs, and where")
    status.add_argument("--all", action="store_true", help="list all sessions, not the last 10")
    actions.add_parser(
        "env", help='print what a shell sets to use it: eval "$(sweeper engine env)"'
    )
    stop = actions.add_parser("stop", help="stop it")
    stop.add_argument("--force", action="store_true", help="even if sweeps use it")
    for action in actions.choices.values():
        action.add_argument("--home", help="default: $SWEEPER_HOME or the user's data directory")
    return parser


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 (the default) is a free one")
    parser.add_argument(
        "--model", action="append", default=[], metavar="NAME=DIR",
        help="another base model, in Hugging Face's layout",
    )  # fmt: skip
    parser.add_argument(
        "--alias", action="append", default=[], metavar="NAME=MODEL",
        help="another name for a model, as org/its-name=tiny/qwen3; names of Qwen's models on the "
        "hosted service stand for tiny/qwen3 anyway",
    )  # fmt: skip
    parser.add_argument("--token", help=f"what clients must give as their key; better ${TOKEN}")
    add_limits(parser)


def _pairs(given: list[str], flag: str, parser: argparse.ArgumentParser) -> dict[str, str]:
    for item in given:
        if "=" not in item:
            parser.error(f"{flag} {item}: write NAME=VALUE")
    return dict(item.split("=", 1) for item in given)


def _start(host: str, port: int, home: str | None, settings: lifecycle.Settings) -> None:
    if (running := lifecycle.find(home)) is not None:
        raise EngineError(f"one runs already, at {running.url}: `sweeper engine stop` ends it")
    info = lifecycle.start(host, port, home, settings)
    print("\n".join(lifecycle.describe(info, settings.token)))


def _no_one(_info: lifecycle.EngineInfo) -> Sequence[str]:
    return ()


def _stop(home: str | None, users: Sequence[str], *, force: bool) -> None:
    """Stop the engine. Asks first on a terminal if sweeps use it."""
    if users and not force:
        more = f" and {len(users) - _NAMED} more" if len(users) > _NAMED else ""
        named = f"{', '.join(users[:_NAMED])}{more}"
        what = f"{len(users)} sweep{'s' * (len(users) > 1)} at work use it: {named}"
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise EngineError(f"{what}; `sweeper engine stop --force` stops it all the same")
        print(f"{what}. Runs wait, or begin again from their last checkpoint, when it is back.")
        if input("Stop it? [y/N] ").strip().lower() not in ("y", "yes"):
            print("it goes on")
            return
    print("stopped" if lifecycle.stop(home) else "no engine is running")


def _show(action: str, info: lifecycle.EngineInfo, *, everything: bool) -> None:
    if action == "status":
        print("\n".join(lifecycle.describe(info, most=math.inf if everything else _SHOWN)))
        return
    for name, value in lifecycle.client_environment(info).items():
        print(f"export {name}={shlex.quote(value)}")


def main(
    argv: list[str] | None = None,
    users: Callable[[lifecycle.EngineInfo], Sequence[str]] = _no_one,
) -> int:
    """Run the verb. Return the exit code. `users` returns the running sweeps that use an
    engine."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        if arguments.action in ("serve", "start"):
            settings = lifecycle.Settings(
                _pairs(arguments.model, "--model", parser),
                _pairs(arguments.alias, "--alias", parser),
                limits_of(arguments),
                arguments.token,
            )
            where = arguments.home, settings
            if arguments.action == "serve":
                foreground.serve(arguments.host, arguments.port, *where)
            else:
                _start(arguments.host, arguments.port, *where)
            return 0
        if arguments.action == "stop":
            running = None if arguments.force else lifecycle.find(arguments.home)
            _stop(arguments.home, users(running) if running else (), force=arguments.force)
            return 0
        running = lifecycle.find(arguments.home)
        if running is None:
            nothing = "no engine is running: `sweeper engine start` starts one"
            print(nothing, file=sys.stderr if arguments.action == "env" else sys.stdout)
            return 5
        everything = arguments.action == "status" and arguments.all
        _show(arguments.action, running, everything=everything)
    except SweeperError as error:
        print(f"sweeper: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
