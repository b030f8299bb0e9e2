"""The `.json` document of an engine's checkpoint. Its file of arrays is a checkpoint only with
it."""

from typing import Any, NotRequired, TypedDict, cast

from sweeper.common.document_reader import Part


class Document(TypedDict):
    """A checkpoint: `data` is the name of the file with the arrays, in the same folder, and `size`
    its bytes. `created` and `expires` are seconds since 1970. Further: the `base` model, the
    `lora` configuration, the optimizer's `steps` (None without an optimizer), whether it is
    `public`, `user_metadata` and `run_metadata`."""

    schema: NotRequired[int]
    data: str
    size: int
    created: float
    expires: float | None
    base: str
    lora: dict[str, Any]
    steps: int | None
    user_metadata: dict[str, object] | None
    run_metadata: dict[str, object] | None
    public: bool


def read(document: object, place: str) -> Document:
    """Read the document of the file `place`. Raises `StoreError`."""
    top = Part(document, place)
    data, lora = top.text("data"), top.part("lora")
    if "/" in data or data in ("", ".", ".."):
        top.refuse("data", "the name of a file beside it")
    for key in ("rank", "seed"):
        lora.integer_or(key, None)
    for key in ("train_attn", "train_mlp", "train_unembed"):
        lora.flag_or(key, True)
    checkpoint: dict[str, object] = {
        **top.document,
        "base": top.text("base"),
        "size": top.integer_or("size", 0),
        "created": top.number_or("created", 0.0),
        "expires": top.number_or("expires", None),
        "steps": top.integer_or("steps", None),
        "public": top.flag_or("public", False),
        "user_metadata": _table(top, "user_metadata"),
        "run_metadata": _table(top, "run_metadata"),
    }
    return cast(Document, checkpoint)


def _table(top: Part, key: str) -> dict[str, object] | None:
    part = top.part_or_none(key)
    return None if part is None else part.document
