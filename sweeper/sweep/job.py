"""`job.json`: the work of an attempt's worker."""

from collections.abc import Mapping
from typing import Annotated, NamedTuple

from sweeper.common import codec
from sweeper.common.codec import SCHEMA, AtLeast, Default, written
from sweeper.common.json_values import table_of
from sweeper.sweep.launch_settings import Launch
from sweeper.sweep.recipe import Recipe, Snapshot, runs_anywhere


class Engine(NamedTuple):
    """One process of an engine: its address, and when it was started."""

    url: str
    started: str


class Job(NamedTuple):
    """The job of an attempt.

    `settings` are the `launch` settings of the run, without the options of backends. Their
    `requirements` is a file of the snapshot from which the recipe's environment is made. `env_file`
    is the file with the environment, to which `settings.env` is added. `wandb` are variables that
    name the run's trackers. `fields` are added to the configuration. `engine` is the engine that
    the attempt uses, if it uses one of ours. `launch` is the id of the launch whose record says
    what the attempt runs. `first` is the earliest attempt whose files this one may start from."""

    run: str
    attempt: Annotated[int, AtLeast(1)]
    name: str
    seed: int | None
    config: Mapping[str, object]
    recipe: Recipe
    cwd: str
    snapshot: Snapshot | None
    settings: Annotated[Launch, Default(Launch())]
    env_file: str | None
    secrets: Annotated[tuple[str, ...], Default(())]
    wandb: Annotated[Mapping[str, str], Default({})]
    fields: Annotated[Mapping[str, str], Default({})]
    engine: Engine | None
    launch: str | None = None
    first: int = 1

    def document(self) -> dict[str, object]:
        """Return the object as written in the store."""
        return {"schema": SCHEMA, **written(self)}


def read(document: object, place: str) -> Job:
    """Read the job in the file `place`. Raises `StoreError`."""
    job = codec.read(Job, document, place)
    runs_anywhere(table_of(document).get("recipe"), place, "recipe")
    return job


class _Engine(NamedTuple):
    engine: Engine | None


def read_engine(document: object, place: str) -> Engine | None:
    """Read the engine of the job in the file `place`. Raises `StoreError`."""
    return codec.read(_Engine, document, place).engine


class _Tokens(NamedTuple):
    tokens: list[str]


def read_tokens(document: object, place: str) -> list[str]:
    """Read a job array's table, the file `place`: the token of each job. Raises `StoreError`."""
    return codec.read(_Tokens, document, place).tokens
