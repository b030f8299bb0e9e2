"""Downloads a checkpoint's adapter, and converts it with tinker-cookbook for other programs."""

import importlib.util
import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import NamedTuple

from sweeper.errors import EnvironmentFailure, NotFound, UsageError
from sweeper.metrics.rows import Row
from sweeper.results.checkpoints import last
from sweeper.results.kept_checkpoints import best_record
from sweeper.results.runs import RecordedRun
from sweeper.results.service_requests import Service

_SECONDS = 3600
"""Seconds that the service keeps the exported copy if it cannot be deleted after the download."""
_TOOL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cookbook_weights.py")
STATE = "state_path"
SAMPLER = "sampler_path"
"""`STATE` is the key in a checkpoint's record for the address from which training can continue,
`SAMPLER` the key for the address from which a model can be sampled."""


class Adapter(NamedTuple):
    """A downloaded adapter: its folder, and the name of the base model in the adapter's
    configuration ("" if unknown)."""

    folder: str
    base_model: str


def choose(run: RecordedRun, checkpoint: str, *keys: str) -> Row:
    """Return the record of a run's checkpoint. `checkpoint` is `final`, `best` (by the metric) or a
    checkpoint's name. The record must have one of `keys` (default: `STATE`), whose value is the
    checkpoint's address. Raises `NotFound` if there is no such record."""
    keys = keys or (STATE,)
    records = [r for r in run.checkpoint_records() if any(r.get(key) for key in keys)]
    name = f"{run.sweep}/{run.name}"
    if not records:
        use = "continue from" if keys == (STATE,) else "sample from"
        raise NotFound(
            f"{name} has recorded no checkpoint to {use}: `sweeper show` lists all checkpoints"
        )
    if checkpoint == "final":
        return dict(next(filter(None, (last(records, key) for key in keys)), records[-1]))
    if checkpoint == "best":
        return best_record(run, records)
    named = [record for record in records if record.get("name") == checkpoint]
    if not named:
        names = ", ".join(str(record.get("name")) for record in records[-8:])
        raise NotFound(f"{name}: no checkpoint {checkpoint!r}: choose from {names}")
    return named[-1]


def download(service: Service, path: str, folder: str) -> Adapter:
    """Download a checkpoint's adapter, in PEFT's format, to a new folder. Raises `NotFound` if
    the service no longer has the checkpoint, `EnvironmentFailure` if the download fails. The SDK
    runs in a separate process, because the SDK may abort the process that uses it."""
    # The SDK would retry for minutes. This request fails at once.
    service.ask("weights_info", "checkpoint", method="POST", body={"tinker_path": path})
    done = subprocess.run(
        [sys.executable, "-P", "-m", "sweeper.results.weights"],
        input=json.dumps({"url": service.url, "path": path, "folder": folder}),
        env={**os.environ, "TINKER_API_KEY": service.key},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise EnvironmentFailure(f"{path} cannot be downloaded: {lines[-1][:300]}")
    return Adapter(folder, _base_model(folder))


def _export(url: str, path: str, folder: str) -> None:
    import tinker

    client = tinker.ServiceClient(base_url=url)
    partial = f"{folder}.partial-{secrets.token_hex(3)}"
    try:
        rest = tinker.RestClient(base_url=url)
        training = client.create_training_client_from_state(path).result()
        name = f"download-{secrets.token_hex(6)}"
        copy = training.save_weights_external(name, ttl_seconds=_SECONDS).result().path
        try:
            os.makedirs(partial)
            for file, address in rest.get_external_weights_urls(copy).result().urls.items():
                _fetch(address, os.path.join(partial, _plain_name(file)))
        finally:
            rest.delete_checkpoint_from_tinker_path(copy).result()
        os.rename(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        client.close("success").result()


def _plain_name(file: str) -> str:
    """Return `file` if it is a plain file name, not a path; else raise `EnvironmentFailure`."""
    if os.path.basename(file) != file or file in ("", ".", ".."):
        raise EnvironmentFailure(f"the service lists {file!r}, which is not a plain file name")
    return file


def _fetch(url: str, path: str) -> None:
    import httpx

    with httpx.stream("GET", url, timeout=60.0, follow_redirects=True) as answer:
        answer.raise_for_status()
        with open(path, "wb") as file:
            for chunk in answer.iter_bytes():
                file.write(chunk)


def _base_model(folder: str) -> str:
    try:
        with open(os.path.join(folder, "adapter_config.json"), encoding="utf-8") as file:
            document: object = json.load(file)
    except (OSError, ValueError):
        return ""
    return str(document.get("base_model_name_or_path", "")) if isinstance(document, dict) else ""  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


def find_cookbook(python: str | None) -> str:
    """Return the path of the interpreter `python`, or of this process's own interpreter if `python`
    is None. Raises `UsageError` if `python` does not exist, or if this process's own interpreter
    lacks tinker-cookbook."""
    from sweeper.recipe.reference import find_python

    if python is not None:
        return find_python(python)
    if importlib.util.find_spec("tinker_cookbook") is None:
        raise UsageError(
            "this command needs tinker-cookbook: run `make cookbook`, and add `--python "
            ".venv-cookbook/bin/python`"
        )
    return sys.executable


def by_cookbook(
    python: str, action: str, environ: Mapping[str, str], **arguments: str | None
) -> None:
    """Call a function of `tinker_cookbook.weights` in the interpreter `python`. If the function
    fails, raise `EnvironmentFailure` with the function's error."""
    done = subprocess.run(
        [python, _TOOL],
        input=json.dumps({"action": action, "arguments": arguments}),
        capture_output=True,
        text=True,
        check=False,
        env=dict(environ),
    )
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["no message"]
        raise EnvironmentFailure(f"tinker-cookbook: {action} failed: {lines[-1][:300]}")


def _main() -> int:
    try:
        _export(**json.loads(sys.stdin.read()))
    except Exception as error:  # noqa: BLE001  (from the SDK, the network or the disk)
        print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    ended = _main()
    sys.stderr.flush()
    os._exit(ended)
