"""`python -P -m sweeper.engine serve|status|stop`."""

import argparse
import sys

from sweeper.engine import lifecycle
from sweeper.errors import SweeperError


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sweeper.engine", description="the local Tinker-compatible service"
    )
    actions = parser.add_subparsers(dest="action", required=True)
    serve = actions.add_parser("serve", help="serve in the foreground")
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--port", type=int, default=0, help="0 (the default) is a free one")
    serve.add_argument(
        "--model", action="append", default=[], metavar="NAME=DIR",
        help="another base model, in Hugging Face's layout",
    )  # fmt: skip
    for action in (
        serve,
        actions.add_parser("status", help="say whether one runs, and where"),
        actions.add_parser("stop", help="stop it"),
    ):
        action.add_argument("--home", help="default: $SWEEPER_HOME or the user's data directory")
    return parser


def _models(given: list[str], parser: argparse.ArgumentParser) -> dict[str, str]:
    for item in given:
        if "=" not in item:
            parser.error(f"--model {item}: write NAME=DIR")
    return dict(item.split("=", 1) for item in given)


def main(argv: list[str] | None = None) -> int:
    """Run the verb; the exit code."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        if arguments.action == "serve":
            models = _models(arguments.model, parser)
            lifecycle.serve(arguments.host, arguments.port, arguments.home, models)
            return 0
        if arguments.action == "stop":
            print("stopped" if lifecycle.stop(arguments.home) else "no engine is running")
            return 0
        found = lifecycle.find(arguments.home)
        if found is None:
            print("no engine is running")
            return 5
        print(f"{found.url}, pid {found.pid}, since {found.started}")
    except SweeperError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
