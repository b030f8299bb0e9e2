"""`sweeper run`: starts commands as runs of a sweep, without a grid file."""

import itertools
import os
import re
import secrets
import shlex
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence

from sweeper.commands import arguments as shared
from sweeper.commands import launch
from sweeper.errors import GridError, UsageError
from sweeper.sweep.names import is_sweep_name

_HOLES = re.compile(r"\{\{(log_path|run|attempt|seed)\}\}")
_SETTING = re.compile(r"~?launch\.|seeds=")
_GPUS = ("gpus", "num_gpus")
_MAX_BYTES = 1_000_000
_EXAMPLE = "sweeper run [options] -- python train.py --lr 1e-4"


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper run`. The command after `--` is not declared: it is
    removed before the arguments are parsed."""
    options = shared.group(verb, "what to run")
    options.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="key=value",
        help="a setting, written before the `--`: launch.retries=2, for example, or seeds=3 with "
        "{seed} in the command",
    )
    options.add_argument(
        "--each",
        metavar="FILE",
        help="run each line of a file, or of standard input (-), as a command",
    )
    options.add_argument(
        "--name", help="the sweep's name (default: the program's name and a random suffix)"
    )
    options.add_argument(
        "--service", choices=("local", "tinker", "none"), help="the model service (default: none)"
    )
    options.add_argument(
        "--secret",
        action="append",
        metavar="VARIABLE",
        help="pass this environment variable to the runs; repeatable",
    )
    options.add_argument("--wandb", metavar="PROJECT", help="log to this project of W&B")
    launch_options = shared.launch_options(verb)
    launch_options.add_argument("--gpus", type=int, metavar="N", help="GPUs of each job")
    launch.add_options(verb)
    waiting = shared.group(verb, "waiting")
    waiting.add_argument(
        "-f", "--follow", action="store_true", help="print the output of the runs until they end"
    )
    verb.set_defaults(command=None, no_validate=False)
    verb.usage = "sweeper run [options] [key=value ...] -- COMMAND ..."


def run(arguments: Namespace) -> int:
    """Start the commands. With `--follow`, also print their output, and return the exit code of
    the sweep."""
    if arguments.follow and (arguments.wait or arguments.json):
        raise UsageError("-f does not work with --wait or --json")
    if (arguments.command is None) == (arguments.each is None):
        message = "give either a command or --each" if arguments.command else "no command"
        raise UsageError(f"{message}; the command follows --, as in: {_EXAMPLE}")
    for override in arguments.overrides:
        if not _SETTING.match(override):
            raise UsageError(
                f"{override[:80]!r}: only launch.KEY=VALUE and seeds=N can be set; the command "
                f"follows --, as in: {_EXAMPLE}"
            )
    arguments.grid = _grid(arguments)
    arguments.overrides = [*_gpus(arguments), *arguments.overrides]
    try:
        code = launch.run(arguments)
    except GridError as error:
        raise GridError([_named_by_option(problem) for problem in error.problems]) from error
    return _followed(arguments) if arguments.follow and not code else code


def _grid(arguments: Namespace) -> dict[str, object]:
    if arguments.each is None:
        commands = [[_escaped(word) for word in arguments.command]]
        grid: dict[str, object] = {"command": commands[0]}
    else:
        commands = _lines(arguments.each)
        grid = {"command": ["{command*}"], "grid": {"command": commands}}
    grid["name"] = arguments.name or _fresh_name(commands[0])
    grid |= {"service": arguments.service} if arguments.service else {}
    grid |= {"secrets": arguments.secret} if arguments.secret else {}
    grid |= {"wandb": {"project": arguments.wandb}} if arguments.wandb else {}
    return grid


def _escaped(word: str) -> str:
    """Escape braces for use in a grid's command, but keep the placeholders `{log_path}`, `{run}`,
    `{attempt}` and `{seed}`."""
    return _HOLES.sub(r"{\1}", word.replace("{", "{{").replace("}", "}}"))


def _lines(name: str) -> list[list[str]]:
    """Return the commands in a file with one command per line. Raises `GridError` with all
    mistakes."""
    text, source = _read(name)
    commands: dict[tuple[str, ...], int] = {}
    problems: list[str] = []
    for number, line in lines_of(text):
        try:
            words = tuple(split_line(line))
        except NeedsShell as error:
            problems.append(f"{source}:{number}: {error}: quote it, or write sh -c '...'")
            continue
        if words in commands:
            first = commands[words]
            problems.append(f"{source}:{number}: the same command as on line {first}; use seeds=2")
        elif words:
            commands[words] = number
    if problems:
        raise GridError(problems)
    if not commands:
        raise GridError([f"{source}: no command; write one per line"])
    return [list(words) for words in commands]


def _read(name: str) -> tuple[str, str]:
    """Return the text of a file or of standard input, and the name for it in messages."""
    source = "standard input" if name == "-" else name
    try:
        if name == "-":
            data = sys.stdin.buffer.read(_MAX_BYTES + 1)
        else:
            with open(name, "rb") as file:
                data = file.read(_MAX_BYTES + 1)
        text = data.decode()
    except OSError as error:
        raise UsageError(f"cannot read {source}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{source}: not UTF-8 text") from error
    if len(data) > _MAX_BYTES:
        raise UsageError(f"{source}: more than {_MAX_BYTES} bytes")
    return text, source


def _fresh_name(command: Sequence[str]) -> str:
    """Return a name for a new sweep: the name of the command's script, module or program (`run` if
    that name is not valid), and a random suffix."""
    scripts = [word for word in command if word.endswith((".py", ".sh"))]
    modules = [word for flag, word in itertools.pairwise(command) if flag == "-m"]
    word = next(iter([*scripts, *modules]), command[0] if command else "")
    stem = os.path.splitext(os.path.basename(word))[0] if word not in modules else word
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", stem)[:60].strip("-_")
    name = f"{stem}-{secrets.token_hex(3)}"
    return name if is_sweep_name(name) else f"run-{secrets.token_hex(3)}"


def _gpus(arguments: Namespace) -> list[str]:
    """Convert `--gpus` to an override of a setting in `launch`. Return [] without `--gpus`."""
    if arguments.gpus is None:
        return []
    from sweeper.backends import backend_type

    backend = backend_type(arguments.backend or "tmux")
    if backend.pins_gpus:
        return [f"launch.gpus={arguments.gpus}"]
    for option in _GPUS:
        if option in backend.section.fields:
            return [f"launch.{backend.key}.{option}={arguments.gpus}"]
    message = f"--gpus: the backend {backend.name} has no such option"
    options = ", ".join(backend.section.fields)
    more = f"; set launch.{backend.key}.KEY=VALUE, where KEY is one of {options}" if options else ""
    raise UsageError(f"{message}{more}")


def _named_by_option(problem: str) -> str:
    return re.sub(r"^(name|command): (?=\1: )", "", problem).replace("name: ", "--name: ", 1)


def _followed(arguments: Namespace) -> int:
    """Print the output of the runs until they have ended. Return the sweep's exit code; 130 after
    Ctrl-C."""
    from sweeper.commands import logs
    from sweeper.commands.waiting import tell_failed
    from sweeper.results.waiting import wait
    from sweeper.store.opening import default_root
    from sweeper.sweep.hint import hint
    from sweeper.sweep.states import State
    from sweeper.terminal import warn

    root = arguments.root or default_root()
    verb = ArgumentParser()
    logs.add_arguments(verb)
    options = verb.parse_args([arguments.sweep, "--follow", "--root", root])
    try:
        logs.run(options)
        status = wait(arguments.sweep, root=root)
    except KeyboardInterrupt:
        cancel = hint("cancel", arguments.sweep, root=arguments.root)
        warn(f"interrupted: {arguments.sweep} continues to run; `{cancel}` stops it")
        return 130
    tell_failed(arguments.sweep, root, status.counts.get(State.FAILED, 0))
    return status.exit_code


_PIECE = re.compile(
    r"""'[^']*'                      # quoted
    |"(?:\\.|[^"\\])*"               # quoted, with variables
    |\\.                             # one escaped character
    |(?P<comment>(?:(?<=\s)|^)\#.*)
    |(?P<expands>\{[^{}\s]*(?:,|\.\.)[^{}\s]*\}|(?:(?<=[\s=])|^)~(?=/))
    |(?P<shell>[|&;<>()$`*?])
    |[^'"\\]""",
    re.VERBOSE | re.DOTALL,
)
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


class NeedsShell(Exception):
    """Raised for a line that only a shell understands, and for a line with an incomplete quotation
    or escape. The message names the reason."""


def split_line(line: str) -> list[str]:
    """Split a line into the words of a command. If the line begins with variables (`A=1 python
    x.py`), the first word is `env`, a program that sets them. Raises `NeedsShell`."""
    pieces: list[str] = []
    end = 0
    for match in _PIECE.finditer(line):
        if match.start() != end:
            break
        end = match.end()
        piece = match.group()
        if match["comment"] is not None:
            continue
        if piece.startswith('"') and (expanded := re.search(r"(?<!\\)[$`]", piece)):
            raise NeedsShell(f"{expanded.group()!r} in {piece[:40]} needs a shell")
        if (special := match["shell"] or match["expands"]) is not None:
            raise NeedsShell(f"{special[:40]!r} needs a shell")
        pieces.append(re.sub(r"\\([$`])", r"\1", piece) if piece.startswith('"') else piece)
    try:
        if end < len(line):
            raise ValueError("No closing quotation")
        words = shlex.split("".join(pieces))
    except ValueError as error:
        raise NeedsShell(f"not a command: {str(error).lower()}") from error
    return ["env", *words] if words and _ASSIGNMENT.match(words[0]) else words


def lines_of(text: str) -> Iterator[tuple[int, str]]:
    r"""Yield (number, line) for each line of a text. A line that ends in `\` continues on the
    next line."""
    number, begun = 0, ""
    for index, line in enumerate(text.splitlines(), 1):
        number = number if begun else index
        if line.endswith("\\"):
            begun += line[:-1] + " "
            continue
        yield number, begun + line
        begun = ""
    if begun:
        yield number, begun
