"""`sweeper agent start` starts a coding agent in a sandbox. `sweeper agent prompts` prints task
prompts, and `sweeper agent transcript` prints what agents did."""

import os
import secrets
import sys
import time
from argparse import ArgumentParser, Namespace

from sweeper.agents import allowance
from sweeper.agents.start import prompts, session
from sweeper.agents.start.clis import CLIS, find_cli
from sweeper.agents.start.places import PLACES, Sandbox
from sweeper.agents.start.transcript import (
    Session,
    read_output,
    read_prompt,
    read_session,
    read_sessions,
)
from sweeper.commands import Verb
from sweeper.commands import arguments as shared
from sweeper.errors import EnvironmentFailure, UsageError
from sweeper.paths import add_extra
from sweeper.store.base import Store
from sweeper.store.opening import default_root, open_store
from sweeper.sweep.hint import hint
from sweeper.sweep.names import is_sweep_name, shorten
from sweeper.terminal import print_table, say, warn

_EXIT_CODES = {"finished": 0, "failed": 3, "out of time": 4, "stopped": 130}
_LONGEST_NAME = 60


def _add_start(verb: ArgumentParser) -> None:
    agent = shared.group(verb, "the agent")
    agent.add_argument(
        "--model",
        required=True,
        help="the model that the agent uses: a name that the agent's program knows",
    )
    agent.add_argument(
        "--prompt",
        required=True,
        metavar="FILE",
        help="the task: a file, or a name that `agent prompts` lists",
    )
    agent.add_argument(
        "--agent",
        default="claude",
        metavar="COMMAND",
        help=f"{', '.join(CLIS)}, or a command (default: claude). A command gets the prompt on "
        "standard input, and {model}, {prompt} and {mcp} are replaced in it",
    )
    agent.add_argument(
        "--name", help="the agent's name in the store (default: the prompt's name and the time)"
    )
    agent.add_argument(
        "--grids", metavar="DIR", help="the agent's folder (default: agents/NAME, made if missing)"
    )
    place = shared.group(verb, "the sandbox")
    place.add_argument(
        "--in",
        dest="place",
        choices=PLACES,
        default=PLACES[0],
        help="the kind of sandbox (default: podman)",
    )
    place.add_argument(
        "--image",
        help="the container image; for podman, this may also be a folder with a Linux file system",
    )
    place.add_argument(
        "--network", help="the network of podman, such as none or host (default: podman's default)"
    )
    place.add_argument("--memory", type=int, metavar="MIB", help="memory limit of a container")
    _add_allowance(verb)
    output = shared.group(verb, shared.OUTPUT)
    shared.flag(output, "--test-only", "prepare and check everything, but start no agent")
    shared.root(verb)


def _add_allowance(verb: ArgumentParser) -> None:
    allowed = shared.group(verb, "what the agent may use")
    allowed.add_argument(
        "--budget",
        default="",
        metavar="KEY=VALUE,...",
        help="limits on all that agents launch in this store, as for `agent mcp` (default: agents "
        "may launch nothing)",
    )
    allowed.add_argument(
        "--hours", type=float, default=8.0, help="the agent ends after this many hours (default: 8)"
    )
    allowed.add_argument(
        "--restarts",
        type=int,
        default=2,
        help="how many times the agent is started again after failures (default: 2)",
    )
    allowed.add_argument(
        "--secret",
        action="append",
        default=[],
        metavar="NAME",
        help="also pass this environment variable to the agent; its value is masked in the "
        "transcript",
    )


def _request(arguments: Namespace, store: Store) -> session.Start:
    """Convert the arguments to a `Start`, the request to start an agent. Raises `UsageError`,
    `EnvironmentFailure`."""
    allowance.read_limits(arguments.budget)
    if not 0 < arguments.hours <= 10_000 or arguments.restarts < 0:
        raise UsageError("--hours must be above 0, and --restarts 0 or more")
    cli = find_cli(arguments.agent)
    task = prompts.task_of(arguments.prompt)
    name = arguments.name
    if name is None:
        stem = os.path.splitext(os.path.basename(arguments.prompt))[0]
        name = f"{shorten(stem, _LONGEST_NAME)}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
    if not is_sweep_name(name):
        raise UsageError(f"--name {name}: use letters, digits, '.', '_' and '-'")
    place = (arguments.place, arguments.image, arguments.network, arguments.memory)
    sandbox = Sandbox(*place, arguments.hours, secrets.token_hex(6))
    sandbox.require()
    values = session.secrets_of(cli, arguments.secret, required=sandbox.isolated)
    folder = os.path.realpath(arguments.grids or os.path.join("agents", name))
    return session.Start(
        name,
        arguments.model,
        cli,
        sandbox,
        task,
        folder,
        store.root,
        arguments.budget,
        values,
        arguments.hours,
        arguments.restarts,
    )


def _start(arguments: Namespace) -> int:
    """Start an agent and wait until it ends, or only check the sandbox (`--test-only`)."""
    from importlib.util import find_spec

    if find_spec("mcp") is None:
        raise EnvironmentFailure(f"the MCP SDK is not installed: run `{add_extra('mcp')}`")
    store = open_store(arguments.root or default_root())
    start = _request(arguments, store)
    for line in session.prepare(start.folder):
        warn(line)
    if not start.budget:
        warn("no --budget: the agent may launch nothing")
    if arguments.test_only:
        return _check(start)

    def notify(now: Session) -> None:
        again = "" if now.starts == 1 else f" (start {now.starts})"
        warn(f"{now.name}: {now.agent} works in {start.folder}{again}")

    done = session.run(start, store, notify)
    code = f" (exit code {done.code})" if done.code else ""
    sweeps = ", ".join(_sweeps(store, done.name)) or "none"
    say(f"{done.name}: {done.state}{code}; sweeps: {sweeps}")
    say(f"transcript: `{hint('agent transcript', done.name, root=store.root)}`")
    return _EXIT_CODES[done.state]


def _check(start: session.Start) -> int:
    """Print how the agent would be started (command, folder, prompt, ...), and the result of a
    check in the sandbox."""
    checked = session.check(start)
    image = f", image {start.sandbox.image}" if start.sandbox.image else ""
    for title, text in (
        ("place", f"{start.sandbox.kind}{image}"),
        ("folder", f"{start.folder}, seen as {start.sandbox.work(start.folder)}"),
        ("command", " ".join(checked.argv)),
        ("secrets", ", ".join(start.secrets) or "none"),
        ("budget", start.budget or "nothing"),
        ("time", f"{start.hours:g} h, {start.restarts} restarts"),
        ("prompt", f"{len(checked.prompt):,} characters: {start.task.strip().splitlines()[0]}"),
        ("check", checked.output.splitlines()[-1] if checked.output else "no output"),
    ):
        say(f"{title:<9}{text}")
    if checked.code:
        raise EnvironmentFailure("the check in the sandbox failed: see the printed line `check`")
    return 0


def _sweeps(store: Store, agent: str) -> list[str]:
    """Return the names of the sweeps that an agent has launched."""
    launched = (entry.sweep for entry in allowance.entries(store) if entry.agent == agent)
    return list(dict.fromkeys(launched))


def _add_prompts(verb: ArgumentParser) -> None:
    output = shared.group(verb, shared.OUTPUT)
    output.add_argument("prompt", nargs="?", help="print this prompt (default: list them)")


def _prompts(arguments: Namespace) -> int:
    """List the task prompts, or print one prompt."""
    if arguments.prompt is not None:
        sys.stdout.write(prompts.shipped_prompt(arguments.prompt))
        return 0
    titles = {
        name: prompts.shipped_prompt(name).partition("\n")[0] for name in prompts.prompt_names()
    }
    rows = [(name, title.removeprefix("# Task: ")) for name, title in titles.items()]
    print_table(("prompt", "task"), rows)
    return 0


def _add_transcript(verb: ArgumentParser) -> None:
    output = shared.group(verb, shared.OUTPUT)
    output.add_argument("agent", nargs="?", help="an agent's name (default: list them)")
    shared.flag(output, "--prompt", "print the prompt that the agent got")
    shared.root(verb)


def _transcript(arguments: Namespace) -> int:
    """List the agents of a root, or print what one agent did."""
    store = open_store(arguments.root or default_root())
    if arguments.agent is None:
        rows = [
            (entry.name, entry.state, entry.agent, entry.model, entry.place, entry.begun,
             entry.starts, " ".join(_sweeps(store, entry.name)))
            for entry in read_sessions(store)
        ]  # fmt: skip
        columns = ("agent", "state", "program", "model", "in", "begun", "starts", "sweeps")
        print_table(columns, rows)
        return 0
    if not is_sweep_name(arguments.agent):
        raise UsageError(f"no agent is named {arguments.agent}")
    read_session(store, arguments.agent)
    if arguments.prompt:
        text = read_prompt(store, arguments.agent)
    else:
        text = b"".join(read_output(store, arguments.agent)).decode(errors="replace")
    for line in text.splitlines():
        say(line)
    return 0


VERBS = {
    "agent start": Verb(_add_start, _start),
    "agent prompts": Verb(_add_prompts, _prompts),
    "agent transcript": Verb(_add_transcript, _transcript),
}
