"""The skills that teach coding agents to do research with sweeper and to debug sweeps."""

import os
from importlib import resources

from sweeper.common.atomic import atomic_write
from sweeper.errors import UsageError

NAME = "sweeper-research"
SKILLS = {NAME: "SKILL.md", "sweeper-debug": "DEBUG.md"}
"""{name of a skill: its file}."""
ARC = """\
1. Write down the question, what you expect, the baseline and what counts as success before
   anything runs (`note` on the first sweep, or notes/plan.md).
2. Run the baseline first: the simplest configuration that could answer, with 3 seeds or more.
   `plan` it and read what would run, what it costs and what was run before. Then `launch` it.
3. `wait`, and look at `alarms` early. Cancel a run that has gone wrong.
4. Read `rollouts` of the best and of the worst run before you believe a metric.
5. Ask for the `verdict`. One seed against one seed shows nothing, and "tied" is not a win.
6. Change one thing, in a grid of its own, against the baseline, with the same seeds and data.
7. Check each claim with `record_result` before you make it. If it is not shown, say so.
8. `note` what you expected, what you saw and what follows, even if nothing worked.
"""


def skill_text(name: str = NAME) -> str:
    """Return the text of the skill `name`."""
    return _text(SKILLS[name])


def install(name: str, place: str, *, force: bool = False) -> tuple[str, bool]:
    """Write a skill into `place`, a folder where agents look for skills. Return the path of the
    file, and whether the file was written. Without `force`, an existing file is kept. Raises
    `UsageError` if the kept file has other content, or if writing fails."""
    text = skill_text(name)
    folder = os.path.join(place, name)
    path = os.path.join(folder, "SKILL.md")
    try:
        if os.path.lexists(path) and not force:
            with open(path, encoding="utf-8", errors="replace") as file:
                if file.read() == text:
                    return path, False
            raise UsageError(f"{path} exists with other content: --force replaces it")
        os.makedirs(folder, exist_ok=True)
        atomic_write(path, text.encode(), mode=0o666)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror})") from error
    return path, True


def agents_text() -> str:
    """Return the text of AGENTS.md, the instructions for agents that use or change sweeper."""
    return _text("AGENTS.md")


def _text(name: str) -> str:
    return resources.files("sweeper.agents").joinpath(name).read_text(encoding="utf-8")
