"""Describes a job as a Modal sandbox: a command in an image, executed once. The sandbox's name
contains a hash of the sweep's folder and the token. Tags distinguish the sweeps that used the
folder."""

from collections.abc import Mapping
from typing import Required, TypedDict, cast

from sweeper.backends.base import JobSpec
from sweeper.backends.identity import Identity
from sweeper.backends.modal.options import Options

_IDENTITY = "sweeper-identity"


class Sandbox(TypedDict, total=False):
    """Arguments of `modal.Sandbox.create`. `image` is an image's address in a registry, and
    `secrets` are names of secrets at Modal."""

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
    """Names and tags for the sandboxes of one sweep."""

    def __init__(self, sweep: str, folder: str) -> None:
        self.sweep, self.identity = sweep, Identity(folder)

    @property
    def tags(self) -> dict[str, str]:
        """The tags of this sweep's sandboxes: a hash of the folder and, after the first submission,
        the sweep's identity, which distinguishes the sweep from earlier sweeps in the folder."""
        identity = self.identity.current()
        return {"sweeper": self.identity.folder_hash, **({_IDENTITY: identity} if identity else {})}

    def is_ours(self, tags: Mapping[str, str]) -> bool:
        """Return whether a sandbox with these tags belongs to this sweep. A sandbox without tags
        counts as ours."""
        return tags.get(_IDENTITY, "") in ("", self.identity.current())

    def name(self, token: str) -> str:
        return f"sweeper-{self.identity.folder_hash}-{token}"


def spec(job: JobSpec, options: Options, names: Names) -> Sandbox:
    """Return the arguments of a job's sandbox. `options` are the job's options."""
    arguments = {
        "args": list(job.argv),
        "name": names.name(job.token),
        "tags": {**names.tags, "sweep": _tag(names.sweep), "run": _tag(job.title)},
        "image": options.image,
        "secrets": sorted(set(options.secrets.values())),
        "timeout": round(options.timeout_s),
        "cpu": options.cpus,
        "memory": options.memory,
        "region": list(options.region),
        "cloud": options.cloud,
    }
    return cast(
        Sandbox, {key: value for key, value in arguments.items() if value not in (None, [])}
    )


def _tag(text: str) -> str:
    return (
        "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in text)[:60] or "_"
    )


def required(secrets: Mapping[str, str], name: str) -> list[str]:
    """Return the variables that the Modal secret `name` must contain."""
    return sorted(variable for variable, secret in secrets.items() if secret == name)
