"""Translates shell scripts: loops around a command, and commands of GNU parallel."""

import re
import shlex
from collections.abc import Iterator

from sweeper.common.json_values import list_of
from sweeper.grid.arithmetic import Uncomputable, parse
from sweeper.grid.translation import hydra, slurm
from sweeper.grid.translation.draft import (
    Draft,
    Reference,
    Untranslatable,
    braced,
    number_or_text,
    sweep_name,
)

_STATEMENT = re.compile(
    r"""(?P<quoted>'[^']*'|"(?:\\.|[^"\\])*"|\\.|\$\(\((?:[^()]|\([^()]*\))*\)\)|\$\([^)]*\)|`[^`]*`|\$\{[^}]*\})
    |(?P<comment>(?:(?<=\s)|^)\#[^\n]*)
    |(?P<redirect>\d?>>?\s*&?[^\s;|&]+|&>>?\s*[^\s;|&]+|<\s*[^\s;|&]+)
    |(?P<end>&&|\|\||;;?|\n|&|\|)
    |(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_FOR = re.compile(r"for\s+(\w+)\s+in\s+(.*)\Z", re.DOTALL)
_ASSIGN = re.compile(r"(?:export\s+|declare\s+(?:-\w+\s+)?|local\s+)?(\w+)=(.*)\Z", re.DOTALL)
_VARIABLE = re.compile(r"\$\(\((?P<sum>(?:[^()]|\([^()]*\))*)\)\)|\$\([^)]*\)|`[^`]*`"
                       r"|\$\{(?P<array>\w+)\[(?P<index>[^\]]*)\]\}|\$\{(?P<braced>\w+)\}"
                       r"|\$(?P<name>\w+|[@*#?])|\$\{[^}]*\}")  # fmt: skip
_SEQUENCE = re.compile(r"(?:\$\(|`)\s*seq\s+([^)`]*)[)`]\Z")
_BRACES = re.compile(r"\{(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?\}\Z")
_ARRAY = re.compile(r"\"?\$\{(\w+)\[[@*]\]\}\"?\Z")
_TASKS = re.compile(r"(\d+)-(\d+)(?::(\d+))?(?:%(\d+))?\Z")
_TASK = "SLURM_ARRAY_TASK_ID"
_HELPERS = ("echo", "printf", "sleep", "wait", "mkdir", "rm", "date", "set", "ulimit", "module",
            "source", ".", "conda", "cd", "unset", "exit", "nvidia-smi", "hostname", "trap",
            "shift", "pip", "true", ":", "export", "mamba", "micromamba", "pwd", "ls",
            "shopt")  # fmt: skip
_CONDITIONS = ("if", "while", "until", "case", "elif", "else", "function", "select")


def from_shell(text: str, source: str) -> Draft:
    """Translate a script. Raises `Untranslatable`."""
    script = _Script(Draft(source, "a shell script"))
    script.read(text)
    return script.finish()


class _Script:
    """A reader of a script's statements, in order: loops, variables, and commands."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.draft.name = sweep_name("", draft.source)
        self.loops: list[tuple[str, object]] = []
        self.variables: dict[str, str] = {}
        self.arrays: dict[str, list[str]] = {}
        self.commands: list[tuple[int, str, list[tuple[str, object]]]] = []
        self.indexed: dict[str, list[str]] = {}
        self.calculated: dict[str, str] = {}
        self.used: set[str] = set()
        self.holes: dict[str, str] = {}

    def read(self, text: str) -> None:
        for number, line in enumerate(text.splitlines(), 1):
            if line.startswith("#SBATCH"):
                self._sbatch(number, shlex.split(line[7:], comments=True))
        before = ""
        for line, statement, end in _statements(text):
            if before != "|":  # The command after a pipe is left out.
                self._statement(line, statement.strip(), end)
            before = end

    def _sbatch(self, line: int, words: list[str]) -> None:
        for word in words:
            tasks = _TASKS.match(word.partition("=")[2])
            if word.startswith(("--array=", "-a=")) and tasks:
                low, high, step, most = (int(n) if n else None for n in tasks.groups())
                values = list(range(low or 0, (high or 0) + 1, step or 1))
                self.loops.append((_TASK, values))
                if most:
                    self.draft.mapping("launch")["max_parallel"] = most
                return
        slurm.add_words(self.draft, line, words)

    def _statement(self, line: int, text: str, end: str) -> None:
        text = re.sub(r"^(?:do|then|time|nohup)\b\s*", "", text).strip()
        first = text.split(None, 1)[0] if text else ""
        loop, assigned = _FOR.match(text), _ASSIGN.match(text)
        if not text or first in ("done", "fi", "esac", "{", "}"):
            if first == "done" and self.loops and self.loops[-1][0] != _TASK:
                self.loops.pop()
        elif loop:
            self.loops.append((loop[1], self._values(line, loop[2])))
        elif first in _CONDITIONS or text.endswith("()"):
            self.draft.note(
                line, f"{_cut(text)}: the commands after it are translated as if they always ran"
            )
        elif assigned and not re.search(
            r"=\S*\s+\S", re.sub(r"'[^']*'|\"[^\"]*\"|\(.*\)", "", text)
        ):
            self._assign(line, first == "export", assigned[1], assigned[2])
        elif first == "cd" and len(text.split()) == 2 and "$" not in text:
            self.draft.mapping("launch")["cwd"] = shlex.split(text)[1]
        elif first in _HELPERS:
            if first not in (
                "echo",
                "printf",
                "wait",
                "set",
                "true",
                ":",
                "sleep",
                "mkdir",
                "date",
            ):
                self.draft.note(line, f"{_cut(text)} is left out; run it before `sweeper launch`")
        else:
            self.commands.append((line, text, list(self.loops)))
            if end == "&":
                message = "`&` is left out: set launch.max_parallel to the number of parallel jobs"
                self.draft.note(line, message)
            elif end in ("|", "||"):
                self.draft.note(line, f"the command after `{end}` is left out")

    def _assign(self, line: int, exported: bool, name: str, value: str) -> None:
        if value.startswith("("):
            self.arrays[name] = shlex.split(value.strip("()"), comments=True)
            return
        text = self._text(line, value, {}) if "$" not in value else value
        words = shlex.split(text) if "$" not in value else [text.strip('"')]
        self.variables[name] = words[0] if words else ""
        if exported and "$" not in value:
            self.draft.set_variable(line, name, self.variables[name])

    def _values(self, line: int, text: str) -> object:
        """Return the values of a loop."""
        values: list[object] = []
        for piece in re.findall(r"\$\([^)]*\)|`[^`]*`|'[^']*'|\"[^\"]*\"|\S+", text):
            array, braces, sequence = (
                _ARRAY.match(piece),
                _BRACES.match(piece),
                _SEQUENCE.match(piece),
            )
            if array:
                values += map(number_or_text, self.arrays.get(array[1], []))
            elif sequence:
                values += _sequence(sequence[1])
            elif braces:
                low, high, step = int(braces[1]), int(braces[2]), abs(int(braces[3] or 1)) or 1
                values += range(low, high + 1, step) if low <= high else range(low, high - 1, -step)
            elif piece.startswith("$") and (name := piece.strip("${}")) in self.variables:
                values += map(number_or_text, self.variables[name].split())
            elif "{" in piece and "," in piece:
                start, _, rest = piece.partition("{")
                inside, _, tail = rest.partition("}")
                values += [number_or_text(f"{start}{part}{tail}") for part in inside.split(",")]
            elif re.search(r"[$`*?]", piece) and not piece.startswith("'"):
                self.draft.note(
                    line, f"{_cut(piece)} would be expanded by a shell: write its values"
                )
                values.append(piece)
            else:
                values += map(number_or_text, shlex.split(piece))
        return values

    def finish(self) -> Draft:
        """Write the command into the grid, with the loops around it as axes."""
        if not self.commands:
            raise Untranslatable("the script has no command")
        loops = max(len(command[2]) for command in self.commands)
        if not loops and len(self.commands) > 1:
            return self._each()
        line, text, axes = next(command for command in self.commands if len(command[2]) == loops)
        for other, other_text, _ in self.commands:
            if (other, other_text) != (line, text):
                message = (
                    f"{_cut(other_text)} is left out, since a grid has one command; see "
                    "`stages` in docs/grid.md"
                )
                self.draft.note(other, message)
        self._command(line, text, dict(axes))
        return self.draft

    def _each(self) -> Draft:
        """Make each command a value of one axis."""
        lists = [shlex.split(self._text(line, text, {})) for line, text, _ in self.commands]
        self.draft.command = ["{command*}"]
        self.draft.axis("command", lists)
        return self.draft

    def _command(self, line: int, text: str, axes: dict[str, object]) -> None:
        """Write one command into the grid."""
        text = self._text(line, text, axes)
        words = self._without_prefix(line, shlex.split(text))
        words, axes = _parallel(self.draft, words, axes)
        lists = {name: values for name, values in self.indexed.items() if name in axes}
        for index, names in lists.items():
            self._zip(index, names, axes)
        for name, values in axes.items():
            if name in self.used or name not in lists:
                self.draft.axis(name, values)
        self.holes |= {self.draft.hole(name): name for name in axes}
        seed = f"{{{self.draft.key('seed')}}}" if self.draft.seeds is not None else None
        final = words if seed is None else [word.replace(seed, "{seed}") for word in words]
        if hydra.is_multirun(final):
            hydra.apply_multirun(self.draft, final, line, self.holes)
        else:
            self.draft.command = final

    def _zip(self, index: str, names: list[str], axes: dict[str, object]) -> None:
        """Translate arrays with the same index variable into axes that vary together."""
        numbers = axes[index]
        taken = [n for n in list_of(numbers) if isinstance(n, int)]
        block: dict[str, object] = {}
        for name in dict.fromkeys(names):
            items = self.arrays[name]
            block[self.draft.key(name)] = [
                number_or_text(items[n]) for n in taken if n < len(items)
            ]
        if index in self.used:
            block[self.draft.key(index)] = taken
            self.used.discard(index)
        self.draft.items("zip").append(block)

    def _text(self, line: int, text: str, axes: dict[str, object]) -> str:
        """Return a command with placeholders in place of variables. Other braces are doubled."""
        parts: list[str] = []
        end = 0
        for match in _VARIABLE.finditer(text):
            before = text[end : match.start()]
            parts += [braced(before), self._replaced(line, match, axes)]
            end = match.end()
        return "".join([*parts, braced(text[end:])])

    def _replaced(self, line: int, match: re.Match[str], axes: dict[str, object]) -> str:
        name = match["name"] or match["braced"]
        if match["sum"] is not None:
            return self._sum(line, match["sum"], axes)
        if match["array"] and match["array"] in self.arrays:
            index = match["index"].strip("${}")
            if index in axes:
                self.indexed.setdefault(index, []).append(match["array"])
                return self._hole(match["array"])
        if name in axes:
            self.used.add(name)
            return self._hole(name)
        if name in self.variables:
            return (
                self._text(line, shlex.quote(self.variables[name]), axes)
                if ("$" not in self.variables[name])
                else self._text(line, self.variables[name], axes)
            )
        if name and name[0].isalpha():
            self.draft.fix_variable(line, name)
            return self._hole(name)
        self.draft.note(
            line, f"{_cut(match.group())} would be computed by a shell; {{run}} replaces it"
        )
        return "{run}"

    def _hole(self, name: str) -> str:
        hole = f"{{{self.draft.key(name)}}}"
        self.holes[hole] = name
        return hole

    def _sum(self, line: int, text: str, axes: dict[str, object]) -> str:
        """Translate the shell's integer arithmetic. Return a placeholder for the result."""
        expression = re.sub(r"\$\{?(\w+)\}?", r"\1", text).replace("/", "//").strip()
        try:
            names = parse(expression).keys
        except Uncomputable as error:
            self.draft.note(line, f"$(({text})): {error}; {{run}} replaces it")
            return "{run}"
        for name in names:
            if name in axes:
                self.used.add(name)
            elif name in self.variables:
                self.draft.fix(name, number_or_text(self.variables[name]))
        key = f"computed_{len(self.calculated) + 1}"
        key = self.calculated.setdefault(expression, key)
        self.draft.fix(key, Reference(f"${{{expression}}}"))
        return self._hole(key)

    def _without_prefix(self, line: int, words: list[str]) -> list[str]:
        """Remove the words before the program of a command, such as `nohup`. Variables and the
        options of `srun` are added to the grid."""
        while words:
            variable, _, value = words[0].partition("=")
            if re.match(r"\w+=", words[0]):
                if variable == "CUDA_VISIBLE_DEVICES":
                    self.draft.note(line, f"{words[0]}: launch.gpus gives each run its own GPUs")
                else:
                    self.draft.set_variable(line, variable, value)
                words = words[1:]
            elif words[0] in ("srun", "sbatch"):
                taken = slurm.add_words(self.draft, line, words[1:])
                rest = words[taken + 1 :]
                script = words[0] == "sbatch" and rest and not rest[0].endswith(".py")
                words = ["bash", *rest] if script else rest
            elif words[0] in ("nohup", "time", "exec"):
                words = words[1:]
            else:
                break
        if not words:
            raise Untranslatable("the script has no command")
        return words


def _statements(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the statements of a script: for each, its line, its text without comments and
    redirections, and its terminator."""
    line, begun = 1, 0
    parts: list[str] = []
    for match in _STATEMENT.finditer(text.replace("\\\n", "  \r") + "\n"):
        piece = match.group()
        if match["end"] is None:
            begun = begun or (line if piece.strip() else 0)
            if match["comment"] is None and match["redirect"] is None:
                parts.append(piece.replace("\r", ""))
        else:
            # An array may extend over several lines.
            whole = "".join(parts)
            if piece == "\n" and whole.count("(") > whole.count(")"):
                parts.append(" ")
            else:
                yield begun or line, whole, piece
                parts, begun = [], 0
        line += piece.count("\n") + piece.count("\r")


def _parallel(
    draft: Draft, words: list[str], axes: dict[str, object]
) -> tuple[list[str], dict[str, object]]:
    """Translate a command such as `parallel python x.py --lr {1} ::: 1e-3 1e-4`. Braces in `words`
    are already doubled. Return the inner command and all axes; return any other command
    unchanged."""
    if words[0] != "parallel" or ":::" not in words:
        return words, axes
    command, *lists = _split(words[1:], ":::")
    while command and command[0].startswith("-"):
        jobs = re.match(r"-(?:j|-jobs=?)(\d*)\Z", command[0])
        if jobs:
            count = jobs[1] or command.pop(1)
            draft.mapping("launch")["max_parallel"] = int(count) if count.isdigit() else 8
        command = command[1:]
    if len(command) == 1:
        command = shlex.split(command[0])
    axes = dict(axes)
    for number, values in enumerate(lists, 1):
        marks = (f"{{{{{number}}}}}", *(("{{}}",) if number == 1 else ()))
        index = next((i for i, word in enumerate(command) if any(m in word for m in marks)), None)
        if index is None:
            index = len(command)
            command.append(marks[0])
        before, mark = command[index - 1], next(m for m in marks if m in command[index])
        named = command[index].partition("=")[0] if "=" in command[index] else before
        name = (
            named.lstrip("-") if named.startswith("-") or "=" in command[index] else f"arg{number}"
        )
        command = [word.replace(mark, f"{{{draft.key(name)}}}") for word in command]
        axes[name] = [number_or_text(value) for value in values]
    return command, axes


def _split(words: list[str], mark: str) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for word in words:
        if word == mark:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _sequence(text: str) -> list[object]:
    """Return the values of `seq [first [step]] last`; for any other text, return `[text]`."""
    numbers = [number_or_text(word) for word in text.split()]
    numeric = [n for n in list_of(numbers) if isinstance(n, int | float)]
    if len(numeric) != len(numbers) or not 1 <= len(numeric) <= 3:
        return [text]
    first, step, last = [
        *([1] if len(numeric) == 1 else []),
        *numeric,
        *([] if len(numeric) == 3 else [0]),
    ]
    if len(numeric) < 3:
        step, last = 1, numeric[-1]
    if not step:
        return [text]
    count = int((last - first) / step + 1e-9) + 1
    values = [first + step * number for number in range(max(0, min(count, 10_000)))]
    return [v if isinstance(v, int) else float(f"{v:.12g}") for v in values]


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 60 else f"{text[:57]}..."
