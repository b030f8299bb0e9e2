"""The section `notify` of a grid and of the user's configuration: who is notified, when and
how."""

import os
import re
from typing import Any

from sweeper.errors import EnvironmentFailure
from sweeper.fields import config_file
from sweeper.fields.kinds import Choice, Item, Shape, Text, Texts, whole
from sweeper.fields.nodes import Node, Problems
from sweeper.fields.sections import Field, Nested, Reading, Section
from sweeper.grid.command_words import one_of, word_with
from sweeper.sweep.notify import KINDS, Email, Notify, variables_of
from sweeper.sweep.plan import Plan

HOLES = ("sweep", "kind", "message", "root")
"""The placeholders of `notify.command`."""

_NAME = r"\$[A-Za-z_][A-Za-z0-9_]*"
_ADDRESS = r"[^\s@<>,]+@[^\s@<>,]+"
_WAYS = ("command", "webhook", "slack", "email")


def _wrong_with_address(text: str) -> str | None:
    return None if re.fullmatch(_ADDRESS, text) else f"{text[:80]!r} is not an address"


def _needs_a_way(reading: Reading) -> None:
    kinds = reading.given("on")
    muted = kinds is not None and kinds.value == []
    if not muted and not any(reading.given(way) for way in _WAYS):
        reading.problems.add(reading.place, f"notify needs one of {', '.join(_WAYS)}")


_EMAIL = Section(
    Field(
        "to",
        Texts(
            Item({"pattern": whole(_ADDRESS)}, _wrong_with_address),
            least=1,
            unique=True,
            example="a list such as [me@example.org]",
        ),
        "The recipients.",
        examples=(["me@example.org"],),
    ),
    Field(
        "server",
        Text(r"[A-Za-z0-9.-]+(:[0-9]{1,5})?", "write host or host:port"),
        "The SMTP server.",
        examples=("smtp.example.org:587",),
    ),
    Field("sender", Text(_ADDRESS, "{} is not an address"), "The sender's address."),
    Field("user", Text(), "The user's name at the server."),
    Field(
        "password",
        Text(_NAME, "write the name of the variable with the password, such as $SMTP_PASSWORD"),
        "$NAME: the variable with the password.",
        examples=("$SMTP_PASSWORD",),
    ),
    Field("tls", Choice("starttls", "ssl", "none"), "How the connection is secured.", "starttls"),
    needs={"to": "`to`, a list of addresses", "server": "`server`", "sender": "`sender`"},
)
_SECTION = Section(
    Field(
        "on",
        Texts(
            one_of(KINDS),
            unique=True,
            example="a list with any of end, alarm and budget",
        ),
        "When to notify: the sweep's end, alarms, a spent budget (default: all; []: never).",
    ),
    Field(
        "command",
        Texts(
            word_with(HOLES),
            least=1,
            example="a list such as [notify-send, '{sweep}', '{message}']",
        ),
        ("A command and its arguments, with the placeholders {sweep}, {kind}, {message}, {root}."),
        examples=(["notify-send", "{sweep}", "{message}"],),
    ),
    Field(
        "webhook",
        Text(rf"{_NAME}|https?://[^\s@?]+", "write an address without a secret, or $NAME"),
        "An address that accepts JSON by POST, or $NAME: the variable with the address.",
        examples=("$MY_WEBHOOK_URL",),
    ),
    Field(
        "slack",
        Text(
            _NAME,
            (
                "write the name of the variable with the webhook's address, such as "
                "$SLACK_WEBHOOK_URL"
            ),
        ),
        "$NAME: the variable with the address of a Slack webhook.",
        examples=("$SLACK_WEBHOOK_URL",),
    ),
    Field("email", Nested(_EMAIL), "Mail by SMTP."),
    check=_needs_a_way,
)


def _read(node: Node, where: str, problems: Problems) -> Notify | None:
    return None if node.entries is None else _made(_SECTION.read(node, where, problems))


def _made(reading: Reading) -> Notify:
    values = reading.values
    command, on = values.get("command"), values.get("on")
    return Notify(
        on=KINDS if on is None else tuple(on),
        command=None if command is None else tuple(command),
        webhook=values.get("webhook"),
        slack=values.get("slack"),
        email=_email(reading.value("email") or {}),
    )


def _email(values: dict[str, Any]) -> Email | None:
    if not values.keys() >= {"to", "server", "sender"}:
        return None  # Missing keys are already reported.
    more = {key: values[key] for key in ("user", "password", "tls") if key in values}
    return Email(tuple(values["to"]), values["server"], values["sender"], **more)


WHOLE: dict[str, object] = {
    "if": {"type": "object", "not": {"properties": {"on": {"const": []}}, "required": ["on"]}},
    "then": {
        "anyOf": [
            {"required": [way], "properties": {way: {"not": {"type": "null"}}}} for way in _WAYS
        ]
    },
    "properties": {"email": {"if": {"type": "object"}, "then": _EMAIL.whole()}},
}
"""JSON Schema of `notify` in a grid that extends no other grid."""

NOTIFY = Field(
    "notify",
    Shape(_SECTION.schema, _read),
    "Who is notified when the sweep ends, an alarm is raised or its budget is spent.",
)


def notify_of(plan: Plan) -> Notify | None:
    """Return the notification settings of a sweep: the grid's section `notify`, else the table
    `notify` of the user's configuration. Return None if there are no receivers, or if `notify.on`
    is empty. Raises `EnvironmentFailure` for mistakes in the configuration."""
    notify = plan.notify if plan.notify is not None else configured()
    return notify if notify is not None and notify.on and notify.receivers else None


def configured() -> Notify | None:
    """Return the table `notify` of the user's configuration; None if there is none. Raises
    `EnvironmentFailure`."""
    node, problems = config_file.table("notify")
    notify = _read(node, "notify", problems) if node.entries else None
    config_file.refuse(problems)
    return notify


def require_variables(notify: Notify) -> None:
    """Raise `EnvironmentFailure` if an environment variable in the settings is not set."""
    for name, setting in variables_of(notify).items():
        if not os.environ.get(name):
            raise EnvironmentFailure(
                f"notify.{setting}: the environment variable {name} is not set"
            )
