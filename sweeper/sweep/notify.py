"""Notification settings, as in a grid or the user's configuration, and recorded messages. A
secret value is given as `$NAME`, where NAME is the environment variable with the value."""

from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

from sweeper.common import codec
from sweeper.common.codec import SCHEMA, Default, Sparse, Unstored, written

KINDS = ("end", "alarm", "budget")
"""The kinds of messages."""


class Email(NamedTuple):
    """The settings for sending mail by SMTP. `server` is `host` or `host:port`."""

    to: Annotated[tuple[str, ...], Default(())]
    server: str
    sender: str
    user: str | None = None
    password: str | None = None
    tls: Literal["starttls", "ssl", "none"] = "starttls"


class Notify(NamedTuple):
    """The kinds of messages to send (`on`), and the receivers of messages (None: not used)."""

    on: tuple[str, ...] = KINDS
    command: Sparse[tuple[str, ...] | None] = None
    webhook: Sparse[str | None] = None
    slack: Sparse[str | None] = None
    email: Sparse[Email | None] = None

    @property
    def receivers(self) -> tuple[str, ...]:
        """The names of the receivers that are used: `command`, `webhook`, `slack`, `email`."""
        values = self._asdict()
        return tuple(way for way in ("command", "webhook", "slack", "email") if values[way])

    def document(self) -> dict[str, object]:
        """Return the JSON object for `sweep.json`."""
        return written(self)


class Message(NamedTuple):
    """A message to send once. `key` identifies the message within its sweep."""

    key: Annotated[Unstored[str], Default("")]
    kind: Annotated[str, Default("end")]
    text: str
    time: Annotated[str, Default("")]

    def document(self) -> dict[str, object]:
        """Return the JSON object to store."""
        return {"schema": SCHEMA, **written(self)}


def variables_of(notify: Notify) -> Mapping[str, str]:
    """Return the environment variables that settings refer to as `$NAME`, as a dict from variable
    to the setting's name."""
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
    """Return the message `key` in `document`, the content of the file `place`. Raises
    `StoreError`."""
    return codec.read(Message, document, place)._replace(key=key)
