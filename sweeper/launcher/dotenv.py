"""Reads secrets that are not in the environment from the file `.env` beside the grid."""

import os
import re
from collections.abc import Callable, Iterator, Sequence

from sweeper.errors import UsageError

_NAME = ".env"
_LARGEST = 1_000_000
_LINE = re.compile(
    r"""\s*(?:export\s+)?(?P<name>[A-Za-z_]\w*)\s*=\s*
    (?:'(?P<single>[^']*)'|"(?P<double>[^"]*)"|(?P<plain>[^#'"\s][^#]*?|))\s*(?:\#.*)?\Z""",
    re.VERBOSE | re.ASCII,
)


def load_secrets(grid_path: str, names: Sequence[str], tell: Callable[[str], None]) -> None:
    """Set those of the secrets `names` that this process's environment lacks and the file has.
    `tell` gets a line that says which, without values. Raises `UsageError` for a file or a line
    that cannot be read."""
    path = os.path.join(os.path.dirname(os.path.abspath(grid_path)), _NAME)
    missing = {name for name in names if not os.environ.get(name)}
    if not grid_path or not missing or not os.path.isfile(path):
        return
    values = {name: value for name, value in _values(path, missing) if value}
    os.environ.update(values)
    if values:
        tell(f"from {path}: {', '.join(sorted(values))}")


def _values(path: str, wanted: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the wanted names with their values."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read(_LARGEST).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from error
    for number, line in enumerate(lines, start=1):
        match = _LINE.match(line)
        if match is None:
            name = line.partition("=")[0].strip().removeprefix("export ").strip()
            if name in wanted:
                raise UsageError(f"{path}:{number}: {name} should be NAME=value, or in quotes")
        elif match["name"] in wanted:
            kinds = (match[kind] for kind in ("single", "double", "plain"))
            yield match["name"], next(value for value in kinds if value is not None)
