"""What a platform says, as one line for people."""

__all__ = ["line_of", "reason_of"]


def line_of(said: object) -> str:
    """What it says of a failure, at most 300 characters."""
    return " ".join(str(said).split())[:300]


def reason_of(said: object) -> str | None:
    """Why a job waits, or has ended, at most 200 characters; None where nothing is said."""
    return " ".join(str(said or "").split()).removesuffix(":")[:200] or None
