"""The Python interface of sweeper: plan, launch and follow a grid of runs, and compare their
results. Each name is imported at its first use."""

import importlib

TYPE_CHECKING = False  # importing typing takes some milliseconds at each start
if TYPE_CHECKING:
    from sweeper.launcher.control import cancel, retry
    from sweeper.launcher.launching import Launched, launch
    from sweeper.launcher.pausing import Steered, parallel, pause, resume, stop
    from sweeper.planner.plan import plan
    from sweeper.results.annotations import archive, delete, note, rename
    from sweeper.results.last_lines import logs
    from sweeper.results.registry import Registry
    from sweeper.results.status import Status
    from sweeper.results.waiting import status, wait, wait_async
    from sweeper.sweep.plan import Plan, Run
    from sweeper.sweep.requests import Requested

__version__ = "0.1.0"

__all__ = [
    "Launched",
    "Plan",
    "Registry",
    "Requested",
    "Run",
    "Status",
    "Steered",
    "__version__",
    "archive",
    "cancel",
    "delete",
    "launch",
    "logs",
    "note",
    "parallel",
    "pause",
    "plan",
    "rename",
    "resume",
    "retry",
    "status",
    "stop",
    "wait",
    "wait_async",
]

_HOMES = {
    "Launched": "sweeper.launcher.launching",
    "Plan": "sweeper.sweep.plan",
    "Registry": "sweeper.results.registry",
    "Requested": "sweeper.sweep.requests",
    "Run": "sweeper.sweep.plan",
    "Status": "sweeper.results.status",
    "Steered": "sweeper.launcher.pausing",
    "archive": "sweeper.results.annotations",
    "cancel": "sweeper.launcher.control",
    "delete": "sweeper.results.annotations",
    "launch": "sweeper.launcher.launching",
    "logs": "sweeper.results.last_lines",
    "note": "sweeper.results.annotations",
    "parallel": "sweeper.launcher.pausing",
    "pause": "sweeper.launcher.pausing",
    "plan": "sweeper.planner.plan",
    "rename": "sweeper.results.annotations",
    "resume": "sweeper.launcher.pausing",
    "retry": "sweeper.launcher.control",
    "status": "sweeper.results.waiting",
    "stop": "sweeper.launcher.pausing",
    "wait": "sweeper.results.waiting",
    "wait_async": "sweeper.results.waiting",
}


def __dir__() -> list[str]:
    """Return the public names, including those that are not imported yet."""
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__, "analysis"})


def __getattr__(name: str) -> object:
    if name == "analysis":  # loaded at first use, like the other names
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'sweeper' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
