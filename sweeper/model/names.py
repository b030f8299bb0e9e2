"""How long the name of a run may be."""

__all__ = ["MAX_NAME", "shorten"]

MAX_NAME = 100


def shorten(name: str, limit: int = MAX_NAME) -> str:
    """`name`, or when it is longer than `limit` its beginning and a hash of all of it."""
    if len(name) <= limit:
        return name
    import hashlib  # few names are that long, and it loads OpenSSL

    digits = hashlib.sha256(name.encode()).hexdigest()[:10]
    return f"{name[: limit - 11].rstrip('=,._-')}~{digits}"
