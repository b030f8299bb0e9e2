"""What a launch would hand to a backend, in the backend's own format: YAML, or a text of its own.
The backend is not asked for anything."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from sweeper.backends import backend_type, every_backend, options_of
from sweeper.backends.base import Manifest
from sweeper.errors import UsageError
from sweeper.grid.overrides import flow
from sweeper.launcher.launch_preview import LaunchPreview, jobs
from sweeper.launcher.manifest import secret_names
from sweeper.launcher.preflight import admit
from sweeper.storage.files import Store

__all__ = ["manifests", "text"]

_PLAIN = re.compile(r"(?!(?:y|n|yes|no|on|off|true|false|null)\Z)[A-Za-z][A-Za-z0-9_./-]*\Z", re.I)


def manifests(found: LaunchPreview, store: Store) -> Iterator[Manifest]:
    """Of every run that a launch would start, were it at the first place: what is submitted at
    once goes together. Raises `UsageError` where the backend has no format of its own, and where
    a launch would be refused, as far as that can be known without asking anybody."""
    plan = found.plan
    launch, place = plan.launch, plan.launch.places[0]
    kind = backend_type(place)
    if kind.manifests is None:
        others = ", ".join(one.name for one in every_backend() if one.manifests is not None)
        raise UsageError(
            f"--manifest: {place} starts its jobs by itself and has no manifests: `--json` shows "
            f"each job; {others} have some"
        )
    admit(launch, store, plan.service, secret_names(plan.secrets, plan.service), live=False)
    specs, most = list(jobs(found, store).values()), launch.max_parallel
    batches = [specs[start : start + most] for start in range(0, len(specs), most)]
    folder = f"{store.root}/{plan.name}"
    yield from kind.manifests(plan.name, folder, options_of(launch, place), batches)


def text(manifest: Manifest) -> Iterator[str]:
    """The lines of a manifest: of a document as YAML, which begins with `---`."""
    if isinstance(manifest.content, str):
        yield f"# {manifest.about}"
        yield from manifest.content.splitlines()
        return
    yield "---"
    yield f"# {manifest.about}"
    yield from _block(manifest.content, "")


def _block(value: object, indent: str) -> Iterator[str]:
    """A mapping or a list that is not empty, each entry in lines of its own. Every string is in
    quotes, so that YAML of any version reads it as one."""
    if isinstance(value, Mapping):
        for key, inner in cast("Mapping[str, object]", value).items():
            name = key if _PLAIN.match(key) else flow(key)
            if _is_flat(inner):
                yield f"{indent}{name}: {flow(inner)}"
            else:
                yield f"{indent}{name}:"
                yield from _block(inner, f"{indent}  ")
        return
    for inner in cast("Sequence[object]", value):
        first, *rest = [f"  {flow(inner)}"] if _is_flat(inner) else _block(inner, "  ")
        yield f"{indent}- {first[2:]}"
        yield from (f"{indent}{line}" for line in rest)


def _is_flat(value: object) -> bool:
    return isinstance(value, str) or not isinstance(value, Mapping | Sequence) or not value
