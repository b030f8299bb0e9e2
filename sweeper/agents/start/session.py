"""Runs an agent in a sandbox until the agent ends or its time is over. A failed agent is
restarted. The agent's output is recorded."""

import json
import os
import selectors
import shutil
import subprocess
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from sweeper.agents import skill
from sweeper.agents.start import prompts
from sweeper.agents.start.clis import Cli, Setting
from sweeper.agents.start.connection import Connections
from sweeper.agents.start.places import Room, Sandbox
from sweeper.agents.start.transcript import Session, Transcript
from sweeper.agents.workspace import AGENT
from sweeper.common.interrupts import Interrupts
from sweeper.common.redaction import SHORTEST_NAMED, Redactor, secret_values
from sweeper.common.sweeper_argv import self_command
from sweeper.errors import EnvironmentFailure, UsageError
from sweeper.store.base import Store
from sweeper.store.documents import timestamp
from sweeper.sweep.sweep_requests import user

SKILL_FOLDERS = (".claude/skills", ".agents/skills")
"""The folders in an agent's working directory where Claude Code and Codex look for skills."""
_BRIDGE, _MCP, _PROMPT = "bridge.py", "mcp.json", "prompt.md"
_PIECE = 65_536
_POLL_SECONDS = 1.0
_CHECK_SECONDS = 120.0


class Start(NamedTuple):
    """A request to start an agent. `budget` is the value of `--budget`, `secrets` is {name:
    value}, `hours` is the time limit, and `restarts` is the largest number of restarts after
    failures."""

    name: str
    model: str
    cli: Cli
    sandbox: Sandbox
    task: str
    folder: str
    root: str
    budget: str
    secrets: Mapping[str, str]
    hours: float
    restarts: int


class Check(NamedTuple):
    """The result of a check: the agent's command line and prompt, and the output and exit code
    of the command that checked the sandbox."""

    argv: list[str]
    prompt: str
    output: str
    code: int


def secrets_of(cli: Cli, more: Sequence[str], *, required: bool) -> dict[str, str]:
    """Return {name: value} of the secrets that an agent gets from this process's environment. If
    `required` is set, the agent needs at least one of `cli.secrets`. Raises `EnvironmentFailure`
    for missing secrets, and `UsageError` for values that are too short to be masked."""
    names = [name for name in cli.secrets if os.environ.get(name)]
    if required and cli.secrets and not names:
        raise EnvironmentFailure(f"{cli.name} needs a key: export {' or '.join(cli.secrets)}")
    values: dict[str, str] = {}
    for name in (*names, *more):
        value = os.environ.get(name, "")
        if not value:
            raise EnvironmentFailure(f"--secret {name} is not set: `export {name}=...`")
        if len(value) < SHORTEST_NAMED:
            raise UsageError(
                f"--secret {name}: its value has fewer than {SHORTEST_NAMED} characters, so it "
                "cannot be masked in the transcript"
            )
        values[name] = value
    return values


def prepare(folder: str) -> list[str]:
    """Create the agent's folder, and install the skills there. Return warnings. Raises
    `UsageError`."""
    warnings: list[str] = []
    for place in SKILL_FOLDERS:
        for name in skill.SKILLS:
            path = os.path.join(folder, place, name, "SKILL.md")
            if not os.path.lexists(path):
                skill.install(name, os.path.join(folder, place))
            elif not _holds(path, skill.skill_text(name)):
                warnings.append(
                    f"{path} differs from the file of this version of sweeper, and is not replaced"
                )
    return warnings


def _holds(path: str, text: str) -> bool:
    """Return whether `path` is a regular file with this text. An agent may have put anything at
    the path."""
    if not os.path.isfile(path) or os.path.getsize(path) > len(text.encode()):
        return False
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read() == text


@contextmanager
def prepared_room(start: Start, prompt: str) -> Generator[tuple[Room, Setting]]:
    """Yield a sandbox with everything that the agent needs, and the values for the agent's command
    line. End the sandbox after the `with` block."""
    room = Room(start.sandbox, start.folder)
    connections = None
    try:
        source = os.path.join(os.path.dirname(__file__), _BRIDGE)
        shutil.copyfile(source, os.path.join(room.folder, _BRIDGE))
        bridge = [start.sandbox.python, f"{room.seen}/{_BRIDGE}"]
        # alwaysLoad: Claude Code waits until the tools are there before it asks its model.
        server = {"command": bridge[0], "args": bridge[1:], "alwaysLoad": True}
        files = {_MCP: json.dumps({"mcpServers": {"sweeper": server}}), _PROMPT: prompt}
        for name, text in files.items():
            with open(os.path.join(room.folder, name), "w", encoding="utf-8") as file:
                file.write(text)
        tools = self_command("agent", "mcp", "--root", start.root, "--grids", start.folder)
        tools += ["--budget", start.budget] if start.budget else []
        env = {**os.environ, AGENT: start.name}
        connections = Connections(room.folder, tools, env, start.folder)
        os.chmod(room.folder, 0o755 if start.sandbox.kind == "podman" else 0o700)
        mcp, prompt_path = (f"{room.seen}/{name}" for name in (_MCP, _PROMPT))
        isolated = start.sandbox.isolated
        yield room, Setting(start.model, bridge, mcp, prompt_path, isolated)
    finally:
        room.close()
        if connections is not None:
            connections.close()


def check(start: Start) -> Check:
    """Start the sandbox, and check that it has the agent's program, the skills and sweeper's
    tools. The agent is not started. Raises `EnvironmentFailure`."""
    prompt, work = _first_prompt(start), start.sandbox.work(start.folder)
    skills = [f"{work}/{place}/{name}/SKILL.md" for place in SKILL_FOLDERS for name in skill.SKILLS]
    with Interrupts(), prepared_room(start, prompt) as (room, setting):
        argv = start.cli.argv(setting)
        looking = [*setting.bridge, "--check", argv[0], setting.mcp, setting.prompt, *skills]
        process = room.start(
            looking, start.cli.environment(os.environ), start.secrets, subprocess.DEVNULL
        )
        try:
            output, _ = process.communicate(timeout=_CHECK_SECONDS)
        except subprocess.TimeoutExpired:
            raise EnvironmentFailure(
                f"the sandbox did not answer within {_CHECK_SECONDS:.0f} s: try again"
            ) from None
        return Check(argv, prompt, output.decode(errors="replace").strip(), process.returncode)


def _first_prompt(start: Start) -> str:
    work = start.sandbox.work(start.folder)
    return prompts.whole_prompt(start.task, work, start.hours, start.budget)


def run(start: Start, store: Store, notify: Callable[[Session], None]) -> Session:
    """Start an agent, wait until it ends, and return the agent's record. `notify` is called
    before each start. SIGTERM and SIGHUP stop the agent as Ctrl-C does. Sweeps that the agent
    has launched continue. Raises `SweeperError`."""
    secrets = secret_values(os.environ, list(start.secrets))
    session = Session(
        name=start.name,
        agent=start.cli.name,
        model=start.model,
        place=start.sandbox.kind,
        begun=timestamp(),
        by=user(),
        prompt=Redactor(secrets).text(start.task.strip().partition("\n")[0])[:200],
        budget=start.budget,
        folder=start.folder,
        hours=start.hours,
    )
    transcript = Transcript(store, start.name, secrets)
    transcript.create(session, _first_prompt(start))
    deadline = time.monotonic() + 3600 * start.hours
    why = ""
    try:
        with Interrupts():
            while session.state == "running":
                session = session._replace(starts=session.starts + 1)
                transcript.update(session)
                notify(session)
                code = _follow(start, session.starts, why, transcript, deadline)
                session = session._replace(code=code, state=_state(start, session.starts, code))
                why = f"the last exit code was {code}"
    except BaseException:
        _end(transcript, session._replace(state="stopped"))
        raise
    return _end(transcript, session)


def _state(start: Start, starts: int, code: int | None) -> str:
    """Return the agent's state after an exit code (None: the time is over). While restarts are
    left, the state of a failed agent is `running`."""
    if code is None:
        return "out of time"
    if code == 0:
        return "finished"
    return "failed" if starts > start.restarts else "running"


def _end(transcript: Transcript, session: Session) -> Session:
    session = session._replace(ended=timestamp())
    transcript.end_output()
    transcript.update(session)
    return session


def _follow(
    start: Start, number: int, why: str, transcript: Transcript, deadline: float
) -> int | None:
    """Start the agent once, and record its output. Return the agent's exit code, or None if the
    time is over."""
    prompt = _first_prompt(start)
    if number > 1:
        prompt = prompts.again(prompt, start.sandbox.work(start.folder), number, why)
    with prepared_room(start, prompt) as (room, setting):
        with open(os.path.join(room.folder, _PROMPT), "rb") as file:
            argv = start.cli.argv(setting)
            process = room.start(
                argv, start.cli.environment(os.environ), start.secrets, file.fileno()
            )
        try:
            return _record(process, transcript, deadline)
        finally:
            transcript.end_output()


def _record(
    process: "subprocess.Popen[bytes]", transcript: Transcript, deadline: float
) -> int | None:
    if process.stdout is None:
        raise ValueError("the agent was started without a pipe for its standard output")
    output = process.stdout.fileno()
    os.set_blocking(output, False)
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            ended = process.poll() is not None
            # A process that the agent left behind may hold the pipe open. Then only available
            # output is read.
            if selector.select(0 if ended else min(left, _POLL_SECONDS)):
                data = os.read(output, _PIECE)
                if not data:
                    selector.unregister(output)
                    return _code(process, deadline)
                transcript.add(data)
            elif ended:
                return process.returncode
            transcript.flush()
    return None


def _code(process: "subprocess.Popen[bytes]", deadline: float) -> int | None:
    """Return the exit code of an agent that has closed its output, or None if the time is over."""
    try:
        return process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None
