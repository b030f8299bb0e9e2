"""Shows the jobs that a launch would submit, in the backend's own format: YAML or plain text. The
backend is not contacted."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from sweeper.backends import backend_type, every_backend, options_of
from sweeper.backends.base import Manifest
from sweeper.errors import UsageError
from sweeper.grid.overrides import flow
from sweeper.launcher.launch_preview import LaunchPreview, job_builder, jobs
from sweeper.launcher.manifest import secret_names
from sweeper.launcher.preflight import admit
from sweeper.store.base import Store

_SEVERAL = (
    "as if all runs went there; a launch gives each place its share (`--backend` shows one alone)"
)
_NONE = "its jobs have no manifests"

_PLAIN = re.compile(r"(?!(?:y|n|yes|no|on|off|true|false|null)\Z)[A-Za-z][A-Za-z0-9_./-]*\Z", re.I)


def manifests(found: LaunchPreview, store: Store) -> Iterator[Manifest | str]:
    """Manifests of all runs that a launch would start, in the batches in which they would be
    submitted. If there are several places, each is shown after a remark, as if all runs went there,
    because the place of a run is chosen only when it starts. Raises `UsageError` if no place has a
    format of its own, or if offline checks would refuse the launch."""
    plan = found.plan
    launch = plan.launch
    if all(backend_type(place).manifests is None for place in launch.places):
        others = ", ".join(one.name for one in every_backend() if one.manifests is not None)
        raise UsageError(
            f"--manifest: jobs of {' and '.join(launch.places)} have no manifests: `--json` shows "
            f"each job; {others} have some"
        )
    admit(launch, store, plan.service, secret_names(plan.secrets, plan.service), live=False)
    builder = job_builder(found, store)
    for share in launch.shares:
        kind = backend_type(share.backend)
        if launch.backends:
            yield f"{kind.name}: {_SEVERAL if kind.manifests is not None else _NONE}"
        if kind.manifests is not None:
            specs = list(jobs(found, builder, kind.name).values())
            most = min(share.max_parallel or launch.max_parallel, launch.max_parallel)
            batches = [specs[start : start + most] for start in range(0, len(specs), most)]
            folder, options = f"{store.root}/{plan.name}", options_of(launch, kind.name)
            yield from kind.manifests(plan.name, folder, options, batches)


def text(manifest: Manifest | str) -> Iterator[str]:
    """The lines of a manifest (a document becomes YAML that begins with `---`) or of a remark."""
    if isinstance(manifest, str):
        yield f"# {manifest}"
        return
    if isinstance(manifest.content, str):
        yield f"# {manifest.about}"
        yield from manifest.content.splitlines()
        return
    yield "---"
    yield f"# {manifest.about}"
    yield from _block(manifest.content, "")


def _block(value: object, indent: str) -> Iterator[str]:
    """The lines of a non-empty mapping or list. Every string value is quoted, so that all versions
    of YAML read it as a string."""
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
