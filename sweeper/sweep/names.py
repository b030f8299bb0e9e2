"""Rules for the names of sweeps, stages and runs."""

import re

MAX_NAME = 100
SWEEP_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
STAGE_NAME = r"[A-Za-z][A-Za-z0-9_]{0,39}"


def is_sweep_name(text: str) -> bool:
    """Return whether `text` is a valid name of a sweep. Valid names are also safe as names of
    folders and of tmux sessions."""
    return re.fullmatch(SWEEP_NAME, text) is not None


def shorten(name: str, limit: int = MAX_NAME) -> str:
    """Return `name`, or the beginning and a hash of `name` if `name` is longer than `limit`."""
    if len(name) <= limit:
        return name
    import hashlib  # imported late, since it is rarely needed and loads OpenSSL

    digits = hashlib.sha256(name.encode()).hexdigest()[:10]
    return f"{name[: limit - 11].rstrip('=,._-')}~{digits}"
