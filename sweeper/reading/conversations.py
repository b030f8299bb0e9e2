"""What was said in a rollout: from the transcript (a logtree) where there is one, else from what
the turns logged. Pure: JSON in, lines out."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["Spoken", "groups_of", "said_by", "turns_logged"]

Spoken = tuple[str, str]
"""Who, and what was said."""

_GROUP = "Group Rollout"


def groups_of(tree: Any, sizes: Sequence[int]) -> list[list[list[Spoken]]]:
    """Group -> trajectory -> what was said, for the groups that a transcript has: the first ones,
    in their order. `sizes`: the trajectories of each group. Where the parts of a group do not tell
    its trajectories apart, all that was said in it is given to each."""
    found: list[list[list[Spoken]]] = []
    root = tree.get("root") if isinstance(tree, dict) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    sections = [node for node in _sections(root) if _heading(node) == _GROUP]
    for section, size in zip(sections, sizes, strict=False):
        found.append(_apart(section, size))
    return found


def _apart(group: Mapping[str, Any], size: int) -> list[list[Spoken]]:
    parts = list(_sections(group, below=True))
    first = _heading(parts[0]) if parts else None
    starts = [place for place, part in enumerate(parts) if _heading(part) == first]
    if not parts or len(starts) != size:
        return [list(said_by(group))] * size
    ends = [*starts[1:], len(parts)]
    return [
        [spoken for part in parts[start:end] for spoken in said_by(part)]
        for start, end in zip(starts, ends, strict=True)
    ]


def _children(node: Any) -> list[Any]:
    children = node.get("children") if isinstance(node, dict) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return children if isinstance(children, list) else []  # pyright: ignore[reportUnknownVariableType]


def _sections(node: Any, below: bool = False) -> Iterator[dict[str, Any]]:
    """The outermost sections of a tree; with `below` those inside the node itself."""
    if isinstance(node, dict) and node.get("tag") == "section" and not below:  # pyright: ignore[reportUnknownMemberType]
        yield node
        return
    for child in _children(node):
        yield from _sections(child)


def _heading(section: Mapping[str, Any]) -> str:
    for child in _children(section):
        if isinstance(child, dict) and str(child.get("tag", "")) in ("h1", "h2", "h3", "h4", "h5"):  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
            return _text(child).strip()
    return ""


def _text(node: Any) -> str:
    if isinstance(node, str):
        return node
    return "".join(_text(child) for child in _children(node))


def said_by(node: Any) -> Iterator[Spoken]:
    """The messages of all conversations in a tree, in order, and the rows of its tables."""
    data = node.get("data") if isinstance(node, dict) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    if isinstance(data, dict) and data.get("type") == "conversation":  # pyright: ignore[reportUnknownMemberType]
        messages: Any = data.get("messages")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        for message in messages if isinstance(messages, list) else []:  # pyright: ignore[reportUnknownVariableType]
            if isinstance(message, dict):
                yield str(message.get("role", "?")), _content(message)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        return
    if isinstance(node, dict) and node.get("tag") == "tr":  # pyright: ignore[reportUnknownMemberType]
        cells = [_text(child).strip() for child in _children(node)]
        if len(cells) == 2 and cells != ["key", "value"]:
            yield cells[0], cells[1]
        return
    for child in _children(node):
        yield from said_by(child)


def _content(message: Mapping[str, Any]) -> str:
    """A message's text; parts that are none (thinking, calls of tools) by their kind."""
    content: Any = message.get("content")
    if isinstance(content, str):
        text = content
    else:
        parts: list[Any] = content if isinstance(content, list) else [content]  # pyright: ignore[reportUnknownVariableType]
        text = "".join(_part(part) for part in parts)
    calls: Any = message.get("tool_calls")
    return text + "".join(f"\n[tool_call] {call}" for call in calls or ())


def _part(part: Any) -> str:
    if not isinstance(part, dict):
        return "" if part is None else str(part)
    found: dict[str, Any] = part  # pyright: ignore[reportUnknownVariableType]
    kind = str(found.get("type", "text"))
    text = found.get("text", found.get(kind))
    if kind == "text":
        return str(text)
    rest = {key: value for key, value in found.items() if key != "type"}
    return f"[{kind}] {rest if text is None else text}\n"


def turns_logged(record: Mapping[str, Any]) -> list[Spoken]:
    """What the turns of a summary logged, in order."""
    spoken: list[Spoken] = []
    steps: Any = record.get("steps")
    for step in steps if isinstance(steps, list) else []:  # pyright: ignore[reportUnknownVariableType]
        logs: Any = step.get("logs") if isinstance(step, dict) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        if isinstance(logs, dict):
            spoken += [(str(key), str(value)) for key, value in logs.items()]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return spoken
