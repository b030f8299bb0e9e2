"""Notification settings, as a grid or the user's configuration has them, and recorded messages. A
value that is a secret is given as `$NAME`, the variable that holds it."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from sweeper.common.document_reader import SCHEMA, Part

KINDS = ("end", "alarm", "budget")
"""The kinds of messages."""


class Email(NamedTuple):
    """Mail by SMTP: `server` is `host` or `host:port`."""

    to: tuple[str, ...]
    server: str
    sender: str
    user: str | None = None
    password: str | None = None
    tls: Literal["starttls", "ssl", "none"] = "starttls"


class Notify(NamedTuple):
    """The kinds of messages to send (`on`), and the ways to send them; None for an unused way."""

    on: tuple[str, ...] = KINDS
    command: tuple[str, ...] | None = None
    webhook: str | None = None
    slack: str | None = None
    email: Email | None = None

    @property
    def receivers(self) -> tuple[str, ...]:
        """The ways that are used."""
        values = self._asdict()
        return tuple(way for way in ("command", "webhook", "slack", "email") if values[way])

    def document(self) -> dict[str, object]:
        """Return the form in `sweep.json`."""
        document: dict[str, object] = {"on": list(self.on)}
        if self.command is not None:
            document["command"] = list(self.command)
        document |= {k: v for k, v in (("webhook", self.webhook), ("slack", self.slack)) if v}
        if self.email is not None:
            document["email"] = {**self.email._asdict(), "to": list(self.email.to)}
        return document


class Message(NamedTuple):
    """A message to send once. `key` identifies it within its sweep."""

    key: str
    kind: str
    text: str
    time: str

    def document(self) -> dict[str, object]:
        """Return the value in its stored form."""
        return {"schema": SCHEMA, "kind": self.kind, "text": self.text, "time": self.time}


def variables_of(notify: Notify) -> Mapping[str, str]:
    """Return the variables that the settings name, with the setting that each is for."""
    email = notify.email
    named = {
        "webhook": notify.webhook,
        "slack": notify.slack,
        "email.password": None if email is None else email.password,
    }
    return {value[1:]: what for what, value in named.items() if value and value.startswith("$")}


def read(part: Part | None) -> Notify | None:
    """Read the settings in a document. Raises `StoreError`."""
    if part is None:
        return None
    command = part.texts_or("command", None)
    return Notify(
        on=tuple(part.texts_or("on", [*KINDS])),
        command=None if command is None else tuple(command),
        webhook=part.text_or("webhook", None),
        slack=part.text_or("slack", None),
        email=_email(part.part_or_none("email")),
    )


def _email(part: Part | None) -> Email | None:
    if part is None:
        return None
    return Email(
        to=tuple(part.texts_or("to", [])),
        server=part.text("server"),
        sender=part.text("sender"),
        user=part.text_or("user", None),
        password=part.text_or("password", None),
        tls=part.one_of("tls", ("starttls", "ssl", "none"), "starttls"),
    )


def read_message(key: str, document: object, place: str) -> Message:
    """Read the message in the file `place`. Raises `StoreError`."""
    top = Part(document, place)
    return Message(key, top.text_or("kind", "end"), top.text("text"), top.text_or("time", ""))
