"""The access token that an engine requires from its clients. It is stored in a private file in the
home folder, and stays the same when the engine restarts. This module uses only the standard
library."""

import os

from sweeper import paths
from sweeper.common.atomic import atomic_write

TOKEN = "SWEEPER_ENGINE_TOKEN"  # noqa: S105 -- the name of the variable


def path(home: str | None = None) -> str:
    """Return the path of the file with the access token of the engine in `home`."""
    return os.path.join(paths.engine(home), "token")


def new() -> str:
    """Return a new random token. It begins with `tml-`, because the SDK rejects other API keys."""
    import secrets  # import late: planning does not need this

    return f"tml-{secrets.token_urlsafe(32)}"


def read(home: str | None = None) -> str | None:
    """Return the access token of the engine in `home`. None if the home has no token, or if this
    user cannot read the token."""
    try:
        with open(path(home), encoding="ascii") as file:
            return file.read().strip() or None
    except (OSError, ValueError):
        return None


def keep(home: str, token: str) -> None:
    """Store the access token of the engine in `home`, readable only by this user. The caller
    must hold the home's lock."""
    atomic_write(path(home), f"{token}\n".encode("ascii"), mode=0o600)


def proof(token: str, challenge: str) -> str:
    """Return an HMAC of `challenge`, with which an engine proves that it knows `token`. A client
    checks the proof before it sends the token, because another program may listen on a dead
    engine's port."""
    import hmac

    return hmac.digest(token.encode(), challenge.encode(), "sha256").hex()
