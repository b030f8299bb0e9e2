"""`sweeper agent mcp` serves coding agents over the Model Context Protocol. `sweeper agent
skill` prints or installs skills for agents."""

import os
import secrets
import sys
from argparse import ArgumentParser, Namespace

from sweeper import paths
from sweeper.agents.allowance import read_limits
from sweeper.agents.skill import SKILLS, agents_text, install, skill_text
from sweeper.commands import Verb
from sweeper.commands import arguments as shared
from sweeper.errors import EnvironmentFailure, UsageError
from sweeper.paths import add_extra
from sweeper.store.opening import default_root
from sweeper.terminal import say, warn

_TOKEN = "SWEEPER_MCP_TOKEN"  # noqa: S105 - the name of a variable
_SHORTEST = 16


def _add_mcp(verb: ArgumentParser) -> None:
    allowed = shared.group(verb, "what agents may do")
    allowed.add_argument(
        "--grids",
        default=".",
        help="the folder with the grids that agents may launch (default: the current folder)",
    )
    allowed.add_argument(
        "--budget",
        metavar="KEY=VALUE,...",
        help="limits on all that agents launch in this store, such as runs=50,usd=20; keys: runs, "
        "tokens, usd and hours (default: agents may launch nothing)",
    )
    shared.group(verb, "how to serve").add_argument(
        "--http",
        type=int,
        metavar="PORT",
        help="serve on this port of 127.0.0.1 instead of stdin and stdout; 0: any free port",
    )
    shared.root(verb)


def _mcp(arguments: Namespace) -> int:
    """Serve until the client closes the connection or, over HTTP, until a signal."""
    limits = read_limits(arguments.budget)
    if not os.path.isdir(arguments.grids):
        raise UsageError(f"--grids {arguments.grids} is not a folder")
    try:
        from sweeper.agents.server import serve_http, serve_stdio, token_of
    except ModuleNotFoundError as error:
        raise EnvironmentFailure(
            f"the MCP SDK is not installed (no module {error.name}): run `{add_extra('mcp')}`"
        ) from error
    from sweeper.agents.workspace import Workspace

    workspace = Workspace(
        arguments.root or default_root(), os.path.realpath(arguments.grids), limits
    )
    if arguments.http is None:
        if sys.stdin is not None and sys.stdin.isatty():  # pyright: ignore[reportUnnecessaryComparison]
            warn("serving MCP on stdin and stdout (docs/agents.md); --http serves on a port")
        serve_stdio(workspace)
        return 0
    token, place = os.environ.get(_TOKEN, ""), f"${_TOKEN}"
    if not token:
        token, place = token_of(paths.home(), lambda: secrets.token_urlsafe(32))
    if len(token) < _SHORTEST:
        raise UsageError(f"{place}: the token has fewer than {_SHORTEST} characters")

    def ready(port: int) -> None:
        warn(
            f"serving MCP at http://127.0.0.1:{port}/mcp; clients send the bearer token in {place}"
        )

    serve_http(workspace, arguments.http, token, ready)
    return 0


def _add_skill(verb: ArgumentParser) -> None:
    where = shared.group(verb, "where to install")
    where.add_argument(
        "name",
        nargs="?",
        choices=[name.partition("-")[2] for name in SKILLS],
        help="the skill (default: research; with --install all skills)",
    )
    where.add_argument(
        "--install",
        metavar="DIR",
        help="install below this folder, such as .claude/skills (default: print)",
    )
    shared.flag(where, "--force", "overwrite a different file")
    output = shared.group(verb, shared.OUTPUT)
    shared.flag(output, "--agents-md", "print AGENTS.md of sweeper's repository, not a skill")


def _skill(arguments: Namespace) -> int:
    """Print a skill, or install skills below the folder of `--install`."""
    if arguments.agents_md and arguments.install is not None:
        raise UsageError("--agents-md prints a file and --install installs skills: give only one")
    if arguments.install is None:
        name = f"sweeper-{arguments.name or 'research'}"
        sys.stdout.write(agents_text() if arguments.agents_md else skill_text(name))
        return 0
    for name in [f"sweeper-{arguments.name}"] if arguments.name else list(SKILLS):
        path, new = install(name, arguments.install, force=arguments.force)
        say(f"wrote {path}" if new else f"{path} exists already")
    return 0


VERBS = {"agent mcp": Verb(_add_mcp, _mcp), "agent skill": Verb(_add_skill, _skill)}
