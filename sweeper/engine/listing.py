"""The listings for a RestClient: sessions (and a search), training runs, checkpoints, usage."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from sweeper.common.json_values import table_of
from sweeper.engine import exports, operations
from sweeper.engine.checkpoints import KINDS, Entry, Place, parse
from sweeper.engine.errors import RequestError, Unknown
from sweeper.engine.meter import HOURS, Billed
from sweeper.engine.service import Body, Service
from sweeper.engine.state import RunSummary, Session

OWNER = "local"
"""The name of the only owner and of the only project on the engine."""

CHECKPOINT = "training_runs/{run}/checkpoints/{checkpoint:path}"
"""The route of a checkpoint, below `/api/v1/`."""

T = TypeVar("T")
Params = Mapping[str, str]


def time_of(seconds: float) -> str:
    """Format Unix seconds in the protocol's format for times, ISO 8601."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _page(items: Sequence[T], query: Params) -> tuple[list[T], Body]:
    try:
        offset, limit = int(query.get("offset", 0)), int(query.get("limit", 20))
    except ValueError:
        raise RequestError("offset and limit must be whole numbers") from None
    cursor = {"offset": offset, "limit": limit, "total_count": len(items)}
    return list(items[offset : offset + limit]), cursor


def _checkpoint(entry: Entry) -> Body:
    place, document = entry
    return {
        "checkpoint_id": f"{place.kind}/{place.name}",
        "checkpoint_type": KINDS[place.kind],
        "time": time_of(document.created),
        "tinker_path": str(place),
        "size_bytes": document.size,
        "public": document.public,
        "user_metadata": document.user_metadata,
        "expires_at": None if document.expires is None else time_of(document.expires),
    }


def _training_run(service: Service, name: str) -> Body:
    held = {run.id: run for run in service.registry.runs()}.get(name)
    entries = service.vault.entries(name)
    summary = held.summary if held else service.registry.past_runs().get(name)
    if summary is None:
        if not entries:
            raise Unknown(f"there is no training run {name}")
        last = entries[-1].document
        summary = RunSummary(last.base, last.lora.rank, last.run_metadata, last.created)
    latest: dict[str, Body] = {e.place.kind: _checkpoint(e) for e in entries}
    return {
        "training_run_id": name,
        "base_model": summary.base,
        "model_owner": OWNER,
        "is_lora": True,
        "corrupted": False,
        "lora_rank": summary.rank,
        "last_request_time": time_of(summary.used),
        "last_checkpoint": latest.get("weights"),
        "last_sampler_checkpoint": latest.get("sampler_weights"),
        "user_metadata": summary.user_metadata,
    }


def _names(service: Service) -> list[str]:
    held = [run.id for run in service.registry.runs()]
    names = dict.fromkeys([*held, *service.registry.past_runs()])
    earlier = [run for run in service.vault.runs() if run not in names]
    return [*names, *(run for run in earlier if service.vault.entries(run))]


def _all_entries(service: Service) -> list[Entry]:
    return [entry for run in service.vault.runs() for entry in service.vault.entries(run)]


def capabilities(service: Service, _path: Params, _query: Params) -> Body:
    """List the available models."""
    models = [
        {"model_name": name, "trainable": True, "sampleable": True, "max_context_length": length}
        for name, length in service.models.contexts().items()
    ]
    return {"supported_models": models}


def training_runs(service: Service, _path: Params, query: Params) -> Body:
    """List the training runs in this order: current runs, newest first; removed runs, latest
    removal first; runs of earlier engines that have checkpoints, by id."""
    names, cursor = _page(_names(service), query)
    return {"training_runs": [_training_run(service, name) for name in names], "cursor": cursor}


def training_run(service: Service, path: Params, _query: Params) -> Body:
    """Describe one training run."""
    return _training_run(service, path["run"])


def run_checkpoints(service: Service, path: Params, _query: Params) -> Body:
    """List the checkpoints of a training run."""
    return {"checkpoints": [_checkpoint(entry) for entry in service.vault.entries(path["run"])]}


def all_checkpoints(service: Service, _path: Params, query: Params) -> Body:
    """List all checkpoints, newest first."""
    entries = _all_entries(service)
    entries.sort(key=lambda entry: -entry.document.created)
    page, cursor = _page(entries, query)
    return {"checkpoints": [_checkpoint(entry) for entry in page], "cursor": cursor}


def _place(path: Params) -> Place:
    return parse(f"tinker://{path['run']}/{path['checkpoint']}")


def external_addresses(service: Service, path: Params, base: str) -> Body:
    """Return temporary URLs below `base` for the files of a `save_weights_external` checkpoint."""
    place = _place(path)
    service.vault.entry(place)
    if place.kind != "external_weights":
        raise RequestError(
            f"{place} is not an external checkpoint: make one with save_weights_external"
        )
    ticket, expires = service.tickets.issue(place)
    urls = {file: f"{base}{ticket}/{file}" for file in (exports.CONFIG, exports.WEIGHTS)}
    return {"urls": urls, "expires": time_of(expires)}


def storage(service: Service, _path: Params, query: Params) -> Body:
    """Return the disk usage of all checkpoints. `data` is an empty list if there are no
    checkpoints, or if the query names a project other than `OWNER`."""
    entries = _all_entries(service) if query.get("project_id") in (None, OWNER) else []
    size = sum(entry.document.size for entry in entries)
    item = {"checkpoint_count": len(entries), "size_bytes": size, "size_gigabytes": size / 1e9}
    return {"data": [item] if entries else []}


def delete_checkpoint(service: Service, path: Params, _query: Params) -> Body:
    """Delete a checkpoint."""
    service.vault.delete(_place(path))
    return {}


def publish(service: Service, path: Params, _query: Params) -> Body:
    """Make a checkpoint public."""
    service.vault.publish(_place(path), public=True)
    return {}


def unpublish(service: Service, path: Params, _query: Params) -> Body:
    """Make a checkpoint private again."""
    service.vault.publish(_place(path), public=False)
    return {}


def expire(service: Service, path: Params, body: Body) -> Body:
    """Set or remove a checkpoint's time to live."""
    operations.check_ttl(body["ttl_seconds"])
    service.vault.expire(_place(path), body["ttl_seconds"])
    return {}


def sessions(service: Service, _path: Params, query: Params) -> Body:
    """List the ids of the open sessions, newest first, and then of the ended sessions, most
    recently ended first."""
    page, _ = _page([session.id for session in service.registry.all_sessions()], query)
    return {"sessions": page}


def session(service: Service, path: Params, _query: Params) -> Body:
    """Describe one session."""
    matches = {s.id: s for s in service.registry.all_sessions()}.get(path["session"])
    if matches is None:
        raise Unknown(f"there is no session {path['session']}")
    return {
        "training_run_ids": matches.runs,
        "sampler_ids": matches.samplers,
        "user_metadata": matches.user_metadata,
        "display_name": matches.display_name,
        "seconds_since_heard": round(time.monotonic() - matches.last_heard, 1),
    }


def meter(service: Service, _path: Params, _query: Params) -> Body:
    """Return the usage of each session."""
    return service.meter.report()


def billing(service: Service, _path: Params, query: Params) -> Body:
    """Return the number of billed tokens per hour, session, model and kind of token. All costs in
    the response are None."""
    begin, end = (_hour_of(query, key) for key in ("starting_on", "ending_before"))
    if not begin < end <= begin + HOURS * 3600:
        raise RequestError("ending_before must be after starting_on, by at most 14 days")
    entries, about = service.meter.billed(begin, end)
    return {
        "data": [_billed(key, tokens) for key, tokens in entries.items()],
        "sessions": {name: {"user_metadata": metadata} for name, metadata in about.items()},
        "cost_data_through": None,
    }


def _hour_of(query: Params, key: str) -> float:
    try:
        moment = datetime.fromisoformat(query[key])
    except ValueError:
        raise RequestError(f"{key} must be a time such as 2026-01-31T12:00:00Z") from None
    seconds = moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
    if seconds % 3600:
        raise RequestError(f"{key} must be a full hour, in UTC")
    return seconds


def _billed(key: Billed, tokens: int) -> Body:
    info: Body = {"type": key.kind, "token_count": tokens}
    if key.kind == "sampling_prefill":
        info["cached"] = key.cached
    return {
        "bucket_start": time_of(key.hour),
        "bucket_end": time_of(key.hour + 3600),
        "base_model": key.model,
        "session_id": key.session,
        "project_id": OWNER,
        "estimated_cost_usd": None,
        "effective_rate_usd_per_million_tokens": None,
        "event_info": info,
    }


def sampler(service: Service, path: Params, _query: Params) -> Body:
    """Describe a sampler's model and weights."""
    record = service.registry.sampler(path["sampler"])
    return {
        "sampler_id": record.id,
        "base_model": record.adapter.model.name,
        "model_path": record.path,
    }


def weights_info(service: Service, _path: Params, body: Body) -> Body:
    """Describe a checkpoint's model and LoRA configuration."""
    document = service.vault.entry(parse(body["tinker_path"])).document
    return {
        "base_model": document.base,
        "is_lora": True,
        "lora_rank": document.lora.rank,
        "train_unembed": document.lora.train_unembed,
        "train_mlp": document.lora.train_mlp,
        "train_attn": document.lora.train_attn,
    }


Handler = Callable[[Service, Params, Params], Body]
"""A handler that takes path parameters and query parameters."""
PostHandler = Callable[[Service, Params, Body], Body]
"""A handler that takes path parameters and a body."""
ROUTES: list[tuple[str, str, Handler]] = [
    ("GET", "get_server_capabilities", capabilities),
    ("GET", "training_runs", training_runs),
    ("GET", "training_runs/{run}/checkpoints", run_checkpoints),
    ("POST", f"{CHECKPOINT}/publish", publish),
    ("DELETE", f"{CHECKPOINT}/publish", unpublish),
    ("DELETE", CHECKPOINT, delete_checkpoint),
    ("GET", "training_runs/{run}", training_run),
    ("GET", "checkpoints", all_checkpoints),
    ("GET", "billing/usage/checkpoints/current", storage),
    ("GET", "billing/usage/events", billing),
    ("GET", "sessions", sessions),
    ("GET", "sessions/{session}", session),
    ("GET", "samplers/{sampler}", sampler),
    ("GET", "meter", meter),
]


def _summary(service: Service, session: Session, active: bool) -> Body:
    saved = [entry for run in session.runs for entry in service.vault.entries(run)]
    return {
        "session_id": session.id,
        "created_at": time_of(session.started),
        "owner": OWNER,
        "project_id": OWNER,
        "status": {"type": "active"} if active else session.status,
        "checkpoints_count": len(saved),
        "checkpoint_storage_bytes": sum(entry.document.size for entry in saved),
        "display_name": session.display_name,
        "user_metadata": session.user_metadata,
    }


def _is_named(session: Session, name: str | None, words: Sequence[str]) -> bool:
    if name is None and not words:
        return True
    shown = (session.display_name or "").lower()
    return session.id == name or (bool(words) and all(word in shown for word in words))


def _is_meant(session: Session, body: Body) -> bool:
    wanted: Body = body.get("user_metadata") or {}
    metadata: Body = session.user_metadata or {}
    owner: Body = body.get("owner") or {}
    projects: list[str] | None = body.get("project_ids")
    return (
        _is_named(session, body.get("session_id"), (body.get("display_name") or "").lower().split())
        and all(metadata.get(key) == value for key, value in wanted.items())
        and (projects is None or OWNER in projects)
        and (owner.get("type") != "user" or OWNER in owner.get("owner_urns", ()))
    )


def _has_status(status: Mapping[str, object] | None, wanted: Sequence[Body]) -> bool:
    if status is None:
        return False
    reason = table_of(status.get("reason"))
    return any(
        query["type"] == status["type"]
        and (query.get("reasons") is None or reason.get("type") in query["reasons"])
        for query in wanted
    )


def _rank(session: Session) -> tuple[datetime, str]:
    return datetime.fromtimestamp(session.started, UTC), session.id


def search_sessions(service: Service, _path: Params, body: Body) -> Body:
    """Return one page of the sessions that match a search, newest session first."""
    active = {session.id for session in service.registry.sessions()}
    matches = [session for session in service.registry.all_sessions() if _is_meant(session, body)]
    if statuses := body.get("statuses"):
        matches = [
            session
            for session in matches
            if _has_status({"type": "active"} if session.id in active else session.status, statuses)
        ]
    matches.sort(key=_rank, reverse=True)
    if cursor := body.get("cursor"):
        before = datetime.fromisoformat(cursor["last_created_at"]), cursor["last_session_id"]
        matches = [session for session in matches if _rank(session) < before]
    limit = int(body.get("limit", 50))
    page, after = matches[:limit], None
    if len(matches) > limit:
        last = page[-1]
        after = {"last_created_at": time_of(last.started), "last_session_id": last.id}
    summaries = [_summary(service, session, session.id in active) for session in page]
    return {"sessions": summaries, "next_cursor": after}
