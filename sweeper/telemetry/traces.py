"""Rollouts as traces: each trajectory is a trace, and each of its turns a step with labels. A trace
can become rows for JSON Lines, or OpenTelemetry spans with the standard attribute names for
generative AI. Does no I/O."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from sweeper.common.json_values import is_list, list_of, table_of
from sweeper.metrics.rows import as_float

_BATCH = 400
_CUT = "stop/max_tokens"
_QUESTION_KEYS = ("question", "prompt", "problem")
_ANSWER_KEYS = ("response", "completion")
_TOKENS = ("prompt_tokens", "sampled_tokens", "logprobs")


class Trace(NamedTuple):
    """A trajectory: its identity (`key`), its turns (`steps`), and its end in Unix seconds. `about`
    has its run, task and outcome. `tokens` has the tokens of each turn, if they were captured."""

    key: tuple[str, ...]
    about: Mapping[str, object]
    steps: tuple[Mapping[str, object], ...]
    ended: float
    tokens: tuple[Mapping[str, object], ...]


def trace_of(record: Mapping[str, object], about: Mapping[str, object], now: float) -> Trace:
    """Return the trace of a rollout summary. `about` has the labels of the run. Without recorded
    times, the trace ends at `now`, and each turn takes one second."""
    trajectory = table_of(record.get("trajectory_metrics"))
    place = {
        "iteration": record.get("iteration"),
        "group": record.get("group_idx"),
        "trajectory": record.get("traj_idx"),
    }
    tags = record.get("tags")
    turns = [table_of(step) for step in list_of(record.get("steps"))]
    logs = [table_of(turn.get("logs")) for turn in turns]
    item = next((str(log["item"]) for log in logs if log.get("item")), None)
    listed = [str(tag) for tag in list_of(tags)]
    episode = {
        **about,
        **place,
        "task": item or (listed[-1] if listed else None),
        "reward": as_float(record.get("total_reward")),
        "solved": None if (solved := as_float(trajectory.get("solved"))) is None else solved >= 0.5,
        "turns": len(turns),
        "seconds": as_float(trajectory.get("seconds")),
        "environment_failures": as_float(trajectory.get("environment_failures")),
    }
    steps = tuple(_step(number, turn, trajectory, len(turns)) for number, turn in enumerate(turns))
    key = tuple(str(value) for value in (*about.values(), *place.values()))
    ended = as_float(trajectory.get("ended_at"))
    tokens = tuple({name: turn[name] for name in _TOKENS if name in turn} for turn in turns)
    return Trace(key, episode, steps, now if ended is None else ended, tokens)


def _step(
    number: int, turn: Mapping[str, object], words: Mapping[str, object], count: int
) -> dict[str, object]:
    logs, metrics = table_of(turn.get("logs")), table_of(turn.get("metrics"))
    labels = ["first"] * (number == 0) + ["last"] * (number == count - 1)
    labels += ["cut_off"] * (_CUT in metrics) + ["unreadable"] * ("parse_error" in metrics)
    if number == count - 1:
        stops = sorted({*metrics, *words})
        labels += [
            f"stop:{stop[5:]}" for stop in stops if stop.startswith("stop/") and stop != _CUT
        ]
        if (solved := as_float(words.get("solved"))) is not None:
            labels.append("solved" if solved >= 0.5 else "unsolved")
    return {
        "step": number,
        "labels": labels,
        "asked": _first(logs, _QUESTION_KEYS),
        "said": _first(logs, _ANSWER_KEYS),
        "output": _first(logs, ("output",)),
        "tokens_read": as_float(turn.get("ob_len")),
        "tokens_written": as_float(turn.get("ac_len")),
        "step_reward": as_float(turn.get("reward")),
        "step_seconds": as_float(metrics.get("seconds")),
    }


def rows(trace: Trace) -> Iterator[dict[str, object]]:
    """Yield a row per turn. Each row also has the run, task and outcome of the trajectory."""
    for step, tokens in zip(trace.steps, trace.tokens, strict=True):
        yield {"schema": 1, "trace": _hash(trace.key)[:32], **trace.about, **step, **tokens}


def spans(trace: Trace) -> list[dict[str, object]]:
    """Return the trace as OTLP spans: the episode, and below it a span per turn."""
    lengths = [as_float(step["step_seconds"]) for step in trace.steps]
    whole = as_float(trace.about["seconds"]) or float(len(trace.steps))
    timed = sum(length or 0.0 for length in lengths)
    rest = max(whole - timed, 0.0) / max(sum(length is None for length in lengths), 1)
    begun = trace.ended - max(whole, timed)
    root = _hash(trace.key)[:16]
    about = {f"sweeper.{key}": value for key, value in trace.about.items()}
    name = f"episode {trace.about['task'] or ''}".strip()
    episode = [_span(trace, root, "", name, _Stretch(begun, trace.ended), about)]
    at = begun
    for step, length in zip(trace.steps, lengths, strict=True):
        until = at + (rest if length is None else length)
        step_about = {f"sweeper.{key}": value for key, value in step.items()}
        step_about |= {"gen_ai.operation.name": "chat"}
        step_about |= {"gen_ai.usage.input_tokens": _whole(as_float(step["tokens_read"]))}
        step_about |= {"gen_ai.usage.output_tokens": _whole(as_float(step["tokens_written"]))}
        inner = _hash((*trace.key, str(step["step"])))[:16]
        name = f"turn {step['step']}"
        episode.append(_span(trace, inner, root, name, _Stretch(at, until), step_about))
        at = until
    return episode


class _Stretch(NamedTuple):
    begun: float
    ended: float


def _span(
    trace: Trace,
    span_id: str,
    parent: str,
    name: str,
    took: _Stretch,
    about: Mapping[str, object],
) -> dict[str, object]:
    return {
        "traceId": _hash(trace.key)[:32],
        "spanId": span_id,
        **({"parentSpanId": parent} if parent else {}),
        "name": name,
        "kind": 1,
        "startTimeUnixNano": str(int(took.begun * 1e9)),
        "endTimeUnixNano": str(int(took.ended * 1e9)),
        "attributes": [
            {"key": key, "value": _value(value)}
            for key, value in about.items()
            if value is not None
        ],
        "status": {},
    }


def batches(traces: Sequence[Trace]) -> Iterator[dict[str, object]]:
    """Yield the bodies of requests to a collector (`/v1/traces`). Each trace is in one body."""
    batch: list[dict[str, object]] = []
    for trace in traces:
        more = spans(trace)
        if batch and len(batch) + len(more) > _BATCH:
            yield _body(batch)
            batch = []
        batch += more
    if batch:
        yield _body(batch)


def _body(spans_of_trace: list[dict[str, object]]) -> dict[str, object]:
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "sweeper"}}]}
    scope = {"scope": {"name": "sweeper.rollouts"}, "spans": spans_of_trace}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}


def _value(value: object) -> dict[str, object]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if is_list(value):
        values = [_value(item) for item in value]
        return {"arrayValue": {"values": values}}
    return {"stringValue": str(value)}


def _hash(key: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(key).encode("utf-8", "replace")).hexdigest()


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _first(logs: Mapping[str, object], names: Sequence[str]) -> str | None:
    texts = (logs.get(name) for name in names)
    return next((text for text in texts if isinstance(text, str)), None)
