"""`sweeper rollouts --export` and `--otlp`: exports the chosen trajectories as traces."""

import json
import os
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence

from sweeper.errors import EnvironmentFailure, UsageError
from sweeper.results.rollouts import Found
from sweeper.results.runs import RecordedRun
from sweeper.results.traces import Trace, batches, rows, trace_of
from sweeper.sweep.labels import plural
from sweeper.terminal import say

_SECONDS = 30.0


def export(
    rollouts: Sequence[tuple[RecordedRun, Found]], path: str | None, collector: str | None
) -> None:
    """Write a line of JSON per step to a file ("-": standard output), or send spans to a
    collector. Raises `UsageError` for an invalid path or address, `EnvironmentFailure` if the
    collector does not accept them."""
    now = time.time()
    traces = [
        trace_of(
            one.record,
            {"sweep": run.sweep, "run": run.name, "run_id": run.id, "name": one.file.name},
            now,
        )
        for run, one in rollouts
    ]
    steps = plural(sum(len(trace.steps) for trace in traces), "step")
    count = f"{steps} of {plural(len(traces), 'trajectory', 'trajectories')}"
    if path is not None:
        _write(path, traces)
        if path != "-":
            say(f"{count}: {path}")
    if collector is not None:
        url = _address(collector)
        for body in batches(traces):
            _send(url, body)
        print(f"{count}: {url}", file=sys.stderr)


def _write(path: str, traces: Sequence[Trace]) -> None:
    lines = (json.dumps(row) + "\n" for trace in traces for row in rows(trace))
    if path == "-":
        sys.stdout.writelines(lines)
        return
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(lines)
    except OSError as error:
        raise UsageError(f"--export {path}: {error.strerror}") from None


def _address(collector: str) -> str:
    """Return the collector's address; without a path, add OTLP's path for traces."""
    parts = urllib.parse.urlsplit(collector)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(f"--otlp {collector}: say http://HOST:4318")
    return collector if parts.path.strip("/") else collector.rstrip("/") + "/v1/traces"


def _send(url: str, body: Mapping[str, object]) -> None:
    headers = {"Content-Type": "application/json", "User-Agent": "sweeper", **_headers()}
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers)  # noqa: S310 - http, as was seen before
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310
            answer.read()
    except urllib.error.HTTPError as error:
        error.close()
        raise EnvironmentFailure(f"the collector at {url} answered {error.code}") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", None) or error
        raise EnvironmentFailure(f"no collector answers at {url} ({why})") from None


def _headers() -> dict[str, str]:
    """Return the headers in $OTEL_EXPORTER_OTLP_HEADERS, `k=v,k=v`, as OpenTelemetry's own
    exporters do."""
    given = os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", "")
    pairs = (part.partition("=") for part in given.split(",") if "=" in part)
    return {key.strip(): urllib.parse.unquote(value.strip()) for key, _, value in pairs}
