"""Notification settings, as in a grid or the user's configuration, and recorded messages. A secret
value is given as `$NAME`, the variable that holds it."""

from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

from sweeper.common import codec
from sweeper.common.codec import SCHEMA, Default, Sparse, Unstored, written

KINDS = ("end", "alarm", "budget")
"""The kinds of messages."""


class Email(NamedTuple):
    """Mail by SMTP: `server` is `host` or `host:port`."""

    to: Annotated[tuple[str, ...], Default(())]
    server: str
    sender: str
    user: str | None = None
    password: str | None = None
    tls: Literal["starttls", "ssl", "none"] = "starttls"


class Notify(NamedTuple):
    """The kinds of messages to send (`on`), and the ways to send them (None: not used)."""

    on: tuple[str, ...] = KINDS
    command: Sparse[tuple[str, ...] | None] = None
    webhook: Sparse[str | None] = None
    slack: Sparse[str | None] = None
    email: Sparse[Email | None] = None

    @property
    def receivers(self) -> tuple[str, ...]:
        """The ways that are used."""
        values = self._asdict()
        return tuple(way for way in ("command", "webhook", "slack", "email") if values[way])

    def document(self) -> dict[str, object]:
        """Return the object as written in `sweep.json`."""
        return written(self)


class Message(NamedTuple):
    """A message to send once. `key` identifies it within its sweep."""

    key: Annotated[Unstored[str], Default("")]
    kind: Annotated[str, Default("end")]
    text: str
    time: Annotated[str, Default("")]

    def document(self) -> dict[str, object]:
        """Return the object as written in the store."""
        return {"schema": SCHEMA, **written(self)}


def variables_of(notify: Notify) -> Mapping[str, str]:
    """Return the variables that the settings refer to, with the setting of each."""
    email = notify.email
    named = {
        "webhook": notify.webhook,
        "slack": notify.slack,
        "email.password": None if email is None else email.password,
    }
    return {
        value[1:]: setting for setting, value in named.items() if value and value.startswith("$")
    }


def read_message(key: str, document: object, place: str) -> Message:
    """Read the message in the file `place`. Raises `StoreError`."""
    return codec.read(Message, document, place)._replace(key=key)
