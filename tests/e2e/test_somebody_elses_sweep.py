"""Unless the user agrees, no verb and no tool of agents executes anything that another user's sweep
names, or sends a secret.

The sweep was recorded from another home. Wherever its documents can name a command, a program, a
file, an address or a variable, they name a canary: a command that creates a file, a loopback port
that counts connections, variables that hold secrets. The verbs come from the program's own table,
with each of their flags: a new verb or flag is tested without an entry here.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from sweeper.agents import allowance
from sweeper.agents.allowance import read_limits
from sweeper.agents.server import every_tool, make_server
from sweeper.agents.workspace import Workspace
from sweeper.commands import PARENTS, VERBS, load
from sweeper.launcher import launching
from sweeper.store.documents import encode
from sweeper.store.local import LocalStore
from sweeper.sweep import messages
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.notify import Message

pytestmark = pytest.mark.e2e

NAME = "theirs"
SECRETS = {
    "TINKER_API_KEY": "tml-canary-0123456789",
    "AWS_SECRET_ACCESS_KEY": "canary-of-aws-0123456789",
    "WANDB_API_KEY": "canary-of-wandb-0123456789",
}
GRID = """\
name: theirs
command: ['true', '{x}', '{log_path}']
service: none
grid: {x: [1, 2, 3]}
metric: {name: loss, goal: minimize, at: last}
launch: {backend: local}
"""
SECONDS = 20.0
"""Seconds that a verb may take. Verbs that follow or serve are then ended."""
ENDLESS = {"logs": {"--follow"}, "status": {"--follow"}, "watch": {"", "--plain", "--until-ended"}}
"""Verbs that never end with these flags. They get two seconds."""
OTHERS = {"--trust", "--help"}
"""Flags that are not tried: `--trust` is the consent."""
WORDS = {
    "grid": ["grid.yaml"],
    "query": ["select * from runs"],
    "run": [f"{NAME}/x=1"],
    "target": [NAME],
    "jobs": ["2"],
    "name": ["mine"],
    "folder": ["."],
    "recipe": ["sft"],
    "overrides": [],
    "text": [],
    "runs": [],
    "sweep": [NAME],
    "sweeps": [NAME],
}
"""The values of positional arguments, by name. Others get the sweep's name."""
MORE = {
    "export": ["--out", "out.csv", "--format", "csv"],
    "doctor": ["--grid", "grid.yaml", "--backend", "local"],
    "engine": ["status"],
    "agent start": ["--model", "m", "--prompt", "gsm8k", "--agent", "cat", "--in", "local"],
    "compare": [f"{NAME}/x=1", f"{NAME}/x=3"],
}


class Canaries:
    """A folder that shows what was executed, and a port that records connections."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.heard: list[bytes] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                with connection:
                    connection.settimeout(1.0)
                    heard = b""
                    with suppress(OSError):  # greet like a mail server that wants a login
                        connection.sendall(b"220 canary\r\n")
                        heard = connection.recv(65_536)
                    self.heard.append(heard)

    def close(self) -> None:
        self._server.close()

    def touch(self, name: str) -> list[str]:
        """Return a command that leaves a trace when it is executed."""
        return ["touch", str(self.folder / name)]

    def program(self, name: str) -> str:
        """Return a program that leaves a trace when it is executed."""
        path = self.folder.with_name(f"{self.folder.name}-{name}")
        path.write_text(f"#!/bin/sh\ntouch {self.folder / name}\nexec false\n")
        path.chmod(0o755)
        return str(path)

    def touched(self) -> list[object]:
        """Return what was executed, and what was sent."""
        return [*sorted(os.listdir(self.folder)), *self.heard]


@pytest.fixture
def canaries(tmp_path: Path) -> Iterator[Canaries]:
    made = Canaries(tmp_path / "canaries")
    yield made
    made.close()


@pytest.fixture
def template(tmp_path: Path, canaries: Canaries, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the user's grid and a store with the other user's sweep."""
    top = tmp_path / "template"
    top.mkdir()
    (top / "grid.yaml").write_text(GRID)
    with monkeypatch.context() as there:
        there.setenv("SWEEPER_HOME", str(tmp_path / "their-home"))
        there.setattr(launching, "_drive", lambda *_: None)
        launching.launch(str(top / "grid.yaml"), str(top / "root"))
    _attack(top / "root" / NAME, canaries, tmp_path)
    return top


def _attack(folder: Path, canaries: Canaries, tmp_path: Path) -> None:
    """Put a canary wherever a document of the sweep can name something."""
    checkout = tmp_path / "checkout"
    subprocess.run(["git", "init", "-q", str(checkout)], check=True)
    (checkout / "a").write_text("a")
    hook = canaries.program("fsmonitor")
    subprocess.run(["git", "-C", str(checkout), "config", "core.fsmonitor", hook], check=True)
    http = f"http://{canaries.address}"
    plan = json.loads((folder / "sweep.json").read_text())
    plan["recipe"] |= {
        "command": canaries.touch("recipe"),
        "python": canaries.program("python"),
        "cwd": str(checkout),
    }
    plan["launch"] |= {
        "retries": 3,
        "env": {
            "TINKER_BASE_URL": http,
            "WANDB_BASE_URL": http,
            "BASH_ENV": canaries.program("bash-env"),
            "OTEL_EXPORTER_OTLP_ENDPOINT": http,
        },
    }
    plan["secrets"] = list(SECRETS)
    plan["notify"] = {
        "on": ["end", "alarm", "budget"],
        "command": canaries.touch("notify"),
        "webhook": f"{http}/hook",
        "slack": "$A_SLACK",
        "email": {
            "to": ["a@b"],
            "sender": "a@b",
            "server": canaries.address,
            "user": "u",
            "password": "$AWS_SECRET_ACCESS_KEY",
            "tls": "none",
        },
    }
    plan["on_alarm"] = {"run": canaries.touch("alarm")}
    plan["wandb"] = {"project": "p", "entity": "e", "app": http}
    plan["budget"] = {"usd": 1e-9, "tokens": 1}
    (folder / "sweep.json").write_text(json.dumps(plan))
    store = LocalStore(str(folder.parent))
    sweep = SweepFolder(store, NAME)
    env_file = tmp_path / "their-environment.json"
    env_file.write_text(json.dumps({**os.environ, "TINKER_BASE_URL": http}))
    service = {"schema": 1, "env_file": str(env_file), "engine": http, "home": str(tmp_path / "h")}
    store.replace(sweep.service, encode(service))
    body = {"schema": 1, "time": "2026-11-21T01:02:04Z"}
    for run, state in zip(plan["runs"], ("succeeded", "failed", "running"), strict=True):
        events = ["intent", "submitted", "claimed", *([state] if state != "running" else [])]
        for event in events:
            store.replace(f"{sweep.state}/{run['id']}/1.{event}.json", encode(body))
        store.replace(f"{sweep.attempt(run['id'], 1)}/stdout.log", b"a line\n")
        records = {"metrics.jsonl": '{"step": 1, "loss": NaN, "test/nll": 1.0}\n'}
        records["checkpoints.jsonl"] = (
            json.dumps({"name": "final", "final": True, "sampler_path": f"{http}/weights"}) + "\n"
        )
        records["config.json"] = json.dumps({"model_name": "m", "base_url": http})
        for name, text in records.items():
            store.replace(f"{sweep.log_path(run['id'], 1)}/{name}", text.encode())
        alarm = {**body, "rule": "nan", "message": "loss is NaN", "advice": "", "actions": ["run"]}
        store.replace(sweep.alarm(run["id"], 1, "nan"), encode(alarm))
    for kind in ("end", "alarm", "budget"):
        messages.put(sweep, Message(f"{kind}-1", kind, "text", "2026-11-21T01:02:04Z"))
    allowance.reserve(
        SweepFolder(store, NAME), [run["id"] for run in plan["runs"]], {}
    )  # as an agent does


def _arguments(verb: str) -> list[list[str]]:
    """Return the command lines of a verb to try: without a flag, and with each flag."""
    if verb == "engine":  # it parses its own command line
        return [[verb, *MORE[verb]]]
    parser = argparse.ArgumentParser()
    load(verb).add_arguments(parser)
    words: list[str] = []
    flags = [""]
    for action in parser._actions:
        if not action.option_strings:
            words += WORDS.get(action.dest, [NAME])
        elif action.nargs == 0 and not OTHERS & set(action.option_strings):
            flags.append(action.option_strings[-1])
    line = [*verb.split(), *words, *MORE.get(verb, [])]
    return [[*line, *filter(None, [flag])] for flag in flags]


def _environment(tmp_path: Path, folder: Path, canaries: Canaries) -> dict[str, str]:
    secrets = {**SECRETS, "A_SLACK": f"http://{canaries.address}/slack"}
    place = {"SWEEPER_HOME": str(folder / "home"), "SWEEPER_ROOT": str(folder / "root")}
    # The user's service, which does not answer: port 9 of this machine.
    nothing = "http://127.0.0.1:9"
    return {**os.environ, **secrets, **place, "TINKER_BASE_URL": nothing, "HF_ENDPOINT": nothing}


def _run(line: list[str], folder: Path, environment: dict[str, str]) -> tuple[int | None, str]:
    """Run a verb as a user would, without a terminal. Return its exit code (None if it was
    ended) and its output."""
    endless = ENDLESS.get(line[0], set()) & {line[-1], "" if line[-1] == NAME else line[-1]}
    output = folder / "printed"
    with output.open("wb") as printed:
        process = subprocess.Popen(
            [sys.executable, "-m", "sweeper", *line],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(2.0 if endless else SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return code, output.read_text(errors="replace")


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in PARENTS])
def test_no_verb_executes_it_or_gives_it_a_secret(
    verb: str, template: Path, canaries: Canaries, tmp_path: Path
) -> None:
    def attempt(number: int, line: list[str]) -> str:
        folder = tmp_path / f"try-{number}"
        shutil.copytree(template, folder)
        code, printed = _run(line, folder, _environment(tmp_path, folder, canaries))
        assert "Traceback" not in printed and "a bug in sweeper" not in printed, (line, printed)
        assert not [secret for secret in SECRETS.values() if secret in printed], line
        return f"{' '.join(line)}: {code}: {printed[-300:]}"

    with ThreadPoolExecutor(2) as pool:
        lines = _arguments(verb)
        printed = list(pool.map(attempt, range(len(lines)), lines))
    assert canaries.touched() == [], "\n".join(printed)


def test_the_canaries_sing_once_the_user_agrees(
    template: Path, canaries: Canaries, tmp_path: Path
) -> None:
    environment = _environment(tmp_path, template, canaries)
    code, printed = _run(["doctor", "notify", NAME], template, environment)
    assert code == 2 and "add --trust" in printed.splitlines()[-1]
    assert canaries.touched() == []
    _run(["doctor", "notify", NAME, "--test", "--trust"], template, environment)
    assert "notify" in canaries.touched()
    assert any(b"POST /hook" in heard for heard in canaries.heard)


GIVEN: dict[str, object] = {
    "sweep": NAME,
    "run": f"{NAME}/x=1",
    "session": f"{NAME}/x=1",
    "grid": "grid.yaml",
    "a": f"{NAME}/x=1",
    "b": f"{NAME}/x=3",
    "better": f"{NAME}/x=1",
    "worse": f"{NAME}/x=3",
    "target": NAME,
    "claim": "it is better",
    "name": "mine",
    "checkpoint": "final",
    "prompts": ["hello"],
    "settings": {"no_such_setting": 1},
    "seconds": 0.0,
    "busy_seconds": 0.0,
    "place": "hub",
}
"""The arguments of tools, by name. Others keep their defaults. No session is started, since it
would belong to the user."""


def test_no_tool_of_agents_executes_it_or_gives_it_a_secret(
    template: Path, canaries: Canaries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in _environment(tmp_path, template, canaries).items():
        monkeypatch.setenv(name, value)
    workspace = Workspace(str(template / "root"), str(template), read_limits("runs=100,tokens=1e9"))
    server = make_server(workspace)

    async def drive() -> list[Any]:
        async with Client(server) as client:
            listed = (await client.list_tools()).tools
            assert {tool.name for tool in listed} == {f.__name__ for f in every_tool(workspace)}
            answers: list[Any] = []
            for tool in listed:
                takes = tool.input_schema["properties"]
                given = {key: value for key, value in GIVEN.items() if key in takes}
                assert given.keys() >= set(tool.input_schema.get("required", ())), tool.name
                answers.append(await client.call_tool(tool.name, given))
            return answers

    answers = asyncio.run(drive())
    text = "\n".join(str(answer) for answer in answers)
    assert "add --trust" in text  # a launch and a retry ask for consent
    assert not [secret for secret in SECRETS.values() if secret in text]
    assert canaries.touched() == []
