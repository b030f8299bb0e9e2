"""`sweeper agent mcp`: lets coding agents plan, launch, watch and judge sweeps, over the Model
Context Protocol."""

import os
import secrets
import sys
from argparse import ArgumentParser, Namespace

from sweeper import paths
from sweeper.agents.allowance import read_limits
from sweeper.commands import arguments as shared
from sweeper.errors import EnvironmentFailure, UsageError
from sweeper.paths import add_extra
from sweeper.store.opening import default_root
from sweeper.terminal import warn

_TOKEN = "SWEEPER_MCP_TOKEN"  # noqa: S105 - the name of a variable
_SHORTEST = 16


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper agent mcp`."""
    allowed = shared.group(verb, "what agents may do")
    allowed.add_argument(
        "--grids", default=".", help="the folder with the grids that agents may launch (.)"
    )
    allowed.add_argument(
        "--budget",
        metavar="KEY=VALUE,...",
        help="all that agents may ever launch in this root: runs, tokens, usd, hours, as "
        "runs=50,usd=20 (without: nothing)",
    )
    shared.group(verb, "how to serve").add_argument(
        "--http",
        type=int,
        metavar="PORT",
        help="serve on 127.0.0.1 instead of stdin and stdout; 0: any port",
    )
    shared.root(verb)


def run(arguments: Namespace) -> int:
    """Serve until the client closes the connection, or for ever over HTTP."""
    limits = read_limits(arguments.budget)
    if not os.path.isdir(arguments.grids):
        raise UsageError(f"--grids {arguments.grids}: is no folder")
    try:
        from sweeper.agents.server import serve_http, serve_stdio, token_of
    except ModuleNotFoundError as error:
        raise EnvironmentFailure(
            f"the MCP SDK is missing ({error.name}): `{add_extra('mcp')}`"
        ) from error
    from sweeper.agents.workspace import Workspace

    workspace = Workspace(
        arguments.root or default_root(), os.path.realpath(arguments.grids), limits
    )
    if arguments.http is None:
        if sys.stdin is not None and sys.stdin.isatty():  # pyright: ignore[reportUnnecessaryComparison]
            warn("speaks MCP on stdin and stdout: a client starts it (docs/agents.md), or --http 0")
        serve_stdio(workspace)
        return 0
    token, place = os.environ.get(_TOKEN, ""), f"${_TOKEN}"
    if not token:
        token, place = token_of(paths.home(), lambda: secrets.token_urlsafe(32))
    if len(token) < _SHORTEST:
        raise UsageError(f"{place}: has less than {_SHORTEST} characters")

    def ready(port: int) -> None:
        warn(f"http://127.0.0.1:{port}/mcp; the token (Authorization: Bearer) is in {place}")

    serve_http(workspace, arguments.http, token, ready)
    return 0
