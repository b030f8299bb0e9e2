"""The rules over the clock and the machine: they judge what a run does not record. Their advice is
in `sweeper.alarms.rules`."""

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches

from sweeper.alarms.history import Evidence, History
from sweeper.metrics.rows import are_missing, describe
from sweeper.sweep.labels import plural

_GB = 1e9
_KEYS = 6
_NOBODY = re.compile(
    r"service at \S+ is gone|connection (?:error|refused|reset|aborted|timed out)"
    r"|connect(?:ion)?error|connecttimeout|name or service not known|name resolution"
    r"|no route to host|server disconnected|apitimeouterror|error code: 50[234]\b"
    r"|\b50[234] (?:bad gateway|service (?:temporarily )?unavailable|gateway time-?out)",
    re.IGNORECASE,
)


def judge_clock(
    history: History,
    limits: Mapping[str, Mapping[str, float]],
    failed: Callable[[str, Exception], object],
) -> dict[str, Evidence]:
    """Apply the active rules over the clock. Return rule -> evidence. A rule that raises is passed
    to `failed`."""
    by_rule: dict[str, Evidence] = {}
    for name, find in CLOCK_RULES.items():
        thresholds = limits.get(name)
        try:
            evidence = None if thresholds is None else find(history, thresholds)
        except Exception as error:  # noqa: BLE001 - one rule must not silence the others
            failed(name, error)
            continue
        if evidence is not None:
            by_rule[name] = evidence
    return by_rule


def _stalled(history: History, thresholds: Mapping[str, float]) -> Evidence | None:
    """Return evidence if a run stands still, unless it waits for the service, or its worker is
    silent: other rules are about those."""
    vitals = history.vitals
    if vitals.paused is not None or vitals.beat_quiet > max(vitals.lease, 30.0):
        return None
    pace = vitals.longest if vitals.longest is not None else vitals.others
    if pace is None and vitals.is_command:
        return None  # it may record no step at all
    known, bound = "", thresholds["first"]
    if pace is not None:
        known = f"; the longest so far took {_words(pace)}"
        bound = max(thresholds["after"], thresholds["factor"] * pace)
    if vitals.quiet <= bound:
        return None
    text = f"no step for {_words(vitals.quiet)}{known}"
    return Evidence(None, history.step, vitals.quiet, bound, text)


def _paused(history: History, thresholds: Mapping[str, float]) -> Evidence | None:
    vitals = history.vitals
    if vitals.paused is None or vitals.paused_s <= thresholds["after"]:
        return None
    text = f"the service has held it back for {_words(vitals.paused_s)}: {vitals.paused}"
    return Evidence(None, history.step, vitals.paused_s, thresholds["after"], text)


def _heartbeat(history: History, thresholds: Mapping[str, float]) -> Evidence | None:
    vitals = history.vitals
    bound = max(thresholds["after"], vitals.lease)
    if vitals.beat_quiet <= bound:
        return None
    text = f"no heartbeat for {_words(vitals.beat_quiet)}"
    return Evidence(None, history.step, vitals.beat_quiet, bound, text)


def _service(history: History, _: Mapping[str, float]) -> Evidence | None:
    """Return evidence if a run has failed because a service went away, by the last line that it
    printed."""
    line = history.vitals.failed
    if line is None or not _NOBODY.search(line):
        return None
    return Evidence(None, history.step, None, None, f"it has failed: {line}")


def _metric(history: History, _: Mapping[str, float]) -> Evidence | None:
    """Return evidence if a run has succeeded without its metric, or without a value of it at the
    end."""
    wanted, series = history.vitals.metric, history.metric
    if wanted is None:
        return None
    if wanted not in history.keys:
        return Evidence(wanted, history.step, None, None, _not_recorded(wanted, history))
    if series is None or series.key != wanted:
        return None
    if not series.recorded:
        text = f"{wanted} is never a number: it was recorded as {describe(series.other)}"
        return Evidence(wanted, history.step, None, None, text)
    if are_missing(series.after, series.gap, named=series.named):
        rows = f"last {series.after} rows have" if series.after > 1 else "last row has"
        text = f"the {rows} no {wanted}: it may have become NaN, which some programs do not write"
        return Evidence(wanted, history.step, None, None, text)
    return None


def _not_recorded(wanted: str, history: History) -> str:
    """Describe what a run recorded instead of its metric."""
    recorded = sorted(history.keys - {"step"})
    lines = plural(history.malformed, "line of its metrics file", "lines of its metrics file")
    unlike = f"; {lines} cannot be read: {history.unlike}" if history.malformed else ""
    if not recorded:
        if history.vitals.lacks_folder and not history.malformed:
            unlike = ": the command has no {log_path}: sweeper cannot find its metrics"
        return f"no {wanted!r} was recorded, nor anything else{unlike}"
    near = get_close_matches(wanted, recorded, n=1)
    shown = [*near, *(key for key in recorded if key not in near)][:_KEYS]
    more = f" and {len(recorded) - len(shown)} more" if len(recorded) > len(shown) else ""
    return f"no {wanted!r} was recorded; recorded: {', '.join(shown)}{more}{unlike}"


def _disk(history: History, thresholds: Mapping[str, float]) -> Evidence | None:
    free, bound = history.vitals.disk_free, thresholds["below"] * _GB
    if free is None or free >= bound:
        return None
    text = f"{free / _GB:.2g} GB are free on the disk of {history.vitals.host or 'its machine'}"
    return Evidence("disk_free_bytes", history.step, free, bound, text)


def _memory(history: History, thresholds: Mapping[str, float]) -> Evidence | None:
    free, total = history.vitals.memory_free, history.vitals.memory_total
    if free is None or not total or free >= (bound := thresholds["below"] * total):
        return None
    text = (
        f"{free / _GB:.2g} of {total / _GB:.3g} GB of memory are free on "
        f"{history.vitals.host or 'its machine'}"
    )
    return Evidence("memory_free_bytes", history.step, free, bound, text)


def _words(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


CLOCK_RULES: dict[str, Callable[[History, Mapping[str, float]], Evidence | None]] = {
    "stalled": _stalled,
    "paused": _paused,
    "heartbeat": _heartbeat,
    "metric": _metric,
    "service": _service,
    "disk": _disk,
    "memory": _memory,
}
