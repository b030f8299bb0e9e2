"""`job.json`: tells a worker what to do in an attempt."""

from collections.abc import Mapping
from typing import Annotated, NamedTuple

from sweeper.common import codec
from sweeper.common.codec import SCHEMA, AtLeast, Default, written
from sweeper.common.json_values import table_of
from sweeper.sweep.launch_settings import Launch
from sweeper.sweep.recipe import Recipe, Snapshot, runs_anywhere


class Engine(NamedTuple):
    """One process of an engine: its address and the time of its start."""

    url: str
    started: str


class Job(NamedTuple):
    """The contents of `job.json`.

    `settings` are the `launch` settings of the run, without the options of backends.
    `settings.requirements` is a file in the copy of the code; it lists the recipe's packages.
    The run's environment variables come from the file `env_file`, overridden by `settings.env`.
    `wandb` has the variables for the run's trackers. `fields` are added to the recipe's
    configuration. `engine` is the local engine that the attempt uses (None: no local engine).
    `launch` is the id of the launch whose code the attempt runs. The attempt never resumes from
    attempts before `first`.
    """

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
        """Return the JSON object to store."""
        return {"schema": SCHEMA, **written(self)}


def read(document: object, place: str) -> Job:
    """Return the job in `document`, the content of the file `place`. Raises `StoreError`."""
    job = codec.read(Job, document, place)
    runs_anywhere(table_of(document).get("recipe"), place, "recipe")
    return job


class _Engine(NamedTuple):
    engine: Engine | None


def read_engine(document: object, place: str) -> Engine | None:
    """Return the engine of the job in `document`, the content of the file `place`; None if the job
    uses no local engine. Raises `StoreError`."""
    return codec.read(_Engine, document, place).engine


class _Tokens(NamedTuple):
    tokens: list[str]


def read_tokens(document: object, place: str) -> list[str]:
    """Return the tokens of the jobs of a job array. `document` is the content of the file `place`.
    Raises `StoreError`."""
    return codec.read(_Tokens, document, place).tokens
