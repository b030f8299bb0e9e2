"""The options of Modal (`launch.modal`)."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, NamedTuple

from sweeper.backends import container_jobs
from sweeper.backends.secret_references import NO_VALUE, secrets_option
from sweeper.fields.kinds import Duration, Integer, Matching, Number, Text
from sweeper.fields.options import Option, section_of
from sweeper.fields.sections import Reading

_OF_ALL = ("app", "environment", "image", "python", "secrets")
_WORD = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"
_NOT_MODALS_OWN = r"(?!a[ks]-)"
_PLACE = r"[a-z][a-z0-9-]{0,40}"
_DAY = 24 * 3600.0

_NAME = Text(_WORD, "{} is not a name at Modal: letters, digits, - _ and .")
_CLOUD = Text(_PLACE, "{} is not a cloud: aws, gcp, oci")
_REGIONS = container_jobs.texts_matching(_PLACE, "region: us, eu-west", least=1)
_SECRET = Matching(
    NO_VALUE + _NOT_MODALS_OWN + _WORD, "the name of a secret at Modal, never the value"
)
_SECRETS_DOC = "Variables, each with the secret that contains its value."
_CLOUD_DOC = "The cloud where jobs run. With this option, jobs may be preempted."
_REGION_DOC = "Regions where jobs may run. With this option, jobs may be preempted."
_TIMEOUT_DOC = "Modal's time limit for a job, at most 24h; launch.timeout is the worker's."


class Options(NamedTuple):
    """Options of Modal jobs. `memory` is in MiB. `secrets` maps variables to names of secrets."""

    image: Annotated[
        str | None, container_jobs.image_option("An image in a registry that contains sweeper.")
    ] = None
    secrets: Annotated[Mapping[str, str], secrets_option(_SECRETS_DOC, _SECRET, "tinker")] = (
        MappingProxyType({})
    )
    app: Annotated[str, Option(_NAME, "The app that the sandboxes belong to.")] = "sweeper"
    environment: Annotated[
        str | None, Option(_NAME, "Modal's environment. Default: the account's.", "research")
    ] = None
    python: Annotated[str, container_jobs.PYTHON] = "python"
    cpus: Annotated[float, Option(Number(0, 64, above=True), "CPUs of a job.")] = 1
    memory: Annotated[int, Option(Integer(128), "Memory of a job, in MiB.")] = 2048
    region: Annotated[tuple[str, ...], Option(_REGIONS, _REGION_DOC, ["us-east"])] = ()
    cloud: Annotated[str | None, Option(_CLOUD, _CLOUD_DOC, "aws")] = None
    timeout_s: Annotated[float, Option(Duration(60), _TIMEOUT_DOC)] = _DAY


def _check(reading: Reading) -> None:
    container_jobs.check_same_for_all_runs(reading, _OF_ALL)
    limit = reading.values.get("timeout_s")
    if limit is not None and limit > _DAY:
        reading.problem("timeout", f"{reading.path('timeout')}: a sandbox lasts at most 24h")


SECTION = section_of(Options, check=_check)
