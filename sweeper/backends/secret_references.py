"""References to secrets for jobs that do not inherit the launcher's environment.
`launch.<backend>.secrets` maps variables to the places where the platform itself keeps their
values."""

from collections.abc import Mapping

from sweeper.backends.base import BackendType
from sweeper.common.json_values import table_of
from sweeper.fields.kinds import Matching, Names
from sweeper.fields.sections import Field

_FIELD = "secrets"
NO_VALUE = r"(?!tml-|sk-|hf_|eyJ|gh[pousr]_|github_|AKIA|xox)"
"""A pattern that rejects text beginning like a token of a well-known service. For platforms where
a secret's name can look like any value."""


def secrets_field(doc: str, reference: Matching, example: str) -> Field:
    """Return the field of a backend's section. `reference` matches the platform's references to
    secrets. Other text may be a secret's value, so it is never repeated. `example` is a
    reference."""
    return Field(
        _FIELD,
        Names(
            "a mapping of variables to references, never to values",
            Matching(r"[A-Za-z_][A-Za-z0-9_]*", "a variable"),
            values=reference,
        ),
        doc,
        examples=({"TINKER_API_KEY": example},),
    )


def names_of(options: Mapping[str, object]) -> frozenset[str]:
    """Return the variables that have a reference: `Capabilities.secrets`."""
    return frozenset(table_of(options.get(_FIELD)))


def where_to_say(backend: BackendType, name: str) -> str:
    """Return how a grid says where a job finds the secret `name`; "" for a backend without
    references."""
    field = backend.section.fields.get(_FIELD)
    if field is None or not field.examples:
        return ""
    (reference,) = table_of(field.examples[0]).values()
    return f" (`launch.{backend.key}.{_FIELD}: {{{name}: {reference}}}`)"
