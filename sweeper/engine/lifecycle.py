"""Start, find and stop the engine. Standard library only at import: the command line uses it.

An engine that serves a home holds a lock on `<home>/engine/lock` and, once it answers, has a
record in `<home>/engine/engine.json`. The record may outlive the engine: who reads it asks the
address whether the engine is there, and the same one.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sweeper import paths
from sweeper.atomic import nearest_folder, try_to_write
from sweeper.engine import access_token, hub
from sweeper.engine.access_token import TOKEN
from sweeper.engine.limits import Limits
from sweeper.errors import EngineError, EnvironmentFailure, StoreError
from sweeper.model.decoding import decode
from sweeper.model.document_reader import Part
from sweeper.model.json_values import is_table, list_of, table_of

__all__ = ["SERVICE", "TOKEN", "EngineInfo", "Settings", "check_home", "client_environment",
           "client_key", "command", "describe", "find", "hub_environment", "knock", "log_path",
           "loopback", "meter", "record_path", "start", "stop", "token_for", "wait"]  # fmt: skip

SERVICE = "sweeper-engine"
_NO_MODELS: Mapping[str, str] = {}
_ASK_SECONDS = 20.0
"""An engine on a busy machine may say nothing for seconds; where none is, that is told at once."""
_STOP_SECONDS = 60.0
_LOG_LINES = 8
_TOKEN_LENGTH = 20


class EngineInfo(NamedTuple):
    """An engine that runs: its address, process, when it started (ISO 8601), the names of models
    that it serves, and which of these are other names for others."""

    url: str
    pid: int
    started: str
    version: str
    home: str
    models: Sequence[str] = ()
    aliases: Mapping[str, str] = _NO_MODELS


def check_home(home: str | None = None) -> None:
    """See that something can be written in a home. Raises `EnvironmentFailure`."""
    folder = home or paths.home()
    try:
        try_to_write(nearest_folder(folder))
    except OSError as error:
        raise EnvironmentFailure(
            f"cannot write to {folder}: {error.strerror}; set SWEEPER_HOME to a folder that can be "
            "written"
        ) from error


def record_path(home: str | None = None) -> str:
    """Where a running engine is recorded."""
    return os.path.join(paths.engine(home), "engine.json")


def log_path(home: str | None = None) -> str:
    """Where an engine logs what it does."""
    return os.path.join(paths.engine(home), "engine.log")


class Settings(NamedTuple):
    """What an engine is told besides where to live.

    `models` gives directories in Hugging Face's layout to names, beside the built-in
    `tiny/qwen3`; `aliases` gives other names to models; `token` is asked of every client.
    """

    models: Mapping[str, str] = _NO_MODELS
    aliases: Mapping[str, str] = _NO_MODELS
    limits: Limits = Limits()
    token: str | None = None


def command(home: str | None = None, port: int = 0, settings: Settings = Settings()) -> list[str]:  # noqa: B008 -- a tuple
    """The argv that serves a home in the foreground, with this interpreter.

    The token is not among it, since others can read it there: it goes by $SWEEPER_ENGINE_TOKEN.
    """
    argv = [sys.executable, "-P", "-m", "sweeper.engine", "serve", "--port", str(port)]
    for flag, names in (("--model", settings.models), ("--alias", settings.aliases)):
        argv += [part for name, value in names.items() for part in (flag, f"{name}={value}")]
    argv += settings.limits.arguments()
    return [*argv, "--home", os.path.abspath(home)] if home else argv


def hub_environment(
    home: str | None = None, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Variables with which `transformers` finds the tokenizers of the engine's models by name,
    and looks for nothing on the network, where those names are other models.

    What a program in `environ` would find in its own hub cache is found too (`hub.view`). `HF_HOME`
    is left alone, and so are the user's token and the data sets that were loaded before.
    """
    root = home or paths.home()
    try:
        cache = hub.view(paths.hub(root), hub.user_cache(environ), paths.views(root))
    except OSError as error:
        raise EngineError(f"cannot make the cache of tokenizers in {root}: {error}") from error
    return {"HF_HUB_CACHE": cache, "HF_HUB_OFFLINE": "1"}


def client_key(home: str | None = None) -> str:
    """What clients on this machine give as their API key: the token of the home's engine, or what
    the SDK wants to see where none is asked for."""
    return access_token.read(home) or os.environ.get(TOKEN) or "tml-local"


def client_environment(info: EngineInfo, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables with which a program in `environ` reaches the engine, and finds the tokenizers of
    its models. Raises EngineError."""
    address = {"TINKER_BASE_URL": info.url, "TINKER_API_KEY": client_key(info.home)}
    return address | hub_environment(info.home, environ)


def loopback(host: str) -> bool:
    import ipaddress  # loads slowly, and most verbs start no engine

    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def token_for(given: str | None, host: str) -> str | None:
    """The token of an engine at `host`: the one given, else $SWEEPER_ENGINE_TOKEN, else None, which
    is the home's own. Raises `EngineError` where that would not do."""
    token = given or os.environ.get(TOKEN) or None
    if token is None and not loopback(host):
        raise EngineError(
            f"the engine listens beyond loopback ({host}) only with a token: set ${TOKEN}"
        )
    # the SDK refuses keys of another form
    if token is not None and not (token.startswith("tml-") and len(token) >= _TOKEN_LENGTH):
        raise EngineError(
            f"the token must begin with tml- and have {_TOKEN_LENGTH} characters or more"
        )
    return token


def _ask(
    url: str, timeout: float, name: str = "healthz", token: str | None = None
) -> dict[str, object] | None:
    """What the engine says; None if nobody answers, or something else does."""
    import http.client  # a plan needs none of these, and they load slowly
    from urllib.parse import urlsplit

    # http.client, because urllib would go through a proxy that the environment names
    try:
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)
    except ValueError:
        return None  # no address
    try:
        connection.request("GET", f"/api/v1/{name}", headers={"X-API-Key": token or ""})
        answer = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    return answer if is_table(answer) else None


def find(home: str | None = None, timeout: float = _ASK_SECONDS) -> EngineInfo | None:
    """The engine that serves a home; None if none does, whatever is recorded, or does not answer
    within `timeout` seconds."""
    import secrets

    path = os.path.abspath(home or paths.home())
    try:
        with open(record_path(path), "rb") as file:
            record = Part(decode(file.read()), file.name)
        info = EngineInfo(
            url=record.text("url"),
            pid=record.integer_or("pid", 0),
            started=record.text("started"),
            version=record.text("version"),
            home=path,
            models=record.texts_or("models", []),
            aliases=record.texts_by_key("aliases"),
        )
    except (OSError, ValueError, StoreError):
        return None  # none, or a damaged one: the engine writes it again when it starts
    challenge, token = secrets.token_hex(16), access_token.read(path)
    answer = _ask(info.url, timeout, f"healthz?challenge={challenge}") or {}
    expected = {"service": SERVICE, "pid": info.pid, "started": info.started}
    if record.document.get("proves"):
        expected["proof"] = access_token.proof(token or "", challenge)
    same = os.path.realpath(str(answer.get("home"))) == os.path.realpath(path)
    return info if same and expected.items() <= answer.items() else None


def knock(url: str, timeout: float = _ASK_SECONDS) -> str | None:
    """When the engine at `url`, of whatever home, was started; None if none answers."""
    answer = _ask(url, timeout) or {}
    return str(answer.get("started")) if answer.get("service") == SERVICE else None


def meter(info: EngineInfo, token: str | None = None) -> dict[str, object] | None:
    """What each session has used (`meter.Meter.report`); None if it does not say.

    The token is the home's if none is given.
    """
    answer = _ask(info.url, _ASK_SECONDS, "meter", token or client_key(info.home))
    return answer if answer is not None and "sessions" in answer else None


def _counted(line: Mapping[str, object]) -> str:
    shown = {
        "trained": line["trained_tokens"],
        "sampled": line["sampled_tokens"],
        "prompts": line["prompt_tokens"],
        "forward": line["forward_tokens"],
    }
    text = ", ".join(f"{name} {count:,}" for name, count in shown.items() if count)
    extra = [f"{line[name]:,} {name}" for name in ("paused", "refused", "failed") if line[name]]
    return ", ".join([f"tokens: {text or 'none'}", f"{line['steps']:,} steps", *extra])


def describe(info: EngineInfo, token: str | None = None, most: float = 10) -> list[str]:
    """Lines for a terminal: where the engine is, and what its last sessions have used, `most` of
    them at most."""
    lines = [f"{info.url}, pid {info.pid}, since {info.started}"]
    report = meter(info, token)
    if report is None:
        return lines
    sessions = [table_of(line) for line in list_of(report["sessions"])]
    running = sum(line["ended"] is None for line in sessions)
    total = _counted(table_of(report["total"]))
    lines.append(f"{running} of {len(sessions)} sessions open; {total}")
    for line in sessions[: int(min(most, len(sessions)))]:
        tags = " ".join(map(str, list_of(line["tags"])))
        named = line["display_name"] or tags or line["session_id"]
        lines.append(f"  {named} ({'ended' if line['ended'] else 'open'}): {_counted(line)}")
    if len(sessions) > most:
        lines.append(f"  and {len(sessions) - int(most):,} older ones: `--all` lists them")
    return lines


def _last_words(home: str | None) -> str:
    with contextlib.suppress(OSError), open(log_path(home), encoding="utf-8") as file:
        lines = [line.strip() for line in file.readlines()[-_LOG_LINES:]]
        if lines:
            return f"; {log_path(home)} ends with: " + " | ".join(lines)
    return f"; it wrote no {log_path(home)}"


def wait(home: str | None = None, timeout: float = 30.0) -> EngineInfo:
    """Wait until an engine serves the home. EngineError, with the end of its log, if none does."""
    deadline = time.monotonic() + timeout
    while True:
        if (info := find(home)) is not None:
            return info
        if time.monotonic() > deadline:
            raise EngineError(f"no engine within {timeout:.0f} s{_last_words(home)}")
        time.sleep(0.05)


def start(
    host: str = "127.0.0.1",
    port: int = 0,
    home: str | None = None,
    settings: Settings = Settings(),  # noqa: B008 -- a tuple
    timeout: float = 60.0,
) -> EngineInfo:
    """Start an engine that outlives this process, and wait until it answers.

    It runs `serve`. EngineError, with the end of the engine's log, if it does not start.
    """
    settings.limits.check()  # here too, where it can be told
    check_home(home)
    token = token_for(settings.token, host)
    environ = {**os.environ, TOKEN: token} if token else None
    null = subprocess.DEVNULL  # it keeps a log of its own
    process = subprocess.Popen(
        [*command(home, port, settings), "--host", host],
        stdin=null, stdout=null, stderr=null, env=environ, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        info = find(home)
        if info is not None and info.pid == process.pid:
            return info
        if ended:
            raise EngineError(f"the engine did not start{_last_words(home)}")
        time.sleep(0.05)
    process.terminate()
    raise EngineError(f"no engine within {timeout:.0f} s{_last_words(home)}")


def stop(home: str | None = None) -> bool:
    """Stop the engine that serves a home; False if there is none.

    Only a process that answers as this home's engine, with the recorded pid, is signalled.
    EngineError if it is not gone in time, or is another user's.
    """
    info = find(home)
    if info is None:
        return False
    try:
        os.kill(info.pid, signal.SIGTERM)
    except ProcessLookupError:
        return True
    except PermissionError:
        raise EngineError(f"the engine (pid {info.pid}) is another user's") from None
    deadline = time.monotonic() + _STOP_SECONDS
    while time.monotonic() < deadline:
        if not os.path.exists(record_path(home)) and _ask(info.url, 1.0) is None:
            return True
        time.sleep(0.05)
    raise EngineError(
        f"the engine (pid {info.pid}) has not stopped in {_STOP_SECONDS:.0f} s{_last_words(home)}"
    )
