"""How a sweep's runs are executed: what plans and stages have of `launch`."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, Never

from sweeper.model.json_values import table_of

__all__ = ["Launch", "Share"]

_NOTHING: Mapping[str, Never] = MappingProxyType({})


class Share(NamedTuple):
    """A place of a sweep, by its backend's name, and how many jobs it may have there at once (None:
    as many as the sweep may have)."""

    backend: str
    max_parallel: int | None = None


class Launch(NamedTuple):
    """How the runs are executed. Durations are in seconds; None: no limit, or not given.

    `backends` are the places of a sweep that has several, in the order in which they are filled;
    `backend` is then all their names, for people (`tmux+slurm`), and no backend's name. Whoever
    wants to know where jobs go asks `places`.

    `python`, `requirements` and `cwd` stand as written: a relative one counts from the folder in
    which `sweeper launch` is run, not from the grid's. `requirements` is a file of what recipes
    need on machines that do not see this one's folders (None: their image has it). `warm`: a recipe
    may be forked from a process that has imported what it imports. `options` are those of backends,
    by the key of their section (`aws_batch`).
    """

    backend: str = "tmux"
    max_parallel: int = 8
    retries: int = 0
    timeout_s: float | None = None
    python: str | None = None
    cwd: str | None = None
    env: Mapping[str, str] = _NOTHING
    resume: Literal["auto", "always", "never"] = "auto"
    lease_s: float = 60.0
    grace_s: float = 30.0
    log_path_field: str | None = None
    metrics_dir: str | None = None
    window: str | None = None
    sync_s: float = 20.0
    priority: float = 1.0
    warm: bool = True
    requirements: str | None = None
    options: Mapping[str, Mapping[str, object]] = _NOTHING
    backends: tuple[Share, ...] = ()

    @property
    def shares(self) -> tuple[Share, ...]:
        """The places with what each may have; of a sweep with one backend that alone."""
        return self.backends or (Share(self.backend),)

    @property
    def places(self) -> tuple[str, ...]:
        """The names of the backends that jobs go to, in the order in which they are filled."""
        return tuple(share.backend for share in self.shares)

    def document(self) -> dict[str, object]:
        """As `sweep.json` has it: there a backend's options stand beside the rest."""
        found: dict[str, object] = {**self._asdict(), "env": dict(self.env)}
        del found["options"]
        found["backends"] = [share._asdict() for share in self.backends]
        if not self.backends:
            del found["backends"]
        return found | {key: dict(options) for key, options in self.options.items()}

    def under(self, own: Mapping[str, object]) -> "Launch":
        """This with what a stage says itself over it, as `Stage.launch` has it: variables one by
        one."""
        given = {key: value for key, value in own.items() if key in Launch._fields}
        options = {key: mine for key, mine in own.items() if key not in Launch._fields}
        env = {**self.env, **table_of(own.get("env"))}
        return self._replace(**given | {"env": env, "options": {**self.options, **options}})
