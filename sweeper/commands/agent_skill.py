"""`sweeper agent skill`: prints or installs the skill that teaches coding agents to use sweeper."""

import os
import sys
from argparse import ArgumentParser, Namespace

from sweeper.agents.skill import NAME, agents_text, skill_text
from sweeper.commands import arguments as shared
from sweeper.common.atomic import atomic_write
from sweeper.errors import UsageError
from sweeper.terminal import say


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper agent skill`."""
    install = shared.group(verb, "where to install")
    install.add_argument(
        "--install",
        metavar="DIR",
        help="install it below this folder, such as .claude/skills (default: print it)",
    )
    install.add_argument("--force", action="store_true", help="overwrite a different file")
    shared.group(verb, shared.OUTPUT).add_argument(
        "--agents-md", action="store_true", help="print AGENTS.md of sweeper's repository instead"
    )


def run(arguments: Namespace) -> int:
    """Print the skill, or write it into the folder where agents find it."""
    text = agents_text() if arguments.agents_md else skill_text()
    if arguments.agents_md and arguments.install is not None:
        raise UsageError("--agents-md prints: what is installed is the skill")
    if arguments.install is None:
        sys.stdout.write(text)
        return 0
    folder = os.path.join(arguments.install, NAME)
    path = os.path.join(folder, "SKILL.md")
    try:
        if os.path.lexists(path) and not arguments.force:
            with open(path, encoding="utf-8", errors="replace") as file:
                if file.read() == text:
                    say(f"{path} exists already")
                    return 0
            raise UsageError(f"{path} is there, and is another: --force replaces it")
        os.makedirs(folder, exist_ok=True)
        atomic_write(path, text.encode(), mode=0o666)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror})") from error
    say(f"wrote {path}")
    return 0
