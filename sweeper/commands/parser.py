"""The parser of the command line, which is built from the verbs, with help and error messages."""

import functools
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NoReturn

from sweeper.commands import PARENTS, VERBS, load, parts
from sweeper.common.light_argparse import argparse

_REPEATABLE = ("overrides", "runs", "sweeps")
"""Names of positional arguments that may be given any number of times."""
_OPTIONAL = ("sweep", "text", "recipe")
"""Names of positional arguments that may be left out, in the order on the command line."""
_UNKNOWN_VERB = r"argument (VERB|\{.*?\}): invalid choice: '(.*?)'"
_EPILOG = """\
exit codes: 0 done, 1 a bug in sweeper, 2 usage or a bad grid, 3 some runs failed, 4 not finished
(launch --wait and status), 5 not found, 6 the environment, 130 interrupted"""


def parse(words: list[str]) -> argparse.Namespace:
    """Parse a command line. Unlike plain argparse, accept optional and repeated positional
    arguments after options, as in `launch grid.yaml --wait max_steps=5`."""
    command = None
    if words[:1] == ["run"] and "--" in words:
        # argparse would take words of the user's command as options.
        end = words.index("--")
        words, command = words[:end], words[end + 1 :]
    top = parser(words)
    arguments, rest = top.parse_known_args(words)
    if command is not None:
        arguments.command = command
    for name in _OPTIONAL:
        if rest and not rest[0].startswith("-") and getattr(arguments, name, "") is None:
            setattr(arguments, name, rest.pop(0))
    lists = (name for name in _REPEATABLE if isinstance(getattr(arguments, name, None), list))
    repeatable = next(lists, None)
    if rest and (repeatable is None or any(word.startswith("-") for word in rest)):
        arguments.parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if repeatable is not None:
        getattr(arguments, repeatable).extend(rest)
    vars(arguments).pop("parser")  # verbs see only their own arguments
    return arguments


def parser(words: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """Build the parser. To save milliseconds, build only the parts that the command line `words`
    needs. If the first word is a verb, leave the other verbs out. If it is not, add all verbs, but
    declare arguments only for the verbs in `words`."""
    top = _Parser(
        prog="sweeper",
        usage="sweeper [-h] [--version] [--completion SHELL] VERB ...",
        description="Experiment sweeps for people who post-train language models.\n\n" + _verbs(),
        epilog=_EPILOG,
        formatter_class=_Formatter,
    )
    top.add_argument("--version", action=_Version)
    top.add_argument("--completion", action=_Completion, choices=("bash", "zsh", "fish"))
    verbs = top.add_subparsers(
        dest="verb", required=True, metavar="VERB", prog="sweeper", help=argparse.SUPPRESS
    )
    first = words[0] if words else None
    names = [name for name in VERBS if " " not in name]
    for name in (first,) if first in names else names:
        verb = _add(verbs.add_parser, name, name)
        if words is None or name in words:
            _declare(verb, name)
    return top


def _add(
    add: Callable[..., argparse.ArgumentParser], name: str, whole: str
) -> argparse.ArgumentParser:
    entry = VERBS[whole]
    verb = add(
        name,
        help=entry.summary,
        description=f"{entry.summary[0].upper()}{entry.summary[1:]}.",
        epilog=f"example: {entry.example}",
        formatter_class=_Help,
        add_help=False,
        allow_abbrev=False,
    )
    verb.set_defaults(parser=verb)
    return verb


def _declare(verb: argparse.ArgumentParser, whole: str) -> None:
    from sweeper.commands.arguments import help_option

    if whole not in PARENTS:
        load(whole).add_arguments(verb)
    if parts(whole):
        _add_parts(verb, whole)
    help_option(verb)


def _add_parts(verb: argparse.ArgumentParser, name: str) -> None:
    """Add the parsers of verbs with two words whose first word is `name`."""
    seconds = verb.add_subparsers(
        dest="part",
        title="actions",
        required=name in PARENTS,
        metavar=f"{{{','.join(parts(name))}}}",
        prog=f"sweeper {name}",
    )
    before = [action.dest for action in verb._actions]  # pyright: ignore[reportPrivateUsage]
    for second, whole in parts(name).items():
        part = _add(seconds.add_parser, second, whole)
        _declare(part, whole)
        # Keep an option that precedes the second word: `sweeper doctor --root R notify SWEEP`.
        for action in part._actions:  # pyright: ignore[reportPrivateUsage]
            if action.dest in ("root", "json") and action.dest in before:
                action.default = argparse.SUPPRESS


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """A formatter that finds the terminal's width without `shutil`, which is slow to import."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_columns() - 2)


@functools.cache
def _columns() -> int:
    setting = os.environ.get("COLUMNS", "")
    if setting.isdecimal() and int(setting):
        return int(setting)
    with suppress(AttributeError, OSError, ValueError):
        if columns := os.get_terminal_size(sys.stdout.fileno()).columns:
            return columns
    return 80


class _Help(_Formatter):
    """A formatter whose usage line shows `[options]` instead of each option."""

    def add_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: object,
        prefix: str | None = None,
    ) -> None:
        del groups
        self._prog += " [options]"
        positional = [action for action in actions if not action.option_strings]
        super().add_usage(usage, positional, (), prefix)


class _Parser(argparse.ArgumentParser):
    """A parser whose error messages suggest a similar verb or option."""

    def error(self, message: str) -> NoReturn:
        from sweeper.fields.kinds import nearest

        verb = re.match(_UNKNOWN_VERB, message)
        options = [word for action in self._actions for word in action.option_strings]
        if verb is not None:
            names = [name for name in VERBS if " " not in name]
            if verb[1] != "VERB":
                names = list(parts(self.prog.rpartition(" ")[2]))
            kind = "verb " if verb[1] == "VERB" else ""
            message = f"no {kind}{verb[2]!r}; see {self.prog} --help{nearest(verb[2], names)}"
        elif message.startswith("unrecognized arguments: "):
            words = [word.partition("=")[0] for word in message.split()[2:] if word[:2] == "--"]
            message += next(filter(None, (nearest(word, options) for word in words)), "")
            if self.prog.endswith(" run"):
                message += "; put options of the command after --"
        super().error(message)


def _verbs() -> str:
    groups: dict[str, list[str]] = {}
    for name, entry in VERBS.items():
        if " " not in name:
            groups.setdefault(entry.heading, []).append(f"  {name:<13}{entry.summary}")
    return "\n\n".join("\n".join([f"{title}:", *lines]) for title, lines in groups.items())


class _Version(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the version")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from sweeper import __version__

        print(f"sweeper {__version__}")
        parser.exit()


class _Completion(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, choices: Sequence[str]) -> None:
        super().__init__(
            option_strings,
            dest,
            choices=choices,
            help="print shell code for Tab completion; for bash, write "
            '`eval "$(sweeper --completion bash)"` into ~/.bashrc',
        )

    def __call__(self, parser: argparse.ArgumentParser, *values: object) -> None:
        from sweeper.commands.completion import shell_code

        print(shell_code(str(values[1])))
        parser.exit()
