"""Makes the plan that a command line requests. Imports only what a plan needs, since the recipe's
interpreter is already started and waits for the plan."""

import argparse

from sweeper.errors import GridError, StoreError
from sweeper.fields.data import from_python
from sweeper.fields.nodes import Problems
from sweeper.grid.budget import read_caps
from sweeper.planner.plan import plan
from sweeper.store.opening import default_root, open_store
from sweeper.store.writable import check_root
from sweeper.sweep.plan import Plan


def planned_by(arguments: argparse.Namespace) -> Plan:
    """Make the plan for the arguments of a command line. Raises `GridError`, and `StoreError` for a
    root that cannot hold sweeps."""
    overrides = list(arguments.overrides)
    if arguments.backend:
        overrides.append(f"launch.backend={arguments.backend}")
    if arguments.max_parallel is not None:
        overrides.append(f"launch.max_parallel={arguments.max_parallel}")
    store = open_store(arguments.root or default_root())
    try:
        planned = plan(arguments.grid, overrides, validate=not arguments.no_validate)
    except GridError as error:
        try:
            check_root(store)
        except StoreError as other:  # Report all problems at once.
            raise GridError([*error.problems, str(other)]) from error
        raise
    check_root(store)
    return _with_budget(planned, arguments.budget) if arguments.budget else planned


def _with_budget(planned: Plan, text: str) -> Plan:
    problems = Problems()
    limits = {key.strip(): value for key, _, value in (p.partition("=") for p in text.split(","))}
    before = {} if planned.budget is None else planned.budget.document()
    node = from_python(before | {k: _number(v) for k, v in limits.items()}, "--budget", problems)
    budget = read_caps(node, "budget", problems)
    if problems:
        raise problems.error()
    return planned._replace(budget=budget)


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text.strip()
