"""Starts, finds and stops the engine that serves a home. The engine holds `<home>/engine/lock` and
writes its address to `engine.json`; readers send a request to this address to check that the engine
still runs. Uses only the standard library."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Annotated, NamedTuple

from sweeper import paths
from sweeper.common import codec
from sweeper.common.atomic import nearest_folder, try_to_write
from sweeper.common.codec import Default, Unstored
from sweeper.common.daemon import outlive
from sweeper.common.json_values import decode, is_table, list_of, table_of
from sweeper.engine import access_token, hub
from sweeper.engine.access_token import TOKEN
from sweeper.engine.limits import Limits
from sweeper.errors import EngineError, EnvironmentFailure, StoreError

SERVICE = "sweeper-engine"
_NO_MODELS: Mapping[str, str] = {}
_ASK_SECONDS = 20.0
"""Timeout of a request to the engine. On a busy machine, an engine may take seconds to answer. If
no engine listens, the request fails at once."""
_STOP_SECONDS = 60.0
_LOG_LINES = 8
_TOKEN_LENGTH = 20


class EngineInfo(NamedTuple):
    """A running engine. `started` is in ISO 8601. `models` are all model names, including the
    aliases; `aliases` maps each alias to its model."""

    url: str
    pid: Annotated[int, Default(0)]
    started: str
    version: str
    home: Annotated[Unstored[str], Default("")]
    models: tuple[str, ...] = ()
    aliases: Mapping[str, str] = _NO_MODELS


def check_home(home: str | None = None) -> None:
    """Raise `EnvironmentFailure` if a home is not writable."""
    folder = home or paths.home()
    try:
        try_to_write(nearest_folder(folder))
    except OSError as error:
        raise EnvironmentFailure(
            f"cannot write to {folder}: {error.strerror}; set SWEEPER_HOME to a writable folder"
        ) from error


def record_path(home: str | None = None) -> str:
    """Return the path of the file with the address of the running engine."""
    return os.path.join(paths.engine(home), "engine.json")


def log_path(home: str | None = None) -> str:
    """Return the path of the engine's log."""
    return os.path.join(paths.engine(home), "engine.log")


class Settings(NamedTuple):
    """The models, aliases, limits and token of an engine.

    `models` maps the names of additional models to directories in Hugging Face's layout. `aliases`
    maps additional names to models. Every client must send `token`; None means the token that is
    stored in the home.
    """

    models: Mapping[str, str] = _NO_MODELS
    aliases: Mapping[str, str] = _NO_MODELS
    limits: Limits = Limits()
    token: str | None = None


def command(home: str | None = None, port: int = 0, settings: Settings = Settings()) -> list[str]:  # noqa: B008 -- a tuple
    """Return the argv that runs a home's engine in the foreground, with this Python interpreter.

    The argv does not contain the token, because other users can read an argv. Pass the token in
    $SWEEPER_ENGINE_TOKEN.
    """
    argv = [sys.executable, "-P", "-m", "sweeper.engine", "serve", "--port", str(port)]
    for flag, names in (("--model", settings.models), ("--alias", settings.aliases)):
        argv += [part for name, value in names.items() for part in (flag, f"{name}={value}")]
    argv += settings.limits.arguments()
    return [*argv, "--home", os.path.abspath(home)] if home else argv


def hub_environment(
    home: str | None = None, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return environment variables with which `transformers` finds the tokenizers of the engine's
    models by name.

    The variables also disable downloads, because the Hugging Face hub has other models with the
    same names. Models in the user's hub cache (`hub.user_cache(environ)`) stay available. `HF_HOME`
    is unchanged, so programs still find the user's token and datasets. Raises EngineError if the
    cache of tokenizers cannot be made.
    """
    root = home or paths.home()
    try:
        cache = hub.view(paths.hub(root), hub.user_cache(environ), paths.views(root))
    except OSError as error:
        raise EngineError(f"cannot make the cache of tokenizers in {root}: {error}") from error
    return {"HF_HUB_CACHE": cache, "HF_HUB_OFFLINE": "1"}


def client_key(home: str | None = None) -> str:
    """Return the API key for clients on this machine: the token of the home's engine, else
    $SWEEPER_ENGINE_TOKEN, else a placeholder, because the SDK requires a key."""
    return access_token.read(home) or os.environ.get(TOKEN) or "tml-local"


def client_environment(info: EngineInfo) -> dict[str, str]:
    """Return the environment variables that a client of the engine needs: address, API key and
    cache of tokenizers. Raises EngineError if that cache cannot be made."""
    address = {"TINKER_BASE_URL": info.url, "TINKER_API_KEY": client_key(info.home)}
    return address | hub_environment(info.home, os.environ)


def loopback(host: str) -> bool:
    import ipaddress  # import late: slow, and most commands start no engine

    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def token_for(setting: str | None, host: str) -> str | None:
    """Return `setting`, else the token in $SWEEPER_ENGINE_TOKEN, else None (the engine then uses
    its home's token). Raises `EngineError` if the token has an invalid form, or if it is None and
    other machines can reach `host`."""
    token = setting or os.environ.get(TOKEN) or None
    if token is None and not loopback(host):
        raise EngineError(
            f"an engine that other machines can reach ({host}) needs a token: set ${TOKEN}"
        )
    # The SDK rejects keys of any other form.
    if token is not None and not (token.startswith("tml-") and len(token) >= _TOKEN_LENGTH):
        raise EngineError(
            f"the token must begin with tml- and have {_TOKEN_LENGTH} characters or more"
        )
    return token


def _ask(
    url: str, timeout: float, name: str = "healthz", token: str | None = None
) -> dict[str, object] | None:
    """Return the engine's JSON response to `GET /api/v1/{name}`; None if no engine answers."""
    import http.client  # import late: slow, and planning does not need these
    from urllib.parse import urlsplit

    # Do not use `urllib.request`, which would use a proxy from the environment.
    try:
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)
    except ValueError:
        return None  # not a valid address
    try:
        connection.request("GET", f"/api/v1/{name}", headers={"X-API-Key": token or ""})
        answer = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    return answer if is_table(answer) else None


def find(home: str | None = None, timeout: float = _ASK_SECONDS) -> EngineInfo | None:
    """Return the engine that serves a home. None if no engine is recorded, or if the recorded
    engine does not prove its identity within `timeout` seconds."""
    import secrets

    path = os.path.abspath(home or paths.home())
    try:
        with open(record_path(path), "rb") as file:
            record: object = decode(file.read())
        info = codec.read(EngineInfo, record, file.name)._replace(home=path)
    except (OSError, ValueError, StoreError):
        return None  # missing or damaged; the engine's next start writes it again
    challenge, token = secrets.token_hex(16), access_token.read(path)
    answer = _ask(info.url, timeout, f"healthz?challenge={challenge}") or {}
    expected = {"service": SERVICE, "pid": info.pid, "started": info.started}
    if table_of(record).get("proves"):
        expected["proof"] = access_token.proof(token or "", challenge)
    same = os.path.realpath(str(answer.get("home"))) == os.path.realpath(path)
    return info if same and expected.items() <= answer.items() else None


def knock(url: str, timeout: float = _ASK_SECONDS) -> str | None:
    """Return the start time of the engine at `url`; None if no engine answers."""
    answer = _ask(url, timeout) or {}
    return str(answer.get("started")) if answer.get("service") == SERVICE else None


def meter(info: EngineInfo, token: str | None = None) -> dict[str, object] | None:
    """Return the usage of each session (`meter.Meter.report`). None if the engine does not answer
    or rejects the token. If `token` is None, use the key from `client_key`."""
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
    """Return lines for a terminal: the engine's address, its total usage, and the usage of its
    newest sessions. `most` is the maximum number of sessions."""
    lines = [f"{info.url}, pid {info.pid}, since {info.started}"]
    report = meter(info, token)
    if report is None:
        return lines
    sessions = [table_of(line) for line in list_of(report["sessions"])]
    running = sum(line["ended"] is None for line in sessions)
    total = _counted(table_of(report["total"]))
    lines.append(f"{running} of {len(sessions)} sessions open; {total}")
    for line in sessions[: int(min(most, len(sessions)))]:
        tags = " ".join(sorted(map(str, list_of(line["tags"]))))  # the SDK sends a set
        named = line["display_name"] or tags or line["session_id"]
        lines.append(f"  {named} ({'ended' if line['ended'] else 'open'}): {_counted(line)}")
    if len(sessions) > most:
        lines.append(f"  and {len(sessions) - int(most):,} older sessions: `--all` lists them")
    return lines


def _log_end(home: str | None) -> str:
    with contextlib.suppress(OSError), open(log_path(home), encoding="utf-8") as file:
        lines = [line.strip() for line in file.readlines()[-_LOG_LINES:]]
        if lines:
            return f"; its log {log_path(home)} ends with: " + " | ".join(lines)
    return f"; it wrote no log to {log_path(home)}"


def wait(home: str | None = None, timeout: float = 30.0) -> EngineInfo:
    """Wait until an engine serves the home. After `timeout` seconds, raise an EngineError with the
    end of the engine's log."""
    deadline = time.monotonic() + timeout
    while True:
        if (info := find(home)) is not None:
            return info
        if time.monotonic() > deadline:
            raise EngineError(f"no engine answered within {timeout:.0f} s{_log_end(home)}")
        time.sleep(0.05)


def start(
    host: str = "127.0.0.1",
    port: int = 0,
    home: str | None = None,
    settings: Settings = Settings(),  # noqa: B008 -- a tuple
    timeout: float = 60.0,
) -> EngineInfo:
    """Start an engine that outlives this process, and wait until it answers.

    Raises EngineError, with the end of the engine's log, if the engine does not start.
    """
    settings.limits.check()  # check here, where the error can be shown
    check_home(home)
    token = token_for(settings.token, host)
    environ = {**os.environ, TOKEN: token} if token else None
    null = subprocess.DEVNULL  # the engine writes its own log
    process = subprocess.Popen(
        [*command(home, port, settings), "--host", host],
        stdin=null, stdout=null, stderr=null, env=environ, start_new_session=True,
    )  # fmt: skip
    outlive(process)
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        info = find(home)
        if info is not None and info.pid == process.pid:
            return info
        if ended:
            raise EngineError(f"the engine did not start{_log_end(home)}")
        time.sleep(0.05)
    process.terminate()
    raise EngineError(f"no engine answered within {timeout:.0f} s{_log_end(home)}")


def stop(home: str | None = None) -> bool:
    """Stop the engine that serves a home. Return False if no engine serves the home. Raises
    EngineError if the engine does not stop in time, or belongs to another user."""
    info = find(home)
    if info is None:
        return False
    try:
        os.kill(info.pid, signal.SIGTERM)
    except ProcessLookupError:
        return True
    except PermissionError:
        raise EngineError(f"the engine (pid {info.pid}) belongs to another user") from None
    deadline = time.monotonic() + _STOP_SECONDS
    while time.monotonic() < deadline:
        if not os.path.exists(record_path(home)) and _ask(info.url, 1.0) is None:
            return True
        time.sleep(0.05)
    raise EngineError(
        f"the engine (pid {info.pid}) has not stopped in {_STOP_SECONDS:.0f} s{_log_end(home)}"
    )
