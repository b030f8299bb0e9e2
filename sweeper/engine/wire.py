"""The protocol's messages: encodes and decodes protobuf in the SDK's format. Only the engine's
process imports this module, because the message classes come from the package `tinker`."""

import importlib.util
import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Required, TypedDict

import numpy as np

from sweeper.engine.array_types import Floats, Ints, Numbers
from sweeper.engine.batches import Datum, Span
from sweeper.engine.errors import RequestError
from sweeper.engine.operations import PassResult, SampleResult, Targets

if TYPE_CHECKING:
    from tinker.proto import tinker_public_pb2 as pb


_TINKER = "'tinker>=0.38,<0.39'"


def _messages() -> object:
    """Load the SDK's generated protobuf module from its file. Importing `tinker` itself would take
    half a second and 60 MB."""
    name = "tinker.proto.tinker_public_pb2"
    if name in sys.modules:
        return sys.modules[name]
    package = importlib.util.find_spec("tinker")
    if package is None or not package.submodule_search_locations:
        raise ImportError(f"the engine needs the tinker package: pip install {_TINKER}")
    path = os.path.join(package.submodule_search_locations[0], "proto", "tinker_public_pb2.py")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"tinker lacks the file {path}: pip install --force-reinstall {_TINKER}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if not TYPE_CHECKING:
    pb = _messages()

_FROM_WIRE = {pb.DTYPE_FLOAT32: np.float32, pb.DTYPE_INT64: np.int64, pb.DTYPE_INT32: np.int32}


class PassRequest(NamedTuple):
    """An unpacked forward_backward request."""

    data: list[Datum]
    loss: str
    config: dict[str, float | str]
    train: bool


def parse(body: bytes) -> "pb.ForwardBackwardRequest":
    """Parse a request. `decode_pass` unpacks the parsed request. Raises RequestError if `body` is
    invalid."""
    message = pb.ForwardBackwardRequest()
    try:
        message.ParseFromString(body)
    except Exception as error:  # protobuf's DecodeError, whose module differs between backends
        raise RequestError(f"not a valid ForwardBackwardRequest: {error}") from error
    return message


def protobuf_head(data: bytes) -> dict[str, str | int]:
    """Read `model_id` and `seq_id` from the beginning of a ForwardBackwardRequest. Missing fields
    are left out."""
    reader = _Varints(data)
    head: dict[str, str | int] = {}
    try:
        while len(head) < 2:
            tag = reader.next()
            if tag == _RUN_TAG:
                head["model_id"] = reader.bytes(reader.next()).decode()
            elif tag == _SEQUENCE_TAG:
                head["seq_id"] = reader.next()
            else:
                break
    except (IndexError, ValueError):
        pass  # the end of the data
    return head


_RUN_TAG = pb.ForwardBackwardRequest.MODEL_ID_FIELD_NUMBER << 3 | 2
_SEQUENCE_TAG = pb.ForwardBackwardRequest.SEQ_ID_FIELD_NUMBER << 3


class _Varints:
    """A reader of protobuf, one number at a time. Raises `IndexError` at the end of the data."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def next(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80 or shift > 63:
                return value

    def bytes(self, size: int) -> bytes:
        value = self._data[self._at : self._at + size]
        self._at += size
        return value


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,"]|[^\s{}\[\]:,"]+(?=[\s,}\]])')
_WHOLE = re.compile(r"-?\d{1,19}")


def json_head(data: bytes) -> dict[str, str | int]:
    """Read `model_id` and `seq_id` from the beginning of a JSON request. Ignores nested fields."""
    head: dict[str, str | int] = {}
    depth, key, before = 0, "", ""
    for match in _TOKEN.finditer(data.decode("utf-8", "ignore")):
        word = match[0]
        if word == '"' or len(head) == 2:
            break  # a cut-off string, or both were found
        if word in ("{", "["):
            depth += 1
        elif word in ("}", "]"):
            depth -= 1
        elif depth == 1 and before in ("{", ","):
            key = word
        elif depth == 1 and before == ":" and key == '"model_id"' and word[0] == '"':
            head["model_id"] = word.strip('"')
        elif depth == 1 and before == ":" and key == '"seq_id"' and _WHOLE.fullmatch(word):
            head["seq_id"] = int(word)
        before = word
    return head


def _tensor(tensor: "pb.Tensor", name: str) -> Numbers:
    kind = _FROM_WIRE.get(tensor.dtype)
    if kind is None:
        raise RequestError(f"loss_fn_inputs[{name!r}]: use the type float32, int64 or int32")
    shape = tuple(tensor.shape)
    try:
        if not tensor.HasField("sparse_csr"):
            dense = np.frombuffer(tensor.dense, kind)
            return dense.reshape(shape) if shape else dense
        sparse = tensor.sparse_csr
        out = np.zeros(shape, kind)
        starts = np.frombuffer(sparse.crow_indices, np.int64)
        rows = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        out[rows, np.frombuffer(sparse.col_indices, np.int64)] = np.frombuffer(sparse.values, kind)
    except (ValueError, IndexError) as error:
        raise RequestError(f"loss_fn_inputs[{name!r}]: {error}") from error
    return out


def _tokens(chunks: "Sequence[pb.Chunk]") -> Ints:
    for chunk in chunks:
        if not chunk.HasField("encoded_text"):
            raise RequestError("only text is supported: model_input has another kind of chunk")
    parts = [np.frombuffer(chunk.encoded_text.tokens, np.int32) for chunk in chunks]
    return np.concatenate(parts) if len(parts) != 1 else parts[0]


def _span(span: "pb.ProvenanceSpan") -> Span:
    sampled = span.HasField("sampled_tokens")
    run = span.sampled_tokens if sampled else span.prompt_tokens
    return Span(run.sequence_id, run.offset, run.length, sampled)


def decode_pass(message: "pb.ForwardBackwardRequest") -> PassRequest:
    """Unpack a request. Raises RequestError if the engine does not support the request."""
    data = list[Datum]()
    for datum in message.data:
        tokens = _tokens(datum.model_input) if datum.model_input else np.empty(0, np.int32)
        inputs = {k: _tensor(v, k) for k, v in datum.loss_fn_inputs.items()}
        data.append(Datum(tokens, inputs, tuple(map(_span, datum.loss_fn_input_spans))))
    config: dict[str, float | str] = dict(message.loss_fn_config)
    for key, value in message.loss_fn_config_v2.items():
        config[key] = value.text if value.HasField("text") else value.number
    return PassRequest(data, message.loss_fn, config, not message.forward_only)


def encode_pass(result: PassResult) -> bytes:
    """Encode a ForwardBackwardOutput. Consecutive arrays of logprobs are written as one record if
    their shapes differ only in the first dimension."""
    message = pb.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord")
    for key, value in result.metrics.items():
        message.metrics[key] = value
    start = 0
    arrays = result.logprobs
    for end in range(1, len(arrays) + 1):
        if end < len(arrays) and arrays[end].shape[1:] == arrays[start].shape[1:]:
            continue
        group = [np.ascontiguousarray(array, np.float32) for array in arrays[start:end]]
        record = message.loss_fn_outputs.add()
        record.num_datums = len(group)
        field = record.fields["logprobs"]
        field.dtype = pb.DTYPE_FLOAT32
        field.data = b"".join(array.tobytes() for array in group)
        field.offsets = np.cumsum([0, *(array.nbytes for array in group)], dtype=np.int64).tobytes()
        field.trailing_shape.extend(group[0].shape[1:])
        start = end
    return message.SerializeToString()


class _Chunk(TypedDict, total=False):
    """A piece of a JSON `ModelInput`."""

    type: str
    tokens: Required[list[int]]


class _ModelInput(TypedDict, total=False):
    """The fields that are read from a JSON `ModelInput`."""

    chunks: list[_Chunk]


def prompt_tokens(model_input: _ModelInput) -> list[int]:
    """Return the tokens of a JSON `ModelInput`."""
    out = list[int]()
    for chunk in model_input.get("chunks", []):
        kind = chunk.get("type", "encoded_text")
        if kind != "encoded_text":
            raise RequestError(f"only text is supported: the prompt has a chunk {kind!r}")
        out.extend(chunk["tokens"])
    return out


class _Tensor(TypedDict, total=False):
    """A JSON tensor: dense, or sparse with row pointers and columns."""

    shape: Required[list[int]]
    data: Required[list[int]]
    dtype: str
    sparse_crow_indices: list[int] | None
    sparse_col_indices: list[int] | None


def decode_targets(value: _Tensor) -> Targets:
    """Decode a JSON tensor of target tokens, dense or sparse (CSR). Raises RequestError if the
    tensor is invalid."""
    wrong = RequestError("target_prompt_logprobs must be an int64 tensor of two dimensions")
    try:
        height, width = (int(size) for size in value["shape"])
        ids = np.array(value["data"], np.int64)
        pointers, columns = value.get("sparse_crow_indices"), value.get("sparse_col_indices")
        listed = None if pointers is None else (np.array(pointers), np.array(columns))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise wrong from error
    if value.get("dtype", "int64") != "int64" or ids.ndim != 1 or min(height, width) < 0:
        raise wrong
    if listed is None:
        if len(ids) != height * width:
            raise wrong
        return Targets(np.repeat(np.arange(height), width), ids, (height, width))
    crow, col = (array.astype(np.int64) for array in listed)
    fits = crow.shape == (height + 1,) and col.shape == ids.shape
    if not fits or crow[0] != 0 or crow[-1] != len(ids) or (np.diff(crow) < 0).any():
        raise wrong
    if len(col) and (col.min() < 0 or col.max() >= width):
        raise wrong
    return Targets(np.repeat(np.arange(height), np.diff(crow)), ids, (height, width), (crow, col))


def _put_topk(message: "pb.TopkLogprobs", ids: Ints, logprobs: Floats) -> None:
    message.token_ids = ids.astype(np.int32).tobytes()
    message.logprobs = logprobs.astype(np.float32).tobytes()
    message.length, message.k = ids.shape


def encode_samples(result: SampleResult, named: Targets | None = None) -> bytes:
    """Encode a SampleResponse. `named` are the targets in the client's request, or None."""
    message = pb.SampleResponse(prompt_cache_hit_tokens=result.reused)
    for sequence in result.sequences:
        out = message.sequences.add()
        out.tokens = np.array(sequence.tokens, np.int32).tobytes()
        out.logprobs = np.array(sequence.logprobs, np.float32).tobytes()
        out.stop_reason = pb.STOP_REASON_STOP if sequence.stopped else pb.STOP_REASON_LENGTH
        if sequence.topk:
            ids, values = (np.stack(part) for part in zip(*sequence.topk, strict=True))
            _put_topk(out.topk_sampled_logprobs, ids, values)
    scores = result.scores
    if scores.logprobs is not None:
        message.prompt_logprobs = scores.logprobs.astype(np.float32).tobytes()
    if scores.topk is not None:
        _put_topk(message.topk_prompt_logprobs, *scores.topk)
    if scores.targets is not None and named is not None:
        tensor = message.target_prompt_logprobs
        tensor.dtype = pb.DTYPE_FLOAT32
        tensor.shape.extend(named.shape)
        raw = scores.targets.astype(np.float32).tobytes()
        if named.sparse is None:
            tensor.dense = raw
        else:
            tensor.sparse_csr.values = raw
            tensor.sparse_csr.crow_indices = named.sparse[0].tobytes()
            tensor.sparse_csr.col_indices = named.sparse[1].tobytes()
    return message.SerializeToString()
