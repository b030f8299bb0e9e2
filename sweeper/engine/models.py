"""Base models, read from directories in Hugging Face's layout and kept in memory while the engine
runs."""

import json
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Required, TypedDict, cast

import numpy as np

from sweeper import paths
from sweeper.engine import hub, model_aliases, tiny
from sweeper.engine.array_types import Arrays, Floats
from sweeper.engine.errors import Unknown
from sweeper.engine.net import Rotation, Shape, rotary
from sweeper.errors import EngineError

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_FLOATS = {"F64": np.float64, "F32": np.float32, "F16": np.float16}
_LAYER = {
    "input_layernorm": "norm1",
    "post_attention_layernorm": "norm2",
    "self_attn.q_proj": "q",
    "self_attn.k_proj": "k",
    "self_attn.v_proj": "v",
    "self_attn.o_proj": "o",
    "self_attn.q_norm": "q_norm",
    "self_attn.k_norm": "k_norm",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
}
_TOP = {"model.embed_tokens.weight": "embed", "model.norm.weight": "norm", "lm_head.weight": "head"}


@dataclass(frozen=True, eq=False)
class Model:
    """A frozen base model: sizes, weights by name (`0.q`), rotations, and end-of-text tokens."""

    name: str
    directory: str
    shape: Shape
    base: Arrays
    eos: frozenset[int]
    rotation: Rotation

    @cached_property
    def decode(self) -> Callable[[list[int]], str]:
        """The function that converts tokens to text, including special tokens. The tokenizer is
        loaded on first use."""
        from tokenizers import Tokenizer

        tokenizer: object = Tokenizer.from_file(os.path.join(self.directory, "tokenizer.json"))
        return lambda tokens: tokenizer.decode(tokens, skip_special_tokens=False)


def published_names() -> dict[str, str]:
    """Return Hugging Face's names of a layer's arrays, by the engine's short names: `q` is the key
    of `self_attn.q_proj`."""
    return {short: name for name, short in _LAYER.items()}


def _short(name: str) -> str | None:
    """Return the engine's short name of an array: `0.q` for
    `model.layers.0.self_attn.q_proj.weight`. None if the network has no such array."""
    if name in _TOP:
        return _TOP[name]
    parts = name.split(".", 3)
    if len(parts) < 4 or parts[:2] != ["model", "layers"]:
        return None
    kind = _LAYER.get(parts[3].removesuffix(".weight"))
    return f"{parts[2]}.{kind}" if kind and parts[3].endswith(".weight") else None


class _Stored(TypedDict):
    """An array in a file of weights."""

    data: bytes
    dtype: str
    shape: list[int]


class _Rope(TypedDict, total=False):
    rope_type: str
    rope_theta: float


class _Config(TypedDict, total=False):
    """The fields that are read from a model's config.json."""

    model_type: str
    vocab_size: Required[int]
    hidden_size: Required[int]
    intermediate_size: Required[int]
    num_hidden_layers: Required[int]
    num_attention_heads: Required[int]
    num_key_value_heads: int | None
    head_dim: int | None
    max_position_embeddings: Required[int]
    rms_norm_eps: float
    rope_theta: float | None
    rope_scaling: _Rope | None
    rope_parameters: _Rope | None
    tie_word_embeddings: bool
    eos_token_id: int | list[int] | None


def _array(entry: _Stored, name: str) -> Floats:
    data, kind = entry["data"], entry["dtype"]
    if kind == "BF16":  # the upper half of a float32
        wide = np.frombuffer(data, np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32).reshape(entry["shape"])
    if kind not in _FLOATS:
        raise ValueError(f"{name} has the type {kind}, which is not supported")
    return np.frombuffer(data, _FLOATS[kind]).astype(np.float32).reshape(entry["shape"])


def _read_weights(directory: str) -> Arrays:
    import safetensors

    out: Arrays = {}
    for file in sorted(os.listdir(directory)):
        if not file.endswith(".safetensors"):
            continue
        with open(os.path.join(directory, file), "rb") as handle:
            entries: list[tuple[str, _Stored]] = cast(Any, safetensors).deserialize(handle.read())
        for name, entry in entries:
            short = _short(name)
            if short is None:
                raise ValueError(f"{file} has the array {name}, which this network does not have")
            out[short] = _array(entry, name)
    return out


def _shape(config: _Config) -> Shape:
    rope: _Rope = config.get("rope_parameters") or {}
    heads = config["num_attention_heads"]
    return Shape(
        vocab=config["vocab_size"],
        hidden=config["hidden_size"],
        mlp=config["intermediate_size"],
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head=config.get("head_dim") or config["hidden_size"] // heads,
        context=config["max_position_embeddings"],
        eps=config.get("rms_norm_eps", 1e-6),
        theta=config.get("rope_theta") or rope.get("rope_theta", 10000.0),
    )


def load(name: str, directory: str) -> Model:
    """Read a model. Raises ValueError if the model cannot be read, or if the engine's network
    (`net`) cannot run the model."""
    try:
        with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
            config: _Config = json.load(file)
        if config.get("model_type") not in ("qwen3", "llama"):
            raise ValueError(f"model_type is {config.get('model_type')!r}, not 'qwen3' or 'llama'")
        rope: _Rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
        if rope.get("rope_type", "default") != "default":
            raise ValueError(
                f"rotary positions of type {rope.get('rope_type')!r} are not supported"
            )
        shape, base = _shape(config), _read_weights(directory)
    except (OSError, KeyError, ValueError) as error:
        raise ValueError(f"cannot load the model {name} from {directory}: {error}") from error
    if "head" not in base and config.get("tie_word_embeddings"):
        base["head"] = base["embed"]
    expected = {"embed", "norm", "head"} | {
        f"{i}.{kind}" for i in range(shape.layers) for kind in _LAYER.values()
    }
    missing = sorted(expected - set(base))
    if any(not name.endswith(("q_norm", "k_norm")) for name in missing):
        raise ValueError(f"the model {name} in {directory} lacks the weights {', '.join(missing)}")
    for array in base.values():
        array.flags.writeable = False
    eos = config.get("eos_token_id")
    ends = np.atleast_1d(np.array([] if eos is None else eos, np.int64)).tolist()
    return Model(name, directory, shape, base, frozenset(ends), rotary(shape, np.float32))


class Models:
    """The models of a service: built-in models, models from given directories, and aliases of
    both."""

    def __init__(
        self,
        directory: str,
        extra: Mapping[str, str] | None = None,
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        """Set up the models. `extra` maps names to directories, and `aliases` maps names to models.
        Raises ValueError if an alias or its model is invalid."""
        self._directory, self._extra = directory, dict(extra or {})
        targets = self._aliases = dict[str, str]()
        for name, target in (aliases or {}).items():
            if name in self.names():
                raise ValueError(f"{name!r} cannot be an alias: a model has this name")
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name!r} cannot be an alias: it is not a valid name")
            if target not in self.names() or target in targets:
                raise ValueError(f"alias {name}: there is no model {target!r}")
            targets[name] = target
        self._loaded: dict[str, Model] = {}
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """Return all model names, including aliases."""
        return list(dict.fromkeys([*tiny.BUILT_IN, *self._extra, *self._aliases]))

    def check(self, name: str) -> None:
        """Raise Unknown if there is no such model."""
        if name not in self.names():
            offered = ", ".join(self.names())
            raise Unknown(
                f"no base model {name!r}: use {offered}, or restart the engine with "
                f"--alias {name}={tiny.TINY}"
            )

    def contexts(self) -> dict[str, int]:
        """Return the context length of each model."""
        return {name: self.get(name).shape.context for name in self.names()}

    def get(self, name: str) -> Model:
        """Return a model, which is read on first use. Raises Unknown if there is no such model."""
        self.check(name)
        with self._lock:
            return self._held(name)

    def _held(self, name: str) -> Model:
        if name not in self._loaded:
            if target := self._aliases.get(name):
                # Both names share the arrays.
                self._loaded[name] = replace(self._held(target), name=name)
            else:
                directory = self._extra.get(name) or tiny.ensure(self._directory, name)
                self._loaded[name] = load(name, directory)
        return self._loaded[name]


def load_models(home: str, models: Mapping[str, str], aliases: Mapping[str, str]) -> Models:
    """Load an engine's models, and put the models' tokenizers into the hub cache (`hub`). Raises
    `EngineError` if a model cannot be loaded."""
    try:
        offered = Models(paths.models(home), models, aliases)
        for name in offered.names():
            hub.place(paths.hub(home), name, offered.get(name).directory)
    except (ValueError, OSError) as error:
        raise EngineError(str(error)) from error
    return offered


def usual_models(home: str) -> Models:
    """Load the built-in models and aliases. Raises `EngineError` if a model cannot be loaded."""
    return load_models(home, {}, model_aliases.complete({}, {}))
