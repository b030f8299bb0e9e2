"""The settings for executing a sweep's runs: the section `launch` of a grid, as stored in plans."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal, NamedTuple, Never

from sweeper.common.codec import AtLeast, AtMost, Check, Rest, Sparse, written
from sweeper.common.json_values import table_of

_NOTHING: Mapping[str, Never] = MappingProxyType({})
_MOST_PER_GPU = 8
"""The largest `per_gpu`. This and all smaller numbers divide the number of bytes in a device's
lock file (`common/gpus.py`)."""
_PER_GPU_DOC = "How many runs may share a GPU. Needs gpus: 1."
_PARALLEL_DOC = "The largest number of jobs at the same time."
_PYTHON_DOC = (
    "The recipe's interpreter: a command, or a path relative to the folder where you run"
    " `sweeper launch`."
)
_REQUIREMENTS_DOC = (
    "A requirements file with the packages of recipes, for machines that do not see this machine's"
    " folders. Its path is relative to the folder where you run `sweeper launch`. By default, the"
    " machines' image must contain these packages and sweeper."
)
_CWD_DOC = (
    "The folder that the recipe runs in, relative to the folder where you run `sweeper launch`."
)
_RESUME_DOC = (
    "Whether an attempt starts from an earlier attempt's files; auto: if these have a checkpoint."
)
_LEASE_DOC = "Seconds without a heartbeat before a worker counts as lost; at least 15s."
_GRACE_DOC = "Seconds between the request to stop (SIGTERM) and SIGKILL."
_FIELD_DOC = "The recipe's field for the run's folder, if its name is not log_path."
_METRICS_DOC = (
    "The folder with the metrics, if it is not the run's folder, such as '{log_path}/run'. A recipe"
    " then needs no log_path field."
)
_WINDOW_DOC = 'A text such as "{lora_rank}". Runs with the same resulting text share a window.'
_PANES_DOC = (
    "The largest number of runs in a window, each in a pane. Default: 12 if window is set; else"
    " each run has its own window."
)
_SYNC_DOC = "The time between uploads of the runs' files to a remote store; at least 1s."
_PRIORITY_DOC = (
    "The sweep's weight when an account's slots are divided among sweeps: 2 gets twice as much as"
    " 1."
)
_WARM_DOC = (
    "Whether runs on this machine may be forked from a process that has already imported their"
    " modules."
)
_GPUS_DOC = "How many GPUs each run gets. Runs wait until enough are free."

_MODELS_DOC = (
    "Whether a grid is refused if its service does not list one of its models. "
    "With false, there is only a warning."
)


class Setting:
    """A description of a setting in a grid's section `launch`: a sentence for users, an example
    value, and whether a stage may override the setting. A `Setting` annotates a field of
    `Launch`."""

    def __init__(self, doc: str, example: object = None, *, by_stage: bool = False) -> None:
        self.doc, self.example, self.by_stage = doc, example, by_stage


MOST_PANES = 12
"""The default number of panes in a window. In a window of 200 x 50 characters, each of 12 panes
has 50 x 16; 12 panes still fit a terminal of 80 x 24."""


class Share(NamedTuple):
    """One of a sweep's backends, and the largest number of jobs that this backend runs at the same
    time (None: the sweep's limit)."""

    backend: str
    max_parallel: Annotated[int | None, AtLeast(1)] = None


class Launch(NamedTuple):
    """The settings for executing runs. Durations are in seconds; None means no limit, or not set.
    The fields define the grid's section `launch` (`sweeper/grid/launch.py`).

    If a sweep has several backends, `backends` lists them in the order in which they get jobs, and
    `backend` is only a text for display (`tmux+slurm`). `places` always has the backends' names.

    Runs with the same `window` share a terminal window, with a pane for each run. A window with
    `window_panes` panes is full, and the next runs get another window. If only `window_panes` is
    set, all runs of the sweep, or of each stage, share windows.

    `python`, `requirements` and `cwd` are stored as written in the grid. Relative paths start at
    the folder where you run `sweeper launch`, not at the grid's folder. `requirements` is a file
    with the recipe's packages, for machines that do not see this machine's folders (None: the
    machines' image has the packages). `gpus` is the number of devices of each run (0: none are
    reserved); `per_gpu` runs share one device. `warm` says whether a recipe may be forked from a
    process that has already imported the recipe's packages. With `debug`, the recipe runs under
    pdb, on the terminal of its job (`launch --debug`; grids cannot set it). `options` maps section
    names of backends (`aws_batch`) to options.
    """

    backend: Annotated[str, Setting("Where jobs execute.")] = "tmux"
    max_parallel: Annotated[int, AtLeast(1), Setting(_PARALLEL_DOC, by_stage=True)] = 8
    retries: Annotated[
        int, AtLeast(0), Setting("How many times a failed run is retried.", by_stage=True)
    ] = 0
    timeout_s: Annotated[
        float | None,
        AtLeast(0),
        Setting("An attempt that takes longer is stopped.", "2h", by_stage=True),
    ] = None
    python: Annotated[str | None, Setting(_PYTHON_DOC, ".venv/bin/python", by_stage=True)] = None
    cwd: Annotated[str | None, Setting(_CWD_DOC, ".", by_stage=True)] = None
    env: Annotated[
        Mapping[str, str],
        Setting("Environment variables of the runs.", {"HF_HUB_OFFLINE": "1"}, by_stage=True),
    ] = _NOTHING
    resume: Annotated[Literal["auto", "always", "never"], Setting(_RESUME_DOC, by_stage=True)] = (
        "auto"
    )
    lease_s: Annotated[float, AtLeast(0), Setting(_LEASE_DOC)] = 60.0
    grace_s: Annotated[float, AtLeast(0), Setting(_GRACE_DOC, by_stage=True)] = 30.0
    log_path_field: Annotated[str | None, Setting(_FIELD_DOC, "log_dir", by_stage=True)] = None
    metrics_dir: Annotated[str | None, Setting(_METRICS_DOC, "{log_path}/run")] = None
    window: Annotated[str | None, Setting(_WINDOW_DOC, "{lora_rank}", by_stage=True)] = None
    window_panes: Annotated[
        int | None, AtLeast(1), AtMost(100), Setting(_PANES_DOC, 4, by_stage=True)
    ] = None
    sync_s: Annotated[float, AtLeast(0), Setting(_SYNC_DOC)] = 20.0
    priority: Annotated[float, Check((0.0).__lt__, "more than 0"), Setting(_PRIORITY_DOC)] = 1.0
    warm: Annotated[bool, Setting(_WARM_DOC, by_stage=True)] = True
    requirements: Annotated[
        str | None, Setting(_REQUIREMENTS_DOC, "requirements.txt", by_stage=True)
    ] = None
    gpus: Annotated[int, AtLeast(0), Setting(_GPUS_DOC, 1, by_stage=True)] = 0
    per_gpu: Annotated[
        int, AtLeast(1), AtMost(_MOST_PER_GPU), Setting(_PER_GPU_DOC, by_stage=True)
    ] = 1
    check_models: Annotated[Sparse[bool], Setting(_MODELS_DOC)] = True
    debug: Sparse[bool] = False
    options: Rest[Mapping[str, Mapping[str, object]]] = _NOTHING
    backends: Sparse[tuple[Share, ...]] = ()

    @property
    def shares(self) -> tuple[Share, ...]:
        """The backends with their limits."""
        return self.backends or (Share(self.backend),)

    @property
    def places(self) -> tuple[str, ...]:
        """The names of the backends, in the order in which they get jobs."""
        return tuple(share.backend for share in self.shares)

    def document(self) -> dict[str, object]:
        """Return the JSON object for `sweep.json`. The names of the backends' sections, such as
        `aws_batch`, are keys of this object."""
        return written(self)

    def for_worker(self) -> "Launch":
        """Return these settings without the settings of backends."""
        return self._replace(backends=(), options=_NOTHING)

    def under(self, stage: Mapping[str, object]) -> "Launch":
        """Return these settings, overridden by the settings of a stage (`Stage.launch`). The
        stage's environment variables are added to these settings' variables."""
        overrides = {key: value for key, value in stage.items() if key in Launch._fields}
        options = {key: settings for key, settings in stage.items() if key not in Launch._fields}
        env = {**self.env, **table_of(stage.get("env"))}
        return self._replace(**overrides | {"env": env, "options": {**self.options, **options}})
