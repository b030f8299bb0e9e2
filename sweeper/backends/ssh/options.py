"""The options of machines reached by SSH (`launch.ssh`)."""

from typing import Annotated, NamedTuple

from sweeper.fields.kinds import Flag, Integer, Item, Text, Texts, wrong
from sweeper.fields.nodes import Node, Problems, kind
from sweeper.fields.options import Option, section_of
from sweeper.fields.sections import Field, Section

_NAME = r"(?!-)[A-Za-z0-9_.@:%\[\]-]{1,200}"
_HOST = Text(_NAME, "{} is not a host: a name of your ssh configuration, or user@address")
_ENTRY = Section(
    Field("host", _HOST, "A name of your ssh configuration, or user@address."),
    Field("slots", Integer(1), "How many jobs of all sweeps may run there at the same time."),
    Field("gpus", Integer(1), "The number of its GPUs that runs with `launch.gpus` may use."),
)
_EXPECTED = "a list of hosts: NAME, or {host: NAME, slots: 4, gpus: 2}"


class Host(NamedTuple):
    """A machine. `slots` is the largest number of jobs that it runs at the same time. `gpus` is the
    number of GPUs that runs may use (None: enough GPUs for all slots)."""

    host: str
    slots: int = 1
    gpus: int | None = None


class _Hosts:
    def read(self, node: Node, where: str, problems: Problems) -> list[dict[str, object]] | None:
        if not node.items:
            shown = kind(node) if node.items is None else "an empty list"
            problems.add(node.place, f"{where} is {shown}; it takes {_EXPECTED}")
            return None
        hosts: dict[str, dict[str, object]] = {}
        for number, item in enumerate(node.items):
            path = f"{where}[{number}]"
            if isinstance(item.value, str):
                name = _HOST.read(item, path, problems)
                values: dict[str, object] = {} if name is None else {"host": name}
            elif item.entries is not None:
                values = dict(_ENTRY.read(item, path, problems).values)
                if "host" not in item.entries:
                    problems.add(item.place, f"{path}: host is missing")
            else:
                wrong(item, path, _EXPECTED.removeprefix("a list of hosts: "), problems)
                continue
            name = values.get("host")
            if isinstance(name, str):
                if name in hosts:
                    problems.add(item.place, f"{path}: {name} is given twice")
                values.setdefault("slots", values.get("gpus") or 1)
                hosts[name] = values
        return list(hosts.values())

    def schema(self) -> dict[str, object]:
        """Return the JSON Schema of a list whose items are names, or mappings with the key
        `host`."""
        return {
            "type": "array",
            "minItems": 1,
            "items": {"anyOf": [_HOST.schema(), {**_ENTRY.schema(), "required": ["host"]}]},
        }


def _wrong_with_variable(name: str) -> str | None:
    good = name.isascii() and name.isidentifier()
    return None if good else f"{name[:60]!r} is not the name of a variable"


_VARIABLES = Texts(Item({"pattern": r"^[A-Za-z_][A-Za-z0-9_]*$"}, _wrong_with_variable))
_HOSTS_DOC = "The machines: names, or {host: NAME, slots: JOBS_AT_ONCE, gpus: GPUS}."
_SHARED_DOC = "Whether the machines see this machine's folders at the same paths (NFS)."
_PYTHON_DOC = "The interpreter on the machines. With shared: true, the default is the launcher's."
_SECRETS_DOC = (
    "Secrets that the launcher sends to jobs over the connection. Not needed with shared: true."
)
_CONFIG_DOC = "A configuration file for ssh, in place of ~/.ssh/config."
_FOLDER_DOC = "The folder where a machine records its jobs."


class Options(NamedTuple):
    """Options of machines reached by SSH. `python` is an interpreter on the machines."""

    hosts: Annotated[tuple[Host, ...], Option(_Hosts(), _HOSTS_DOC, ["gpu1"])] = ()
    shared: Annotated[bool, Option(Flag(), _SHARED_DOC)] = False
    python: Annotated[str | None, Option(Text(), _PYTHON_DOC, "/opt/venv/bin/python")] = None
    secrets: Annotated[tuple[str, ...], Option(_VARIABLES, _SECRETS_DOC, ["TINKER_API_KEY"])] = ()
    config: Annotated[str | None, Option(Text(), _CONFIG_DOC, "~/.ssh/sweeper")] = None
    folder: Annotated[str, Option(Text(), _FOLDER_DOC)] = "~/.cache/sweeper/ssh"


SECTION = section_of(Options)
