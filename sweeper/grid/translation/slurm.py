"""Translates options of sbatch to `launch.slurm`."""

import re

from sweeper.backends.slurm.options import TEXTS
from sweeper.fields.kinds import duration_text
from sweeper.grid.translation.draft import Draft

_SHORT = {
    "p": "partition", "A": "account", "q": "qos", "C": "constraint", "t": "time", "J": "job-name",
    "c": "cpus-per-task", "o": "output", "e": "error", "a": "array", "n": "ntasks", "N": "nodes",
    "G": "gpus", "D": "chdir", "w": "nodelist", "x": "exclude", "d": "dependency",
}  # fmt: skip
_OURS = ("job-name", "output", "error", "array", "chdir", "open-mode", "export", "requeue",
         "signal", "parsable", "wrap", "comment", "wait", "input", "no-requeue")  # fmt: skip
_EXTRA = ("nodes", "ntasks", "gpus", "gpus-per-node", "gpus-per-task", "mem-per-cpu", "mem-per-gpu",
          "exclude", "nodelist", "exclusive", "ntasks-per-node", "mail-type", "mail-user",
          "reservation", "nice", "licenses", "cpus-per-gpu", "dependency")  # fmt: skip
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?\Z")
_OPTION = re.compile(r"--?([A-Za-z][A-Za-z-]*)(?:=(.*))?\Z", re.DOTALL)


def add_option(draft: Draft, line: int, name: str, value: object) -> None:
    """Add an option of sbatch to `launch.slurm`. Add a remark for an option that a grid does not
    support."""
    launch = draft.mapping("launch")
    launch["backend"] = "slurm"
    options = launch.setdefault("slurm", {})
    assert isinstance(options, dict)  # noqa: S101 - made here
    name = _SHORT.get(name, name).replace("_", "-")
    text = str(value)
    if name in TEXTS:
        options[name] = value if isinstance(value, int) else text
    elif name == "cpus-per-task" and text.isdigit():
        options["cpus"] = int(text)
    elif name == "time" and (limit := _duration(text)) is not None:
        options["time"] = limit
    elif name in _EXTRA:
        suffix = "" if value in (None, "", True) else f"={text}"
        options["extra"] = [*options.get("extra", []), f"--{name}{suffix}"]  # pyright: ignore[reportUnknownMemberType]
    elif name in _OURS:
        draft.note(line, f"--{name} is set by sweeper for each job")
    else:
        draft.note(line, f"--{name} {text} has no key in launch.slurm; try launch.slurm.extra")


def add_words(draft: Draft, line: int, words: list[str]) -> int:
    """Add the options of sbatch with which `words` begins. Return the number of words used."""
    index = 0
    while index < len(words) and (match := _OPTION.match(words[index])):
        name, value = match.groups()
        index += 1
        if value is None and words[index - 1][1] != "-" and len(name) > 1:
            name, value = name[0], name[1:]  # as in -pgpu
        elif value is None and index < len(words) and not words[index].startswith("-"):
            value = words[index] if _takes_value(name) else None
            index += value is not None
        add_option(draft, line, name, value)
    return index


def _takes_value(name: str) -> bool:
    return _SHORT.get(name, name) not in ("exclusive", "requeue", "no-requeue", "parsable", "wait")


def _duration(text: str) -> str | None:
    """Return a Slurm time limit (`2-00:00:00`, `90`) as in a grid (`2d`); None for other texts."""
    match = _TIME.match(text)
    if match is None:
        return None
    days, *rest = match.groups()
    numbers = [int(part) for part in rest if part is not None]
    if days is not None:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
    elif len(numbers) == 3:
        hours, minutes, seconds = numbers
    else:
        hours, (minutes, seconds) = 0, [*numbers, 0][:2]
    total = ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
    return duration_text(max(60, total))
