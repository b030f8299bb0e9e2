"""`job.json`: the work of an attempt's worker."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from sweeper.common.document_reader import SCHEMA, Part
from sweeper.sweep.launch import Launch
from sweeper.sweep.recipe import Recipe, Snapshot, read_recipe, read_snapshot, runs_anywhere


class Engine(NamedTuple):
    """One process of an engine: its address, and when it was started."""

    url: str
    started: str


class Job(NamedTuple):
    """The work of an attempt. Durations are in seconds; None means no limit.

    `env` is the environment from the grid, `env_file` the file with the rest of it. `wandb` are
    variables that make W&B continue its run, `fields` are added to the configuration. `engine` is
    the engine that the attempt uses, if it uses one of ours. `warm` says whether a fork server may
    start the recipe. `requirements` is a file of the snapshot, from which the recipe's environment
    is made. `launch` is the id of the launch whose record says what the attempt runs. `first` is
    the earliest attempt whose files this one may start from.
    """

    run: str
    attempt: int
    name: str
    seed: int | None
    config: Mapping[str, object]
    recipe: Recipe
    cwd: str
    snapshot: Snapshot | None
    env: Mapping[str, str]
    metrics_dir: str | None
    env_file: str | None
    secrets: tuple[str, ...]
    timeout_s: float | None
    grace_s: float
    resume: Literal["auto", "always", "never"]
    sync_s: float
    wandb: Mapping[str, str]
    fields: Mapping[str, str]
    engine: Engine | None
    warm: bool = False
    requirements: str | None = None
    launch: str | None = None
    first: int = 1

    def document(self) -> dict[str, object]:
        """Return the value in its stored form."""
        return {
            "schema": SCHEMA,
            **self._asdict(),
            "config": dict(self.config),
            "recipe": self.recipe.document(),
            "snapshot": self.snapshot and self.snapshot.document(),
            "env": dict(self.env),
            "wandb": dict(self.wandb),
            "fields": dict(self.fields),
            "engine": self.engine and self.engine._asdict(),
        }


def read(document: object, place: str) -> Job:
    """Read the job in the file `place`. Raises `StoreError`."""
    job = Part(document, place)
    attempt = job.integer_or("attempt", 0)
    if attempt < 1:
        job.refuse("attempt", "1 or more")
    runs_anywhere(job.part("recipe"))
    default = Launch()
    return Job(
        run=job.text("run"),
        attempt=attempt,
        name=job.text("name"),
        seed=job.integer_or("seed", None),
        config=job.part("config").document,
        recipe=read_recipe(job.part("recipe")),
        cwd=job.text("cwd"),
        snapshot=read_snapshot(job.part_or_none("snapshot")),
        env=job.texts_by_key("env"),
        metrics_dir=job.text_or("metrics_dir", None),
        env_file=job.text_or("env_file", None),
        secrets=tuple(job.texts_or("secrets", ())),
        timeout_s=job.number_or("timeout_s", None),
        grace_s=job.number_or("grace_s", default.grace_s),
        resume=job.one_of("resume", ("auto", "always", "never"), default.resume),
        sync_s=job.number_or("sync_s", default.sync_s),
        wandb=job.texts_by_key("wandb"),
        fields=job.texts_by_key("fields"),
        engine=_engine(job),
        warm=job.flag_or("warm", False),
        requirements=job.text_or("requirements", None),
        launch=job.text_or("launch", None),
        first=job.integer_or("first", 1),
    )


def read_engine(document: object, place: str) -> Engine | None:
    """Read the engine of the job in the file `place`. Raises `StoreError`."""
    return _engine(Part(document, place))


def _engine(job: Part) -> Engine | None:
    part = job.part_or_none("engine")
    return None if part is None else Engine(part.text("url"), part.text("started"))


def read_tokens(document: object, place: str) -> list[str]:
    """Read the table of a job array in the file `place`: the token of each job. Raises
    `StoreError`."""
    top = Part(document, place)
    tokens = top.texts_or("tokens", None)
    return top.refuse("tokens", "a list of texts") if tokens is None else tokens
