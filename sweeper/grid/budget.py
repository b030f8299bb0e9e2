"""The section `budget`: how much a sweep may use, and what happens when the budget is used up."""

from sweeper.fields.kinds import Choice, Number, Shape
from sweeper.fields.nodes import Node, Problems
from sweeper.fields.sections import Field, Reading, Section
from sweeper.sweep.plan import Budget

_MOST_USD, _MOST_TOKENS, _MOST_HOURS = 1e9, 1e15, 1e6


def _check(reading: Reading) -> None:
    if not any(reading.given(key) is not None for key in ("usd", "tokens", "hours")):
        reading.problems.add(reading.place, "budget needs usd, tokens or hours")


SECTION = Section(
    Field(
        "usd", Number(0, _MOST_USD), "Dollars, at the prices that `sweeper costs --prices` shows."
    ),
    Field("tokens", Number(0, _MOST_TOKENS), "Tokens of all kinds."),
    Field("hours", Number(0, _MOST_HOURS), "Hours of all runs together, without pauses."),
    Field(
        "on_reach",
        Choice("stop", "pause"),
        "`stop`: running jobs are stopped, and continue from their checkpoints once the "
        "budget is larger; `pause`: running jobs continue. In both cases no new runs start.",
        "stop",
    ),
    check=_check,
)


PERIODS = ("day", "month", "all")

ACCOUNT = SECTION.extended(
    Field(
        "per",
        Choice(*PERIODS),
        "The period of the limits: a day or a month, in UTC, or all time.",
        "all",
    )
)
"""The table `budget` of the configuration file. It is for all sweeps of an account together."""


def read_caps(node: Node, where: str, problems: Problems) -> Budget | None:
    """Read the section `budget`, or the value of `launch --budget`. Return None if there is no
    valid limit."""
    values = SECTION.read(node, where, problems).values
    return Budget(**values) if values.keys() & {"usd", "tokens", "hours"} else None


BUDGET = Field(
    "budget",
    Shape(SECTION.schema, read_caps),
    "Limits on what all runs of the sweep use together.",
)
