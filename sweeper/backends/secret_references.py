"""References to secrets, for jobs that do not inherit the launcher's environment. The option
`launch.<backend>.secrets` maps each variable to a reference, which tells the platform where the
variable's value is."""

from sweeper.backends.base import BackendType
from sweeper.common.json_values import table_of
from sweeper.fields.kinds import Matching, Names
from sweeper.fields.options import Option

_FIELD = "secrets"
NO_VALUE = r"(?!tml-|sk-|hf_|eyJ|gh[pousr]_|github_|AKIA|xox)"
"""A pattern that rejects text that begins like a token of a well-known service. For platforms where
the name of a secret can look like a value."""


def secrets_option(doc: str, reference: Matching, example: str) -> Option:
    """Return the option `secrets` of a backend. `reference` matches the platform's references to
    secrets, such as `example`. Messages never repeat text that does not match, since a user may
    have written the secret itself."""
    return Option(
        Names(
            "a mapping of variables to references, never to values",
            Matching(r"[A-Za-z_][A-Za-z0-9_]*", "a variable"),
            values=reference,
        ),
        doc,
        {"TINKER_API_KEY": example},
    )


def where_to_say(backend: BackendType, name: str) -> str:
    """Return a hint for the end of a message: the setting of a grid that passes the secret `name`
    to jobs of the backend. Return an empty string if the backend has no option `secrets`."""
    field = backend.section.fields.get(_FIELD)
    if field is None or not field.examples:
        return ""
    references = [*table_of(field.examples[0]).values()]
    value = f"{{{name}: {references[0]}}}" if references else f"[{name}]"
    return f" (`launch.{backend.key}.{_FIELD}: {value}`)"
