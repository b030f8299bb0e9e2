"""The built-in task prompts, and the instructions that every agent gets in addition to a task."""

import os
from importlib import resources

from sweeper.errors import UsageError

_ABOUT = """\

---

How you work here:

- You work in the folder {work}, which also holds your grids. You have {hours:g} hours; then you are
  stopped.
- sweeper's tools are connected by MCP (server `sweeper`): `recipes`, `models`, `datasets`, `power`,
  `plan`, `launch`, `wait`, `alarms`, `rollouts`, `verdict`, `record_result`, `note` and more. Their
  `grid` is the name of a YAML file that you write in your folder.
- All your launches together may use: {budget}. sweeper enforces that; `plan` shows what is left.
- Read the skill in {work}/.claude/skills/sweeper-research/SKILL.md before you begin, and
  {work}/.claude/skills/sweeper-debug/SKILL.md when something goes wrong.
- Begin with the literature, then take the recipe that is closest to the question. Measure its
  published settings first: they are the baseline of all that you try.
- Your questions will not be answered. Decide, and write down why.
- Do not end while a sweep of yours is running: `wait` for it, and read its `verdict`.
- At the end write {work}/report.md: the question, what others found, the grids, the verdicts with
  their intervals, and what was not shown.
"""
_AGAIN = """\

You were started before (this is start {number}) and ended before the work was done: {why}. Ask
`status` for your sweeps, read their notes and the files in {work}, and continue. Do not repeat what
is done.
"""


def prompt_names() -> list[str]:
    """Return the names of the built-in prompts. One of them is `template`, a template for new
    prompts."""
    folder = resources.files("sweeper.agents.start").joinpath("prompts")
    names = [entry.name.removesuffix(".md") for entry in folder.iterdir()]
    return sorted(names, key=lambda name: (name != "template", name))


def shipped_prompt(name: str) -> str:
    """Return the text of a built-in prompt. Raises `UsageError`."""
    names = prompt_names()
    if name not in names:
        raise UsageError(f"no prompt {name!r}: choose from {', '.join(names)}")
    folder = resources.files("sweeper.agents.start").joinpath("prompts")
    return folder.joinpath(f"{name}.md").read_text(encoding="utf-8")


def task_of(source: str) -> str:
    """Return the text of a task: the contents of the file `source`, or else the built-in prompt
    with the name `source`. Raises `UsageError`."""
    if not os.path.exists(source):
        if os.sep in source or "." in source:
            raise UsageError(f"--prompt {source}: no such file")
        return shipped_prompt(source)
    try:
        with open(source, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--prompt {source}: cannot be read: {error}") from error
    if not text.strip():
        raise UsageError(f"--prompt {source} is empty")
    if text == shipped_prompt("template"):
        raise UsageError(f"--prompt {source} is the unchanged template: fill it in")
    return text


def whole_prompt(task: str, work: str, hours: float, budget: str) -> str:
    """Return the whole prompt for the first start of an agent."""
    allowed = budget or "nothing (no --budget was given): only plan and read"
    return task.rstrip() + "\n" + _ABOUT.format(work=work, hours=hours, budget=allowed)


def again(prompt: str, work: str, number: int, why: str) -> str:
    """Return the prompt for a restart. `why` is the reason why the agent ended."""
    return prompt + _AGAIN.format(work=work, number=number, why=why)
