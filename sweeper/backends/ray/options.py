"""The options of Ray (`launch.ray`)."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, NamedTuple, Never

from sweeper.backends.secret_references import secrets_option
from sweeper.fields.kinds import Amounts, Choice, Flag, Integer, Matching, Names, Number, Text
from sweeper.fields.options import Option, section_of

_MOST = 1e6
_NONE: Mapping[str, Never] = MappingProxyType({})

_ADDRESS = Text(
    r"auto|[A-Za-z0-9_.-]+:[0-9]{1,5}|\[[0-9a-fA-F:]+\]:[0-9]{1,5}",
    "{} is not the address of a head as the cluster's nodes know it, such as "
    "10.0.0.1:6379, or `auto` to launch on a node",
)
_ADDRESS_DOC = (
    "Address of the head, as `ray start --head` prints it. Default: "
    "$RAY_ADDRESS, else this machine's head."
)
_PYTHON = Text(r"[^\x00-\x1f\x7f]{1,1000}", "{} is not an interpreter on the nodes")
_PYTHON_DOC = (
    "The nodes' interpreter, in which sweeper is installed. Default: the same path as here."
)
_AMOUNT = Number(0, _MOST)
_LABELS = Names(
    "a mapping of labels to required values",
    Matching(r"[A-Za-z0-9][A-Za-z0-9_./-]{0,250}", "a label"),
    values=Matching(
        r"!?([A-Za-z0-9_.-]{1,63}|in\([A-Za-z0-9_.,-]{1,1000}\))",
        "a label's value, !value, in(a,b) or !in(a,b)",
    ),
)
_LABELS_DOC = "Labels that a job's node must have."
_SECRETS_DOC = (
    "Variables, each with the place where a node finds its value; never the value itself."
)
_REFERENCE = Matching(
    r"env:[A-Za-z_][A-Za-z0-9_]*|file:/[^\x00-\x1f\x7f]{1,1000}",
    "env:NAME or file:/path of the node, never the value",
)
_FILES_DOC = "Whether the nodes see this machine's folders at the same paths."
_WAIT_DOC = "Whether larger nodes may be added later, by an autoscaler."


class Options(NamedTuple):
    """Options of Ray jobs. `memory` is in MiB. `secrets` maps variables to `env:NAME` or
    `file:/path`, which each node reads."""

    address: Annotated[str | None, Option(_ADDRESS, _ADDRESS_DOC, "10.0.0.1:6379")] = None
    python: Annotated[str | None, Option(_PYTHON, _PYTHON_DOC, "/opt/venv/bin/python")] = None
    num_cpus: Annotated[float, Option(_AMOUNT, "CPUs of a job.")] = 1
    num_gpus: Annotated[float | None, Option(_AMOUNT, "GPUs of a job.", 1)] = None
    memory: Annotated[int | None, Option(Integer(1), "Memory of a job, in MiB.", 8192)] = None
    resources: Annotated[
        Mapping[str, float],
        Option(Amounts(_MOST), "The cluster's custom resources.", {"fast_disk": 1}),
    ] = _NONE
    labels: Annotated[
        Mapping[str, str], Option(_LABELS, _LABELS_DOC, {"ray.io/accelerator-type": "H100"})
    ] = _NONE
    placement: Annotated[
        str, Option(Choice("pack", "spread"), "Fill nodes one by one, or spread jobs over them.")
    ] = "pack"
    files: Annotated[bool, Option(Flag(), _FILES_DOC)] = True
    wait_for_nodes: Annotated[bool, Option(Flag(), _WAIT_DOC)] = False
    secrets: Annotated[
        Mapping[str, str], secrets_option(_SECRETS_DOC, _REFERENCE, "file:/run/secrets/tinker")
    ] = _NONE


SECTION = section_of(Options)
