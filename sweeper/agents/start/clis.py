"""The command lines of agents. They pass the model and the configuration of MCP servers to the
agent's program, which reads the prompt from standard input."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from sweeper.errors import UsageError

_TOOL_SECONDS = 330
"""The timeout for a call of a tool, in seconds. Longer than any call takes."""
_START_SECONDS = 120
"""The timeout for the start of sweeper's tools, in seconds. Longer than the start takes on a
busy machine."""
_LOCAL_TOOLS = "Read,Glob,Grep,Edit,Write,Skill,WebSearch"
"""The tools of Claude Code that are allowed without a sandbox. None of them executes commands:
`Bash` could execute commands that the user has not allowed by name."""


class Setting(NamedTuple):
    """The variable parts of an agent's command line. `bridge` is the command of the MCP server.
    `mcp` and `prompt` are the files with the MCP configuration and with the prompt. `isolated`: the
    agent is in a sandbox, so it gets all permissions."""

    model: str
    bridge: Sequence[str]
    mcp: str
    prompt: str
    isolated: bool


class Cli(NamedTuple):
    """An agent's program and its command line. `secrets` names the environment variables with the
    agent's API keys; in a sandbox, at least one must be set. `env` has more variables for the
    agent, and `passed_on` names variables that the agent inherits."""

    name: str
    argv: Callable[[Setting], list[str]]
    secrets: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    passed_on: tuple[str, ...] = ()

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the agent's variables without secrets: `env`, and `passed_on` from `environ`."""
        return {**self.env, **{name: environ[name] for name in self.passed_on if name in environ}}


def _claude(setting: Setting) -> list[str]:
    argv = ["claude", "--print", "--output-format", "stream-json", "--verbose"]
    argv += ["--model", setting.model, "--mcp-config", setting.mcp, "--strict-mcp-config"]
    if setting.isolated:
        return [*argv, "--dangerously-skip-permissions"]
    argv += ["--tools", _LOCAL_TOOLS, "--allowedTools", f"mcp__sweeper,{_LOCAL_TOOLS}"]
    return [*argv, "--permission-mode", "acceptEdits"]


def _codex(setting: Setting) -> list[str]:
    server = "mcp_servers.sweeper"
    command, *arguments = setting.bridge
    argv = ["codex", "exec", "--json", "--skip-git-repo-check", "--model", setting.model]
    for key, value in (
        ("command", command),
        ("args", arguments),
        ("required", True),  # the agent waits until the tools are available
        ("default_tools_approval_mode", "approve"),  # otherwise the agent refuses `cancel`
        ("startup_timeout_sec", _START_SECONDS),
        ("tool_timeout_sec", _TOOL_SECONDS),
    ):
        argv += ["-c", f"{server}.{key}={json.dumps(value)}"]
    if setting.isolated:
        return [*argv, "--dangerously-bypass-approvals-and-sandbox", "-"]
    # By default, the agent may also write to folders for temporary files.
    for key in ("exclude_slash_tmp", "exclude_tmpdir_env_var"):
        argv += ["-c", f"sandbox_workspace_write.{key}=true"]
    return [*argv, "--sandbox", "workspace-write", "-"]


CLIS = {
    "claude": Cli(
        "claude",
        _claude,
        ("ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN", "ANTHROPIC_AUTH_TOKEN"),
        {
            # Without this variable, the agent refuses to skip permissions as root. It is root only
            # in a container.
            "IS_SANDBOX": "1",
            # How long the agent waits for tools at its start.
            "MCP_CONNECT_TIMEOUT_MS": str(_START_SECONDS * 1000),
            "MCP_TIMEOUT": str(_START_SECONDS * 1000),
            "MCP_TOOL_TIMEOUT": str(_TOOL_SECONDS * 1000),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
        ("ANTHROPIC_BASE_URL",),
    ),
    "codex": Cli("codex", _codex, ("CODEX_API_KEY",)),
}


def find_cli(text: str) -> Cli:
    """Return the built-in agent called `text`. If there is none, return an agent that runs `text`,
    a command with the placeholders `{model}`, `{prompt}` and `{mcp}`. Raises `UsageError`."""
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
