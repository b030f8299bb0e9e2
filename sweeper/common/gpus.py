"""Division of this machine's GPUs among runs. A run's file locks on GPUs last as long as any
process of the run lives, so a killed run releases the GPUs. Workers load this module, so it
imports only the standard library."""

import fcntl
import os
import stat
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

_FOLDER = "/tmp/sweeper-gpus"  # noqa: S108 - all users of the machine share it
_SHARES = 840
"""The number of bytes of a device's lock file. This number is divisible by every number of runs
that may share one device. Each run locks its share of the bytes. So runs with different `per_gpu`
exclude each other if their shares overlap."""
_TOOL = "nvidia-smi"
_TOOL_SECONDS = 20.0
_AGE_SECONDS = 5.0
"""Seconds that an answer of nvidia-smi stays valid."""
_LOCK = "hhqqi4x"  # the layout of Linux's struct flock
VISIBLE = "CUDA_VISIBLE_DEVICES"


class Device(NamedTuple):
    """A GPU: its number in the order of the PCI bus, its identifier, and whether a process
    computes on the GPU."""

    number: int
    uuid: str
    used: bool = False


class Taken(NamedTuple):
    """The numbers of the devices that a run has locked, and the open lock files."""

    numbers: tuple[int, ...]
    files: tuple[int, ...]

    @property
    def text(self) -> str:
        """The numbers of the devices, such as `0,1`, or `waiting` if there are none."""
        return ",".join(map(str, self.numbers)) or "waiting"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that let a program see only these devices."""
        return {VISIBLE: self.text, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

    def touch(self) -> None:
        """Update the times of the lock files. (Some programs remove old files from /tmp.)"""
        for file in self.files:
            with suppress(OSError):
                os.utime(file)

    def release(self) -> None:
        """Close the lock files. The devices are free after the run's processes have closed these
        files too."""
        for file in self.files:
            with suppress(OSError):
                os.close(file)


NONE_YET = Taken((), ())


class Gpus:
    """The GPUs that `environment` makes visible. `count` is the number of devices for each run, and
    `per_gpu` is the number of runs that share a device."""

    def __init__(self, count: int, per_gpu: int, environment: Mapping[str, str]) -> None:
        self._count, self._share = count, _SHARES // per_gpu
        self._environment = environment
        self._devices: list[Device] = []
        self._queried_at = float("-inf")

    def devices(self) -> list[Device]:
        """Return the visible devices, as of up to 5 seconds ago. Raises `LookupError`."""
        if time.monotonic() >= self._queried_at + _AGE_SECONDS:
            self._devices = _visible(self._environment)
            self._queried_at = time.monotonic()
        return self._devices

    def check(self) -> list[Device]:
        """Return the visible devices. Raises `LookupError` if a run needs more devices."""
        devices = self.devices()
        if len(devices) < self._count:
            visible = f" ({VISIBLE}={chosen})" if (chosen := self._environment.get(VISIBLE)) else ""
            raise LookupError(
                f"`launch.gpus` is {self._count}, but this machine has only {len(devices)}{visible}"
            )
        return devices

    def free(self) -> int:
        """Return how many more runs can start now. Raises `LookupError`."""
        slots = 0
        for device in self.devices():
            file = _open(_FOLDER, device.uuid)
            try:
                if self._is_ours(file, device):
                    slots += sum(_test(file, start, self._share) for start in self._starts())
            finally:
                os.close(file)
        return slots // self._count

    def take(self) -> Taken | None:
        """Lock devices for a run and return them; None if too few are free. Raises
        `LookupError`."""
        taken: list[tuple[int, int]] = []
        for device in self._emptiest():
            file = _open(_FOLDER, device.uuid)
            if not self._is_ours(file, device) or not self._locks(file, device):
                os.close(file)
                continue
            os.set_inheritable(file, True)
            taken.append((device.number, file))
            if len(taken) == self._count:
                taken.sort()
                return Taken(tuple(i for i, _ in taken), tuple(f for _, f in taken))
        Taken((), tuple(file for _, file in taken)).release()
        return None

    def _emptiest(self) -> list[Device]:
        """Return the devices, those with the fewest runs first."""
        held: dict[int, int] = {}
        for device in self.check():
            file = _open(_FOLDER, device.uuid)
            held[device.number] = sum(
                not _test(file, start, self._share) for start in self._starts()
            )
            os.close(file)
        return sorted(self._devices, key=lambda device: (held[device.number], device.number))

    def _locks(self, file: int, device: Device) -> bool:
        locked = any(_lock(file, start, self._share) for start in self._starts())
        return locked and _is_at(file, _FOLDER, device.uuid)

    def _starts(self) -> range:
        return range(0, _SHARES - self._share + 1, self._share)

    @staticmethod
    def _is_ours(file: int, device: Device) -> bool:
        """Return whether sweeper's runs may use the device: no process uses it, or one of these
        runs has locked it already."""
        return not device.used or not _test(file, 0, _SHARES)


def _visible(environment: Mapping[str, str]) -> list[Device]:
    """Return the devices that the environment makes visible. Raises `LookupError`."""
    rows = _ask("--query-gpu=index,uuid", environment)
    used = {row[0] for row in _ask("--query-compute-apps=gpu_uuid,pid", environment)}
    try:
        devices = [Device(int(index), uuid, uuid in used) for index, uuid in rows]
    except ValueError as error:
        raise LookupError(f"unexpected output of {_TOOL}: {rows[:1]}") from error
    chosen = environment.get(VISIBLE)
    if chosen is None:
        return devices
    names = [name.strip() for name in chosen.split(",") if name.strip()]
    return [d for d in devices if any(n == str(d.number) or d.uuid == n for n in names)]


def _ask(query: str, environment: Mapping[str, str]) -> list[list[str]]:
    import subprocess

    try:
        answer = subprocess.run(
            [_TOOL, query, "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=_TOOL_SECONDS,
            check=False,
            env={"PATH": environment.get("PATH", os.defpath), "LC_ALL": "C"},
        )
    except FileNotFoundError as error:
        raise LookupError(
            f"{_TOOL} is not found: `launch.gpus` needs it to list the GPUs; remove `gpus` on a "
            "machine without GPUs"
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LookupError(f"{_TOOL}: {error}") from error
    if answer.returncode:
        lines = (answer.stderr.strip() or answer.stdout.strip()).splitlines()
        raise LookupError(f"{_TOOL}: {lines[0] if lines else f'exit code {answer.returncode}'}")
    lines = answer.stdout.splitlines()
    return [[part.strip() for part in line.split(",")] for line in lines if "," in line]


def _open(folder: str, uuid: str) -> int:
    """Open the lock file of a device, and create it if it is missing. Raises `LookupError`."""
    path = _path(folder, uuid)
    try:
        with suppress(FileExistsError):
            os.mkdir(folder)
            os.chmod(folder, 0o1777)  # noqa: S103 - for all users, as /tmp is
        with suppress(FileNotFoundError):
            return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileExistsError:  # Another process has just created the file.
            return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        os.fchmod(file, 0o666)
        return file
    except OSError as error:
        raise LookupError(f"{path}: {error.strerror or error}") from error


def _path(folder: str, uuid: str) -> str:
    return os.path.join(folder, "".join(c if c.isalnum() or c in "-_." else "_" for c in uuid))


def _is_at(file: int, folder: str, uuid: str) -> bool:
    try:
        at_path, at_lock = os.stat(_path(folder, uuid)), os.fstat(file)
    except OSError:
        return False
    same = (at_path.st_dev, at_path.st_ino) == (at_lock.st_dev, at_lock.st_ino)
    return same and stat.S_ISREG(at_lock.st_mode)


def _lock(file: int, start: int, length: int) -> bool:
    """Try to lock bytes of an open file. Return whether this succeeded. The lock ends when this
    process and the children that inherited the file have closed it."""
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _request(start, length))
    except OSError:
        return False
    return True


def _test(file: int, start: int, length: int) -> bool:
    """Return whether the bytes are unlocked."""
    answer = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _request(start, length))
    return struct.unpack(_LOCK, answer)[0] == fcntl.F_UNLCK


def _request(start: int, length: int) -> bytes:
    return struct.pack(_LOCK, fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
