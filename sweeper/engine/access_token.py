"""The token that an engine asks of its clients. Standard library only: the command line uses it.

It lies in the home, in a file that only its user can read, and stays the same from one engine to
the next: a program that was at work when the engine went away has the key of the one that follows.
"""

import os

from sweeper import paths
from sweeper.atomic import atomic_write

__all__ = ["TOKEN", "keep", "new", "path", "proof", "read"]

TOKEN = "SWEEPER_ENGINE_TOKEN"  # noqa: S105 -- the name of the variable


def path(home: str | None = None) -> str:
    """Where the token of a home's engine lies."""
    return os.path.join(paths.engine(home), "token")


def new() -> str:
    """A token that nobody can guess, in the form that the SDK takes for a key."""
    import secrets  # a plan needs none of it

    return f"tml-{secrets.token_urlsafe(32)}"


def read(home: str | None = None) -> str | None:
    """The token of a home's engine; None where none is kept, or it is another user's."""
    try:
        with open(path(home), encoding="ascii") as file:
            return file.read().strip() or None
    except (OSError, ValueError):
        return None


def keep(home: str, token: str) -> None:
    """Keep a token for who uses the home's engine, readable by this user alone. The caller holds
    the home's lock."""
    atomic_write(path(home), f"{token}\n".encode("ascii"), mode=0o600)


def proof(token: str, challenge: str) -> str:
    """What only who has the token can answer to a challenge. So a program that has taken the port
    of an engine that died is not given the token by who asks whether the engine is there."""
    import hmac

    return hmac.digest(token.encode(), challenge.encode(), "sha256").hex()
