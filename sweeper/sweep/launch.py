"""How a sweep's runs are executed: the section `launch` as plans and stages hold it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal, NamedTuple, Never

from sweeper.common.codec import AtLeast, Check, Rest, Sparse, written
from sweeper.common.json_values import table_of

_NOTHING: Mapping[str, Never] = MappingProxyType({})


class Share(NamedTuple):
    """A backend of a sweep, by name, and the most jobs at once there (None: the sweep's limit)."""

    backend: str
    max_parallel: Annotated[int | None, AtLeast(1)] = None


class Launch(NamedTuple):
    """How the runs are executed. Durations are in seconds; None means no limit, or not given.

    If a sweep has several backends, `backends` has them in the order in which they are filled.
    `backend` is then their names joined for people (`tmux+slurm`), not the name of a backend: use
    `places` to find where jobs go.

    `python`, `requirements` and `cwd` are as written. Relative paths start at the folder where you
    run `sweeper launch`, not at the grid's. `requirements` is a file with the recipe's packages for
    machines that do not see this machine's folders (None: their image has them). `gpus` is the
    number of devices of each run (0: none are pinned); `per_gpu` runs share one. `warm` says
    whether a recipe may be forked from a process that has already imported its packages. `options`
    are those of backends, by the key of their section (`aws_batch`).
    """

    backend: str = "tmux"
    max_parallel: Annotated[int, AtLeast(1)] = 8
    retries: Annotated[int, AtLeast(0)] = 0
    timeout_s: Annotated[float | None, AtLeast(0)] = None
    python: str | None = None
    cwd: str | None = None
    env: Mapping[str, str] = _NOTHING
    resume: Literal["auto", "always", "never"] = "auto"
    lease_s: Annotated[float, AtLeast(0)] = 60.0
    grace_s: Annotated[float, AtLeast(0)] = 30.0
    log_path_field: str | None = None
    metrics_dir: str | None = None
    window: str | None = None
    sync_s: Annotated[float, AtLeast(0)] = 20.0
    priority: Annotated[float, Check((0.0).__lt__, "more than 0")] = 1.0
    warm: bool = True
    requirements: str | None = None
    gpus: Annotated[int, AtLeast(0)] = 0
    per_gpu: Annotated[int, AtLeast(1)] = 1
    options: Rest[Mapping[str, Mapping[str, object]]] = _NOTHING
    backends: Sparse[tuple[Share, ...]] = ()

    @property
    def shares(self) -> tuple[Share, ...]:
        """The backends with their limits."""
        return self.backends or (Share(self.backend),)

    @property
    def places(self) -> tuple[str, ...]:
        """The names of the backends that jobs go to, in the order in which they are filled."""
        return tuple(share.backend for share in self.shares)

    def document(self) -> dict[str, object]:
        """Return the form in `sweep.json`, where backends' options are among the other keys."""
        return written(self)

    def for_worker(self) -> "Launch":
        """Return the settings without those of backends."""
        return self._replace(backends=(), options=_NOTHING)

    def under(self, own: Mapping[str, object]) -> "Launch":
        """Return these settings overridden by a stage's settings, given in the form of
        `Stage.launch`. Environment variables are overridden one by one."""
        given = {key: value for key, value in own.items() if key in Launch._fields}
        options = {key: mine for key, mine in own.items() if key not in Launch._fields}
        env = {**self.env, **table_of(own.get("env"))}
        return self._replace(**given | {"env": env, "options": {**self.options, **options}})
