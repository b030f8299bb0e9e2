"""The description of the backend for machines reached by SSH. The backend's other modules are
loaded only when they are used."""

from collections.abc import Iterable, Mapping, Set

from sweeper.backends.base import Backend, BackendType, Capabilities, Check, Leftover
from sweeper.backends.ssh.options import SECTION, Host, Options
from sweeper.errors import UsageError
from sweeper.fields.options import read_options

__all__ = ["BACKEND"]


def _read(options: Mapping[str, object]) -> Options:
    ssh_options = {key: value for key, value in options.items() if key not in ("gpus", "per_gpu")}
    read = read_options(Options, ssh_options, "launch.ssh")
    if not read.hosts:
        raise UsageError("launch.ssh.hosts is missing: it lists the machines, as in [gpu1, gpu2]")
    return read


def _open(sweep: str, folder: str, options: Mapping[str, object]) -> Backend:
    from sweeper.backends.ssh.backend import SshBackend

    del sweep  # The folder identifies the sweep.
    read = _read(options)
    capacity = {host.host: _capacity(host, options) for host in read.hosts}
    return SshBackend(folder, read, capacity, _python(read))


def _capacity(host: Host, options: Mapping[str, object]) -> int:
    """Return the largest number of parallel jobs on a host, limited by its slots and GPUs."""
    gpus, shared = options.get("gpus"), options.get("per_gpu", 1)
    if not isinstance(gpus, int) or not isinstance(shared, int) or host.gpus is None:
        return host.slots
    return min(host.slots, host.gpus * shared // gpus)


def _python(options: Options) -> str:
    import sys

    return options.python or (sys.executable if options.shared else "python3")


def _capabilities(options: Mapping[str, object]) -> Capabilities:
    read = _read(options)
    python = _python(read) if read.python or not read.shared else None
    secrets = frozenset[str]() if read.shared else frozenset(read.secrets)
    return Capabilities(here=False, files=read.shared, python=python, secrets=secrets)


def _leftovers(folder: str, over: Set[str], well: Set[str]) -> Iterable[Leftover]:
    from sweeper.backends.ssh.backend import leftovers

    del over
    return leftovers(folder, well, _open)


def _checks(options: Mapping[str, object]) -> Iterable[Check]:
    from sweeper.backends.ssh.backend import SshBackend

    def reach() -> str:
        read = _read(options)
        capacity = {host.host: _capacity(host, options) for host in read.hosts}
        return SshBackend("/", read, capacity, _python(read)).check()

    return [Check("hosts", True, reach)]


BACKEND = BackendType(
    "ssh",
    "Machines reached by SSH, without a scheduler: docs/machines.md.",
    _open,
    SECTION,
    pins_gpus=True,
    capabilities=_capabilities,
    checks=_checks,
    leftovers=_leftovers,
)
