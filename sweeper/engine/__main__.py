"""`sweeper engine start|serve|status|stop`, also as `python -P -m sweeper.engine`."""

import argparse
import sys

from sweeper.engine import lifecycle
from sweeper.engine.lifecycle import TOKEN
from sweeper.engine.limits import add_limits, limits_of
from sweeper.errors import EngineError, SweeperError


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sweeper engine", description="the local Tinker-compatible service"
    )
    actions = parser.add_subparsers(dest="action", required=True)
    for action in (
        _with_settings(actions.add_parser("start", help="start one, which stays")),
        _with_settings(actions.add_parser("serve", help="serve in the foreground")),
        actions.add_parser("status", help="say whether one runs, and where"),
        actions.add_parser("stop", help="stop it"),
    ):
        action.add_argument("--home", help="default: $SWEEPER_HOME or the user's data directory")
    return parser


def _with_settings(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
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
    return parser


def _pairs(given: list[str], flag: str, parser: argparse.ArgumentParser) -> dict[str, str]:
    for item in given:
        if "=" not in item:
            parser.error(f"{flag} {item}: write NAME=VALUE")
    return dict(item.split("=", 1) for item in given)


def _start(host: str, port: int, home: str | None, settings: lifecycle.Settings) -> None:
    if (found := lifecycle.find(home)) is not None:
        raise EngineError(f"one runs already, at {found.url}: `sweeper engine stop` ends it")
    info = lifecycle.start(host, port, home, settings)
    print("\n".join(lifecycle.describe(info, settings.token)))


def main(argv: list[str] | None = None) -> int:
    """Run the verb; the exit code."""
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
                lifecycle.serve(arguments.host, arguments.port, *where)
            else:
                _start(arguments.host, arguments.port, *where)
            return 0
        if arguments.action == "stop":
            print("stopped" if lifecycle.stop(arguments.home) else "no engine is running")
            return 0
        found = lifecycle.find(arguments.home)
        if found is None:
            print("no engine is running: `sweeper engine start` starts one")
            return 5
        print("\n".join(lifecycle.describe(found)))
    except SweeperError as error:
        print(f"sweeper: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
