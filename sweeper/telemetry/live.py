"""Sends the episodes of a run to an OpenTelemetry collector while the run trains, as traces that
are labelled with sweep, run and step. `sweeper rollouts --otlp` can send the same traces later."""

import atexit
import json
import os
import time
from collections.abc import Mapping
from queue import SimpleQueue
from threading import Thread
from typing import Any

from sweeper.errors import SweeperError
from sweeper.telemetry.collector import address_of, send
from sweeper.telemetry.traces import batches, trace_of

_SECONDS = 10.0
_LAST_SECONDS = 5.0
"""Timeout for sending the remaining episodes at the end. W&B may already have used half of the
grace period."""
_MOST_WAITING = 64


def check_collector(collector: str) -> None:
    """Raise ValueError if `collector` is not a valid address."""
    try:
        address_of(collector, "otlp=")
    except SweeperError as error:
        raise ValueError(str(error)) from None


def run_labels(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of this process's run, from the variables that the worker has set."""
    sweep, name = environment.get("SWEEPER_SWEEP", ""), environment.get("SWEEPER_NAME", "")
    name = name.removeprefix(f"{sweep}/")
    attempt = environment.get("SWEEPER_ATTEMPT", "1")
    name = name.removesuffix(f" ({attempt})")
    return {"sweep": sweep, "run": name, "run_id": environment.get("SWEEPER_RUN", "")}


class Telemetry:
    """A sender of episodes with its own thread. Problems with the collector never harm the run:
    only the first problem is printed, and episodes are dropped if the collector is too slow."""

    def __init__(self, collector: str | None) -> None:
        self._url = None if collector is None else address_of(collector, "otlp=")
        self._labels = run_labels(os.environ)
        self._waiting: SimpleQueue[tuple[str, list[dict[str, Any]]] | None] = SimpleQueue()
        self._failed = False
        if self._url is not None:
            # A daemon thread, since the interpreter would wait for a pool until it has sent
            # everything.
            self._sender = Thread(target=self._work, args=(self._url,), name="otlp", daemon=True)
            self._sender.start()
            atexit.register(self._finish)

    def episodes(self, name: str, summaries: str) -> None:
        """Send the episodes in `summaries`, the content of a file of rollout summaries. The file's
        `name` becomes a label."""
        if self._url is None:
            return
        if self._waiting.qsize() >= _MOST_WAITING:
            self._tell(f"the collector at {self._url} is too slow: some episodes are not sent")
            return
        records = [json.loads(line) for line in summaries.splitlines()]
        self._waiting.put((name, records))

    def _work(self, url: str) -> None:
        while (batch := self._waiting.get()) is not None:
            self._send(url, *batch)

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
        """Wait at most `_LAST_SECONDS` for the episodes that are not sent yet."""
        self._waiting.put(None)
        self._sender.join(_LAST_SECONDS)
