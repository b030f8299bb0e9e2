"""The command lines of agents: how each gets the model, the prompt (on standard input) and the
configuration of MCP servers, and which secrets it needs."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from sweeper.errors import UsageError

_TOOL_SECONDS = 330
"""Longer than any call of a tool takes."""


class Setting(NamedTuple):
    """What a command line is made of. `bridge` is the command of the MCP server, `mcp` and `prompt`
    are files. `isolated`: the agent may do anything within its sandbox."""

    model: str
    bridge: Sequence[str]
    mcp: str
    prompt: str
    isolated: bool


class Cli(NamedTuple):
    """An agent's command line. It needs one of the `secrets`, if there are any."""

    name: str
    argv: Callable[[Setting], list[str]]
    secrets: tuple[str, ...] = ()
    env: Mapping[str, str] = {}


def _claude(setting: Setting) -> list[str]:
    argv = ["claude", "--print", "--output-format", "stream-json", "--verbose"]
    argv += ["--model", setting.model, "--mcp-config", setting.mcp, "--strict-mcp-config"]
    if setting.isolated:
        return [*argv, "--dangerously-skip-permissions"]
    allowed = "mcp__sweeper,Read,Glob,Grep,Skill"
    return [*argv, "--permission-mode", "acceptEdits", "--allowedTools", allowed]


def _codex(setting: Setting) -> list[str]:
    server = "mcp_servers.sweeper"
    command, *arguments = setting.bridge
    argv = ["codex", "exec", "--json", "--skip-git-repo-check", "--model", setting.model]
    for key, value in (
        ("command", command),
        ("args", arguments),
        ("tool_timeout_sec", _TOOL_SECONDS),
    ):
        argv += ["-c", f"{server}.{key}={json.dumps(value)}"]
    if setting.isolated:
        return [*argv, "--dangerously-bypass-approvals-and-sandbox", "-"]
    return [*argv, "--sandbox", "workspace-write", "-"]


CLIS = {
    "claude": Cli(
        "claude",
        _claude,
        ("ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN"),
        # IS_SANDBOX lets it skip permissions as root, which only happens in a container.
        {"IS_SANDBOX": "1", "MCP_TOOL_TIMEOUT": str(_TOOL_SECONDS * 1000)},
    ),
    "codex": Cli("codex", _codex, ("CODEX_API_KEY",)),
}


def find_cli(text: str) -> Cli:
    """Return a known command line, or that of a command with `{model}`, `{prompt}` and `{mcp}`.
    Raises `UsageError`."""
    if text in CLIS:
        return CLIS[text]
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--agent {text}: {error}") from error
    if not words:
        raise UsageError(f"--agent is empty: write {', '.join(CLIS)} or a command")

    def argv(setting: Setting) -> list[str]:
        values = {"{model}": setting.model, "{prompt}": setting.prompt, "{mcp}": setting.mcp}
        return [_filled(word, values) for word in words]

    return Cli(words[0], argv)


def _filled(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word
