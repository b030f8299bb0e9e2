"""Searches the open sessions and those that ended last."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from sweeper.common.json_values import table_of
from sweeper.engine.listing import OWNER, Params, time_of
from sweeper.engine.service import Body, Service
from sweeper.engine.state import Session


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
    """Return whether the session has that id, or all the words in its display name. True without
    either criterion."""
    if name is None and not words:
        return True
    shown = (session.display_name or "").lower()
    return session.id == name or (bool(words) and all(word in shown for word in words))


def _is_meant(session: Session, body: Body) -> bool:
    """Return whether a search matches this session, apart from its status."""
    wanted: Body = body.get("user_metadata") or {}
    own: Body = session.user_metadata or {}
    owner: Body = body.get("owner") or {}
    projects: list[str] | None = body.get("project_ids")
    return (
        _is_named(session, body.get("session_id"), (body.get("display_name") or "").lower().split())
        and all(own.get(key) == value for key, value in wanted.items())
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


def _place(session: Session) -> tuple[datetime, str]:
    return datetime.fromtimestamp(session.started, UTC), session.id


def search_sessions(service: Service, _path: Params, body: Body) -> Body:
    """Return one page of a search's results, newest first."""
    active = {session.id for session in service.registry.sessions()}
    matches = [one for one in service.registry.all_sessions() if _is_meant(one, body)]
    if statuses := body.get("statuses"):
        matches = [
            one
            for one in matches
            if _has_status({"type": "active"} if one.id in active else one.status, statuses)
        ]
    matches.sort(key=_place, reverse=True)
    if cursor := body.get("cursor"):
        before = datetime.fromisoformat(cursor["last_created_at"]), cursor["last_session_id"]
        matches = [one for one in matches if _place(one) < before]
    limit = int(body.get("limit", 50))
    page, after = matches[:limit], None
    if len(matches) > limit:
        last = page[-1]
        after = {"last_created_at": time_of(last.started), "last_session_id": last.id}
    summaries = [_summary(service, one, one.id in active) for one in page]
    return {"sessions": summaries, "next_cursor": after}
