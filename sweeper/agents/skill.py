"""The skill that teaches coding agents to do research with sweeper."""

from importlib import resources

NAME = "sweeper-research"
ARC = """\
1. Write down the question, what you expect, what is to be beaten and what would count as success,
   before anything runs (`note` on the first sweep, or notes/plan.md).
2. The baseline first: the simplest configuration that could answer, with 3 seeds or more. `plan` it
   and read what would run, what it costs and what was run before. Launch it.
3. `wait`; look at `alarms` early. Cancel what cannot be right rather than pay for it.
4. Read `rollouts` of the best and of the worst run before you believe a metric.
5. Ask for the `verdict`. One seed against one seed shows nothing; "tied" means tied.
6. Change one thing, in a grid of its own, against the baseline; the same seeds, the same data.
7. `record_result` checks a claim before you make it. Where it is not shown, say so.
8. `note` what was expected, what was seen and what follows, also where nothing worked.
"""


def skill_text() -> str:
    """Return the skill's text."""
    return _text("SKILL.md")


def agents_text() -> str:
    """Return the repository's AGENTS.md, which tells agents how to work with sweeper or on it. In
    the repository this path is a link to it, in a wheel a copy."""
    return _text("AGENTS.md")


def _text(name: str) -> str:
    return resources.files("sweeper.agents").joinpath(name).read_text(encoding="utf-8")
