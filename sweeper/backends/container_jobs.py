"""Code shared by backends that run jobs in containers on other machines: fields of a grid, checks
of the image, capabilities, exit codes, and one-line messages from the platform."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from sweeper.backends.base import Capabilities
from sweeper.errors import UsageError
from sweeper.fields import config_file
from sweeper.fields.kinds import Item, Text, Texts
from sweeper.fields.options import Option, read_options
from sweeper.fields.sections import Reading

LINE = Text(r"[^\x00-\x1f\x7f]{1,1000}", "{} has several lines")
PYTHON = Option(LINE, "The image's interpreter, in which sweeper is installed.")
_DIGEST = "@sha256:"
_SIGNALS = range(129, 193)
T = TypeVar("T", bound=tuple[Any, ...])


class _Options(Protocol):
    @property
    def python(self) -> str: ...
    @property
    def secrets(self) -> Mapping[str, str]: ...


def image_option(doc: str) -> Option:
    """Return an option whose value is the address of a container image."""
    address = Text(r"[A-Za-z0-9][A-Za-z0-9_.:/@-]{0,1023}", "{} is not an image's address")
    return Option(address, doc, "REGISTRY/sweeper@sha256:DIGEST")


def texts_matching(pattern: str, called: str, *, least: int = 0, most: int = 100) -> Texts:
    """Return the type of a list of `least` to `most` strings that all match `pattern`. `called` is
    the noun for such a string in messages, for example "name of a secret"."""

    def wrong_with(text: str) -> str | None:
        return None if re.fullmatch(pattern, text) else f"{text[:60]!r} is not a {called}"

    return Texts(Item({"pattern": f"^{pattern}$"}, wrong_with), least=least, most=most)


def check_same_for_all_runs(reading: Reading, keys: Sequence[str]) -> None:
    """Report a problem if an entry of `overrides` sets one of `keys`."""
    for key in keys if "if" in reading.entries else ():
        if key in reading.entries:
            reading.problem(key, (f"{reading.path(key)} must be the same for all runs of a sweep"))


def options_with_image(
    options: type[T],
    plan_options: Mapping[str, object],
    backend: str,
    example: str = "IMAGE",
    other_key: str = "",
) -> T:
    """Read a plan's options into the type `options`. Raises `UsageError` if the plan has neither
    `image` nor the option `other_key`. `example` is an image for the error message."""
    if plan_options.get("image") is None and plan_options.get(other_key) is None:
        other = f" (or {other_key})" if other_key else ""
        raise UsageError(
            f"{backend}: no image is given: write `launch: "
            f'{{{backend}: {{image: {example}}}}}`{other} in the grid, or image = "{example}" '
            f"below [{backend}] in {config_file.file()}"
        )
    return read_options(options, plan_options, f"launch.{backend}")


def capabilities(options: _Options, *credentials: str) -> Capabilities:
    """Return the capabilities of jobs that run on other machines and share no files with this
    machine. `credentials` are the variables for the launcher's login."""
    return Capabilities(
        here=False,
        files=False,
        python=options.python,
        secrets=frozenset(options.secrets),
        credentials=credentials,
    )


def require_digest(image: str) -> str:
    """Return the image's address if it has a digest. Raises `LookupError` otherwise."""
    if _DIGEST not in image:
        raise LookupError(
            f"the image {image} may change while a sweep runs: give its digest, as in "
            f"NAME{_DIGEST}HEX"
        )
    return image


def process_exit_code(code: int) -> int:
    """Convert a container's exit code to Python's: 137 (128 + signal 9) becomes -9. Codes that
    stand for no signal, such as 1 and 255, stay the same."""
    return 128 - code if code in _SIGNALS else code


def line_of(message: object) -> str:
    """Shorten a platform's message about a failure to one line of at most 300 characters."""
    return " ".join(str(message).split())[:300]


def reason_of(message: object) -> str | None:
    """Return the reason why a job waits or ended, shortened to one line of at most 200 characters.
    Return None for an empty reason."""
    return " ".join(str(message or "").split()).removesuffix(":")[:200] or None
