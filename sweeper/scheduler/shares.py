"""Decides which member of an account may take a free slot. Pure.

Each member's share of the slots is proportional to its weight, but at most what it can use; what
is left over is divided among the others in the same way (weighted max-min fairness). A member
owns the whole part of a fractional share. The remaining slots rotate: the member with the lowest
`turn` gets the next one, and its turn rises by one over its missing fraction (stride scheduling,
Waldspurger 1995), so that in time each member has its share.
"""

from collections.abc import Mapping
from typing import NamedTuple

_ALMOST = 1e-9


class Claim(NamedTuple):
    """A member holds `held` slots and could use `wants` more."""

    weight: float
    held: int
    wants: int
    turn: float = 0.0


class Grant(NamedTuple):
    """How many slots a member may take now, and its turn afterwards."""

    slots: int
    turn: float


def shares(limit: float, claims: Mapping[str, Claim]) -> dict[str, float]:
    """Each member's share of `limit` slots. The sum does not exceed `limit`."""
    found: dict[str, float] = dict.fromkeys(claims, 0.0)
    left = dict(claims)
    while left and limit > _ALMOST:
        each = limit / sum(claim.weight for claim in left.values())
        full = [name for name, c in left.items() if c.held + c.wants <= each * c.weight + _ALMOST]
        if not full:
            return found | {name: each * claim.weight for name, claim in left.items()}
        for name in full:
            claim = left.pop(name)
            found[name] = float(claim.held + claim.wants)
            limit -= found[name]
    return found


def grant(limit: int | None, claims: Mapping[str, Claim], who: str) -> Grant:
    """How many of `limit` slots (None: unlimited) the member `who` may take now."""
    own = claims[who]
    if limit is None:
        return Grant(own.wants, own.turn)
    parts = shares(limit, claims)
    whole = {name: int(part + _ALMOST) for name, part in parts.items()}
    free = limit - sum(claim.held for claim in claims.values())
    may = max(0, whole[who] - own.held)
    turn = own.turn
    if who in _in_turn(parts, whole, claims):
        may += 1
        turn += 1.0 / (parts[who] - whole[who])
    taken = max(0, min(may, own.wants, free))
    return Grant(taken, turn if taken and own.held + taken > whole[who] else own.turn)


def _in_turn(
    parts: Mapping[str, float], whole: Mapping[str, int], claims: Mapping[str, Claim]
) -> list[str]:
    """The members that may take one slot more than the whole part of their share."""
    over = sum(min(1, max(0, c.held - whole[name])) for name, c in claims.items())
    left = round(sum(parts.values()) + _ALMOST) - sum(whole.values()) - over
    wait = [
        name
        for name, claim in claims.items()
        if parts[name] - whole[name] > _ALMOST and claim.held <= whole[name] and claim.wants
    ]
    wait.sort(key=lambda name: (claims[name].turn, name))
    return wait[: max(0, left)]
