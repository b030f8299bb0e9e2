"""The description of the Ray backend and its section of a grid. The other code is loaded when a
sweep is launched there. Ray itself is loaded only by the driver, a separate process, and on the
nodes."""

from collections.abc import Iterable, Mapping
from typing import cast

from sweeper.backends.base import Backend, BackendType, Capabilities, Check
from sweeper.backends.ray.messages import Options
from sweeper.backends.secret_references import names_of, secrets_field
from sweeper.errors import UsageError
from sweeper.fields.kinds import Amounts, Choice, Flag, Integer, Matching, Names, Number, Text
from sweeper.fields.sections import Field, Section

__all__ = ["BACKEND"]

CREDENTIALS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_OF_ALL = ("address", "python", "files", "secrets", "wait_for_nodes")
_MOST = 1e6


SECTION = Section(
    Field(
        "address",
        Text(
            r"auto|[A-Za-z0-9_.-]+:[0-9]{1,5}|\[[0-9a-fA-F:]+\]:[0-9]{1,5}",
            "{} is not the address of a head as the cluster's nodes know it, such as "
            "10.0.0.1:6379, or `auto` to launch on a node",
        ),
        ("The head, as `ray start --head` prints it. Default: $RAY_ADDRESS, else this machine's."),
        examples=("10.0.0.1:6379",),
    ),
    Field(
        "python",
        Text(r"[^\x00-\x1f\x7f]{1,1000}", "{} is not an interpreter on the nodes"),
        "The interpreter on the nodes that has sweeper. Default: the same path as here.",
        examples=("/opt/venv/bin/python",),
    ),
    Field("num_cpus", Number(0, _MOST), "CPUs of a job.", 1),
    Field("num_gpus", Number(0, _MOST), "GPUs of a job.", examples=(1,)),
    Field("memory", Integer(1), "Memory of a job, in MiB.", examples=(8192,)),
    Field(
        "resources", Amounts(_MOST), "The cluster's custom resources.", examples=({"fast_disk": 1},)
    ),
    Field(
        "labels",
        Names(
            "a mapping of labels to required values",
            Matching(r"[A-Za-z0-9][A-Za-z0-9_./-]{0,250}", "a label"),
            values=Matching(
                r"!?([A-Za-z0-9_.-]{1,63}|in\([A-Za-z0-9_.,-]{1,1000}\))",
                "a label's value, !value, in(a,b) or !in(a,b)",
            ),
        ),
        "Labels that a job's node must have.",
        examples=({"ray.io/accelerator-type": "H100"},),
    ),
    Field(
        "placement",
        Choice("pack", "spread"),
        ("Fill nodes one by one, or spread jobs over them."),
        "pack",
    ),
    Field("files", Flag(), "Whether the nodes see this machine's folders.", default=True),
    Field(
        "wait_for_nodes",
        Flag(),
        "Whether larger nodes may be added later, by an autoscaler.",
        default=False,
    ),
    secrets_field(
        "Variables, and where a node finds their values. Never values.",
        Matching(
            r"env:[A-Za-z_][A-Za-z0-9_]*|file:/[^\x00-\x1f\x7f]{1,1000}",
            "env:NAME or file:/path of the node, never the value",
        ),
        "file:/run/secrets/tinker",
    ),
)


def _open(sweep: str, folder: str, options: Mapping[str, object]) -> Backend:
    from sweeper.backends.ray.backend import open_backend

    del sweep  # the folder suffices
    return open_backend(folder, options)


def _capabilities(given: Mapping[str, object]) -> Capabilities:
    """Return the capabilities: jobs run on other machines, with or without this machine's folders.
    Raises `UsageError`."""
    options = cast(Options, given)
    for override in options.get("overrides") or ():
        for key in _OF_ALL:
            if key in override:
                raise UsageError(f"ray: launch.ray.overrides: {key} must be the same for all runs")
    python, files = options.get("python"), options.get("files") is not False
    return Capabilities(
        here=False,
        files=files,
        python=python if files else python or "python",
        secrets=names_of(options),
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
