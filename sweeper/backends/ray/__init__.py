"""The description of the Ray backend and its section of a grid. The backend's other modules are
loaded only when they are used. Ray itself is loaded only by the driver, a separate process, and on
the nodes."""

from collections.abc import Iterable, Mapping

from sweeper.backends.base import Backend, BackendType, Capabilities, Check
from sweeper.backends.ray.options import SECTION, Options
from sweeper.common.json_values import list_of, table_of
from sweeper.errors import UsageError
from sweeper.fields.options import read_options

__all__ = ["BACKEND"]

CREDENTIALS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_OF_ALL = ("address", "python", "files", "secrets", "wait_for_nodes")


def _open(sweep: str, folder: str, options: Mapping[str, object]) -> Backend:
    from sweeper.backends.ray.backend import open_backend

    del sweep  # The folder identifies the sweep.
    return open_backend(folder, options)


def _capabilities(plan_options: Mapping[str, object]) -> Capabilities:
    """Return the capabilities of Ray jobs. Raises `UsageError` if an override sets an option that
    must be the same for all runs."""
    for override in map(table_of, list_of(plan_options.get("overrides"))):
        for key in _OF_ALL:
            if key in override:
                raise UsageError(f"ray: launch.ray.overrides: {key} must be the same for all runs")
    options = read_options(Options, plan_options, "launch.ray")
    return Capabilities(
        here=False,
        files=options.files,
        python=options.python if options.files else options.python or "python",
        secrets=frozenset(options.secrets),
        credentials=CREDENTIALS,
    )


def _checks(options: Mapping[str, object]) -> Iterable[Check]:
    from sweeper.backends.ray.doctor import checks

    return checks(options)


BACKEND = BackendType(
    "ray",
    "Options of Ray jobs: docs/ray.md.",
    _open,
    SECTION,
    by_run=True,
    capabilities=_capabilities,
    checks=_checks,
)
