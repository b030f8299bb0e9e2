"""The command `sweeper engine start|serve|status|env|stop`, also `python -P -m sweeper.engine`."""

import argparse
import math
import os
import shlex
import sys
from collections.abc import Callable, Sequence

from sweeper import paths
from sweeper.engine import lifecycle
from sweeper.engine.access_token import TOKEN
from sweeper.engine.lifecycle import Settings, token_for
from sweeper.engine.limits import add_limits, limits_of
from sweeper.errors import EngineError, SweeperError


def serve(
    host: str = "127.0.0.1",
    port: int = 0,
    home: str | None = None,
    settings: Settings = Settings(),  # noqa: B008 -- a tuple
) -> None:
    """Run an engine in this process until SIGTERM or SIGINT. SIGHUP is ignored. If `port` is 0, use
    the port of the home's last engine, or any free port if that port is in use. The engine's token
    comes from the settings, else from $SWEEPER_ENGINE_TOKEN, else from the home, where the first
    start creates a token. Raises EngineError if another engine serves the home, the address is not
    available, a token or a limit is invalid, or a model cannot be read. Also raises EngineError if
    other machines can reach `host`, and no token is in the settings or in $SWEEPER_ENGINE_TOKEN."""
    settings.limits.check()
    settings = settings._replace(token=token_for(settings.token, host))
    # Set this before numpy is imported: numpy's threads slow down arrays of these sizes.
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    from sweeper.engine.server import run

    run(host, port, os.path.abspath(home or paths.home()), settings)


_NAMED = 5  # the warning before a stop names at most this many sweeps
_SHOWN = 10  # `status` shows at most this many sessions


_ACTIONS = {
    "start": "start an engine in the background",
    "serve": "run an engine in the foreground",
    "status": "show whether an engine is running, and its address",
    "env": "print the environment variables for using the engine",
    "stop": "stop the engine",
}
EXAMPLES = {
    "start": "sweeper engine start --model mine=models/mine",
    "serve": "sweeper engine serve --port 8000",
    "status": "sweeper engine status --all",
    "env": 'eval "$(sweeper engine env)"',
    "stop": "sweeper engine stop",
}


def parser() -> argparse.ArgumentParser:
    """Make the parser of `sweeper engine`."""
    top = argparse.ArgumentParser(
        prog="sweeper engine",
        description="Start, inspect or stop the local Tinker-compatible service.",
        epilog="example: sweeper engine status",
        add_help=False,
    )
    actions = top.add_subparsers(
        dest="action", required=True, title="actions", metavar=f"{{{','.join(_ACTIONS)}}}"
    )
    _add_help(top.add_argument_group("output"))
    for name, about in _ACTIONS.items():
        action = actions.add_parser(
            name,
            help=about,
            description=f"{about[0].upper()}{about[1:]}.",
            epilog=f"example: {EXAMPLES[name]}",
            add_help=False,
        )
        if name in ("start", "serve"):
            _add_settings(action)
        where = action.add_argument_group("where")
        where.add_argument("--home", help="default: $SWEEPER_HOME or the user's data directory")
        output = action.add_argument_group("output")
        if name == "status":
            output.add_argument(
                "--all", action="store_true", help="show all sessions, not only the last 10"
            )
        if name == "stop":
            where.add_argument(
                "--force", action="store_true", help="stop the engine even if sweeps use it"
            )
        _add_help(output)
    return top


def _add_help(group: "argparse._ArgumentGroup") -> None:  # pyright: ignore[reportPrivateUsage]
    group.add_argument("-h", "--help", action="help", help="print this help")


def _add_settings(parser: argparse.ArgumentParser) -> None:
    address = parser.add_argument_group("address")
    address.add_argument("--host", default="127.0.0.1", help="the address (default: 127.0.0.1)")
    address.add_argument("--port", type=int, default=0, help="the port (default: a free one)")
    address.add_argument("--token", help=f"the API key for clients (${TOKEN} is safer)")
    models = parser.add_argument_group("models")
    models.add_argument(
        "--model", action="append", default=[], metavar="NAME=DIR",
        help="add a base model, a directory in Hugging Face's layout",
    )  # fmt: skip
    models.add_argument(
        "--alias", action="append", default=[], metavar="NAME=MODEL",
        help="add another name for a model, such as my-org/my-model=tiny/qwen3; the hosted "
            "service's names of Qwen models already stand for tiny/qwen3",
    )  # fmt: skip
    add_limits(parser)


def _pairs(items: list[str], flag: str, parser: argparse.ArgumentParser) -> dict[str, str]:
    for item in items:
        if "=" not in item:
            parser.error(f"{flag} {item}: write NAME=VALUE")
    return dict(item.split("=", 1) for item in items)


def _start(host: str, port: int, home: str | None, settings: lifecycle.Settings) -> None:
    if (running := lifecycle.find(home)) is not None:
        raise EngineError(
            f"an engine is already running at {running.url}: `sweeper engine stop` ends it"
        )
    info = lifecycle.start(host, port, home, settings)
    print("\n".join(lifecycle.describe(info, settings.token)))


def _stop(home: str | None, users: Sequence[str], *, force: bool) -> None:
    """Stop the engine. If `users` (sweeps that use the engine) is not empty, ask for confirmation.
    Do not ask if `force` is set. Raises EngineError if there is no terminal for the question."""
    if users and not force:
        from sweeper.sweep.labels import first_of

        several = len(users) > 1
        reason = (
            f"{len(users)} sweep{'s' * several} in progress use{'s' * (not several)} the engine: "
            f"{first_of(users, _NAMED)}"
        )
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise EngineError(f"{reason}; to stop it anyway, use `sweeper engine stop --force`")
        print(
            f"{reason}. Their runs wait until an engine is running again, or restart from their "
            f"last checkpoint."
        )
        if input("Stop it? [y/N] ").strip().lower() not in ("y", "yes"):
            print("not stopped")
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
    users: Callable[[lifecycle.EngineInfo], Sequence[str]] = lambda _info: (),
) -> int:
    """Run a subcommand, and return the exit code. `users` returns the sweeps that use an engine."""
    commands = parser()
    arguments = commands.parse_args(argv)
    try:
        if arguments.action in ("serve", "start"):
            settings = lifecycle.Settings(
                _pairs(arguments.model, "--model", commands),
                _pairs(arguments.alias, "--alias", commands),
                limits_of(arguments),
                arguments.token,
            )
            where = arguments.home, settings
            if arguments.action == "serve":
                serve(arguments.host, arguments.port, *where)
            else:
                _start(arguments.host, arguments.port, *where)
            return 0
        if arguments.action == "stop":
            running = None if arguments.force else lifecycle.find(arguments.home)
            _stop(arguments.home, users(running) if running else (), force=arguments.force)
            return 0
        running = lifecycle.find(arguments.home)
        if running is None:
            nothing = "no engine is running: start one with `sweeper engine start`"
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
