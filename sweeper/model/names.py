"""What the names of sweeps, stages and runs may be."""

import re

__all__ = ["MAX_NAME", "STAGE_NAME", "SWEEP_NAME", "is_sweep_name", "shorten"]

MAX_NAME = 100
SWEEP_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
STAGE_NAME = r"[A-Za-z][A-Za-z0-9_]{0,39}"


def is_sweep_name(text: str) -> bool:
    """Whether a sweep may be called that: safe as a folder and as a tmux session."""
    return re.fullmatch(SWEEP_NAME, text) is not None


def shorten(name: str, limit: int = MAX_NAME) -> str:
    """`name`, or when it is longer than `limit` its beginning and a hash of all of it."""
    if len(name) <= limit:
        return name
    import hashlib  # few names are that long, and it loads OpenSSL

    digits = hashlib.sha256(name.encode()).hexdigest()[:10]
    return f"{name[: limit - 11].rstrip('=,._-')}~{digits}"
