"""`job.json`: what an attempt's worker is to do."""

from typing import Any

from sweeper.model.parts import Part
from sweeper.model.plan import Launch, check_snapshot, runs_anywhere

__all__ = ["read", "read_engine", "read_tokens"]


def read(document: object, place: str) -> dict[str, Any]:
    """The job in the file `place`, whose keys are as a worker expects them. Raises `StoreError`."""
    job = Part(document, place)
    for key in ("run", "name"):
        job.text(key)
    attempt = job.integer_or("attempt", 0)
    if attempt < 1:
        job.refuse("attempt", "1 or more")
    job.part("config")
    runs_anywhere(job.part("recipe"))
    job.text("cwd")
    check_snapshot(job.part_or_none("snapshot"))
    job.text_or("env_file", None)
    default = Launch()
    return {
        **job.document,
        "resume": job.one_of("resume", ("auto", "always", "never"), default.resume),
        "timeout_s": job.number_or("timeout_s", None),
        "grace_s": job.number_or("grace_s", default.grace_s),
        "sync_s": job.number_or("sync_s", default.sync_s),
        "seed": job.integer_or("seed", None),
        "env": job.texts_by_key("env"),
        "secrets": job.texts_or("secrets", []),
        "wandb": job.texts_by_key("wandb"),
        "fields": job.texts_by_key("fields"),
        "engine": _engine(job) or None,
    }


def read_engine(document: object, place: str) -> dict[str, str]:
    """The engine that the attempt of the job in the file `place` was to use: its `url`, and when it
    was `started`; empty for none. Raises `StoreError`."""
    return _engine(Part(document, place))


def _engine(job: Part) -> dict[str, str]:
    found = job.part_or_none("engine")
    return {} if found is None else {key: found.text(key) for key in ("url", "started")}


def read_tokens(document: object, place: str) -> list[str]:
    """The table of an array of jobs, the file `place`: whose each is. Raises `StoreError`."""
    top = Part(document, place)
    found = top.texts_or("tokens", None)
    return top.refuse("tokens", "a list of texts") if found is None else found
