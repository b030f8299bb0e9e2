"""Sends traces to an OpenTelemetry collector: OTLP over HTTP, in JSON."""

import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping

from sweeper.errors import EnvironmentFailure, UsageError

_SECONDS = 30.0


def address_of(collector: str, setting: str = "--otlp ") -> str:
    """Return the collector's URL. OTLP's path for traces is added to a URL without a path. Raises
    `UsageError` for an invalid URL, with a message that begins with `setting`."""
    if "@" in collector:
        raise UsageError(
            f"{setting.strip()} takes no user or password: set $OTEL_EXPORTER_OTLP_HEADERS"
        )
    try:
        parts = urllib.parse.urlsplit(collector)
    except ValueError:
        parts = urllib.parse.urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(f"{setting}{collector}: write http://HOST:4318")
    return collector if parts.path.strip("/") else collector.rstrip("/") + "/v1/traces"


def send(url: str, body: Mapping[str, object], seconds: float = _SECONDS) -> None:
    """Send `body` to the collector. Raises `EnvironmentFailure` if the collector does not accept
    it."""
    headers = {"Content-Type": "application/json", "User-Agent": "sweeper", **_headers()}
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers)  # noqa: S310 - `address_of` checks the URL
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:  # noqa: S310
            answer.read()
    except urllib.error.HTTPError as error:
        error.close()
        raise EnvironmentFailure(
            f"the collector at {url} answered with status {error.code}"
        ) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", None) or error
        raise EnvironmentFailure(f"no collector answers at {url} ({why})") from None


def _headers() -> dict[str, str]:
    text = os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", "")
    pairs = (part.partition("=") for part in text.split(",") if "=" in part)
    return {key.strip(): urllib.parse.unquote(value.strip()) for key, _, value in pairs}
