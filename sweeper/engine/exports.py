"""Exports adapters for other programs: makes the files of an external checkpoint in PEFT's format,
and keys for downloading them."""

import json
import secrets
import threading
from collections.abc import Callable

from sweeper.engine import lora
from sweeper.engine.checkpoints import Checkpoint, Place, SureClock
from sweeper.engine.errors import Unknown
from sweeper.engine.models import published_names

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_SECONDS = 3600.0


def module_of(name: str) -> str:
    """Return Hugging Face's name for a linear map of the model: `model.layers.0.self_attn.q_proj`
    for the engine's name `0.q`."""
    layer, _, kind = name.rpartition(".")
    return f"model.layers.{layer}.{published_names()[kind]}" if layer else "lm_head"


def _config(checkpoint: Checkpoint) -> bytes:
    modules = sorted({module_of(name[:-2]).rpartition(".")[2] for name in checkpoint.adapter})
    document = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": checkpoint.base,
        "r": checkpoint.config.rank,
        "lora_alpha": lora.ALPHA,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": modules,
    }
    return (json.dumps(document, indent=2) + "\n").encode()


def _weights(checkpoint: Checkpoint) -> bytes:
    import safetensors.numpy

    arrays = {
        f"base_model.model.{module_of(name[:-2])}.lora_{name[-1]}.weight": array
        for name, array in checkpoint.adapter.items()
    }
    return safetensors.numpy.save(arrays, {"format": "pt"})


_FILES: dict[str, Callable[[Checkpoint], bytes]] = {CONFIG: _config, WEIGHTS: _weights}


def contents(checkpoint: Checkpoint, file: str) -> bytes:
    """Return the contents of one file of a checkpoint's export in PEFT's format. Raises Unknown if
    the export has no such file."""
    if file not in _FILES:
        raise Unknown(f"no file {file!r}: the files are {', '.join(_FILES)}")
    return _FILES[file](checkpoint)


class Tickets:
    """Keys (tickets) to download a checkpoint's files. A ticket is valid for an hour.
    Thread-safe."""

    def __init__(self, now: Callable[[], float] | None = None) -> None:
        self._now, self._lock = now or SureClock(), threading.Lock()
        self._places: dict[str, tuple[Place, float]] = {}

    def issue(self, place: Place) -> tuple[str, float]:
        """Return a new ticket and its expiry time in Unix seconds."""
        ticket, expires = secrets.token_urlsafe(24), self._now() + _SECONDS
        with self._lock:
            for old in [k for k, (_, end) in self._places.items() if end <= self._now()]:
                del self._places[old]
            self._places[ticket] = place, expires
        return ticket, expires

    def place(self, ticket: str) -> Place:
        """Return the checkpoint for which `ticket` was issued. Raises Unknown if the ticket is
        invalid or has expired."""
        place = self._places.get(ticket)
        if place is None or place[1] <= self._now():
            raise Unknown("this address has expired: request the checkpoint's addresses again")
        return place[0]
