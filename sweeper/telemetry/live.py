"""Sends the episodes of a run to an OpenTelemetry collector while it trains, as `sweeper rollouts
--otlp` does later: with the same traces, labelled with sweep, run and step."""

import atexit
import json
import os
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import Any

from sweeper.errors import SweeperError
from sweeper.telemetry.collector import address_of, send
from sweeper.telemetry.traces import batches, trace_of

_SECONDS = 10.0
_MOST_WAITING = 64


def check_collector(collector: str) -> None:
    """Raise ValueError if that is no address."""
    try:
        address_of(collector, "otlp=")
    except SweeperError as error:
        raise ValueError(str(error)) from None


def run_labels(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the sweep and the run that this process is of, from the worker's variables."""
    sweep, name = environment.get("SWEEPER_SWEEP", ""), environment.get("SWEEPER_NAME", "")
    name = name.removeprefix(f"{sweep}/")
    attempt = environment.get("SWEEPER_ATTEMPT", "1")
    name = name.removesuffix(f" ({attempt})")
    return {"sweep": sweep, "run": name, "run_id": environment.get("SWEEPER_RUN", "")}


class Telemetry:
    """A sender in a thread of its own. What a collector does never harms the run: a failure is
    printed once, and episodes that it is too slow for are not sent."""

    def __init__(self, collector: str | None) -> None:
        self._url = None if collector is None else address_of(collector, "otlp=")
        self._labels = run_labels(os.environ)
        self._waiting: list[Future[None]] = []
        self._failed = False
        if self._url is not None:
            self._pool = ThreadPoolExecutor(1, "otlp")
            atexit.register(self._finish)

    def episodes(self, name: str, summaries: str) -> None:
        """Send the episodes of rollout summaries, whose file has this name."""
        if self._url is None:
            return
        self._waiting = [one for one in self._waiting if not one.done()]
        if len(self._waiting) >= _MOST_WAITING:
            self._tell(f"the collector at {self._url} is too slow: some episodes are not sent")
            return
        records = [json.loads(line) for line in summaries.splitlines()]
        self._waiting.append(self._pool.submit(self._send, self._url, name, records))

    def _send(self, url: str, name: str, records: list[dict[str, Any]]) -> None:
        now, labels = time.time(), {**self._labels, "name": name}
        try:
            for body in batches([trace_of(record, labels, now) for record in records]):
                send(url, body, _SECONDS)
        except SweeperError as error:
            self._tell(str(error))

    def _tell(self, why: str) -> None:
        if not self._failed:
            print(f"otlp: {why}", flush=True)
        self._failed = True

    def _finish(self) -> None:
        """Wait a little for what is not sent yet."""
        wait_for(self._waiting, _SECONDS)
        self._pool.shutdown(wait=False, cancel_futures=True)
