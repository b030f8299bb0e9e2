"""A job of ours as a sandbox of Modal's: a command in an image, once.

Its name is made of the sweep's folder and the token: whoever creates it again while it runs is told
that it is there, and it is found by its name when it has ended, too. Tags say which sweep that is,
of those that were in the folder, and tell which of its sandboxes run.
"""

from collections.abc import Mapping
from typing import Required, TypedDict, cast

from sweeper.backends.base import JobSpec
from sweeper.backends.identity import Identity
from sweeper.backends.modal.options import Options

__all__ = ["Names", "Sandbox", "required", "spec"]

_IDENTITY = "sweeper-identity"


class Sandbox(TypedDict, total=False):
    """What `modal.Sandbox.create` takes; its image and its secrets by their names."""

    args: Required[list[str]]
    name: Required[str]
    tags: Required[dict[str, str]]
    image: str
    secrets: list[str]
    timeout: Required[int]
    cpu: float
    memory: int
    region: list[str]
    cloud: str


class Names:
    """What the sandboxes of the sweep in `folder` are called, and found by."""

    def __init__(self, sweep: str, folder: str) -> None:
        self.sweep, self.identity = sweep, Identity(folder)

    @property
    def tags(self) -> dict[str, str]:
        """The tags that they have, and those of a sweep that was in the folder before have not. Of
        a sweep without an identity yet nothing is there: the mark alone, for a tag has a value."""
        known = self.identity.current()
        return {"sweeper": self.identity.mark, **({_IDENTITY: known} if known else {})}

    def is_ours(self, tags: Mapping[str, str]) -> bool:
        """Whether a sandbox has these tags. One whose tags somebody took away may be ours."""
        return tags.get(_IDENTITY, "") in ("", self.identity.current())

    def name(self, token: str) -> str:
        """That of the sandbox with this token."""
        return f"sweeper-{self.identity.mark}-{token}"


def spec(job: JobSpec, asked: Options, names: Names) -> Sandbox:
    """What a sandbox is made of. `asked` are the options of this run."""
    made = {
        "args": list(job.argv),
        "name": names.name(job.token),
        "tags": {**names.tags, "sweep": _tag(names.sweep), "run": _tag(job.title)},
        "image": asked.get("image"),
        "secrets": sorted(set(asked.get("secrets", {}).values())),
        "timeout": round(asked["timeout_s"]),
        "cpu": asked["cpus"],
        "memory": asked["memory"],
        "region": asked.get("region"),
        "cloud": asked.get("cloud"),
    }
    return cast(Sandbox, {key: value for key, value in made.items() if value not in (None, [])})


def _tag(text: str) -> str:
    return (
        "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in text)[:60] or "_"
    )


def required(secrets: Mapping[str, str], name: str) -> list[str]:
    """The variables that a secret of Modal's has to hold."""
    return sorted(variable for variable, secret in secrets.items() if secret == name)
