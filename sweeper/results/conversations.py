"""Finds the conversation of a rollout, in the transcript (a logtree) or in the logs of its turns.
`Transcript.whose` tells how certain the match is. Does no I/O."""

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from sweeper.common.json_values import is_list, is_table, list_of, table_of
from sweeper.metrics.rows import as_float

Spoken = tuple[str, str]
"""The role of a speaker, and the text of the message."""

Record = Mapping[str, object]
"""The summary of a trajectory."""

_GROUP = "Group Rollout"
_DETAILS = "Trajectory Details"
_EPISODE = re.compile(r"Trajectory (\d+) Episode\Z")
_NUMBERED = re.compile(
    r"(completion|trajectory|rollout|sample|response|candidate|episode) (\d+)\Z", re.IGNORECASE
)
_WHO = re.compile(r"(.{1,60}?): (.*)", re.DOTALL)
_ANSWERS = frozenset({"assistant", "response", "completion"})
_SPEAKERS = {
    **dict.fromkeys(("question", "prompt", "problem"), "user"),
    **dict.fromkeys(("response", "completion"), "assistant"),
}
"""The role in a transcript, by the key under which a turn logs its text."""
_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")


class Transcript(NamedTuple):
    """The conversation of a trajectory. If `whose` is "trajectory", the messages `spoken` certainly
    belong to it. With "order", they may belong to another trajectory of its group. With "group",
    they are the messages of the whole group."""

    spoken: list[Spoken]
    whose: Literal["trajectory", "order", "group"]

    def shown(self) -> list[Spoken]:
        """Return the messages to show, after a note if the match is uncertain."""
        return [*([("note", WHOSE[self.whose])] if self.whose in WHOSE else []), *self.spoken]


WHOSE = {
    "order": "from this trajectory, or from another one of equal reward in its group",
    "group": "all conversations of its group: the transcript does not separate trajectories",
}


def groups_of(tree: object, groups: Sequence[Sequence[Record]]) -> dict[int, list[Transcript]]:
    """Return the conversations of each group's trajectories, by the group's index in `groups`.
    `groups` has the summaries of each group's trajectories, in the order of the transcript `tree`.

    A group whose summaries are missing is not in `groups`. So a section of the transcript that
    contains the lengths of turns is matched with the next group that has the same lengths. Other
    sections are matched in order.
    """
    root = table_of(tree).get("root")
    by_group: dict[int, list[Transcript]] = {}
    start = 0
    for section in (node for node in _sections(root) if _heading(node) == _GROUP):
        lengths = _recorded_lengths(section)
        for number in range(start, len(groups)):
            if not lengths or lengths == [_lengths(record) for record in groups[number]]:
                by_group[number] = _apart(section, groups[number])
                start = number + 1
                break
    return by_group


def _recorded_lengths(group: Record) -> list[list[float]]:
    """Return the lengths of the prompts and answers, in tokens, for each trajectory in a group's
    section. The list is empty if the section contains no lengths."""
    lengths: dict[int, list[float]] = {}
    for section in _all_sections(group):
        matched = _EPISODE.match(_heading(section))
        if matched:
            rows = (row for row in _rows(section) if row[0] in ("ob_len", "ac_len"))
            lengths[int(matched[1])] = [float(text) for _, text in rows if text.isdigit()]
    return [lengths[number] for number in sorted(lengths)]


def _lengths(record: Record) -> list[float]:
    return [
        number
        for step in _steps(record)
        for key in ("ob_len", "ac_len")
        if (number := as_float(step.get(key))) is not None
    ]


def _apart(group: Record, records: Sequence[Record]) -> list[Transcript]:
    parts = [part for part in _sections(group, below=True) if _heading(part) != _DETAILS]
    numbered = _numbered(group, len(records))
    if numbered is not None:
        return [Transcript(spoken, "trajectory") for spoken in numbered]
    whole = list(messages_of(group))
    if len(records) == 1:
        return [Transcript(whole, "trajectory")]
    first = _heading(parts[0]) if parts else None
    starts = [place for place, part in enumerate(parts) if _heading(part) == first]
    if not parts or len(starts) != len(records):
        return (
            [Transcript(whole, "group") for _ in records]
            if whole
            else [Transcript([], "trajectory")] * len(records)
        )
    ends = [*starts[1:], len(parts)]
    return _assigned([parts[a:b] for a, b in zip(starts, ends, strict=True)], records)


def _numbered(group: Record, size: int) -> list[list[Spoken]] | None:
    """Return the messages of each of a group's `size` trajectories, from the sections with numbered
    headings ("Completion 2"). Messages before the first such section belong to every trajectory.
    Return None if no kind of heading has exactly the numbers from 0 to `size` - 1."""
    families: dict[str, dict[int, dict[str, object]]] = {}
    for section in _all_sections(group):
        matched = _NUMBERED.match(_heading(section))
        if matched:
            families.setdefault(matched[1].lower(), {})[int(matched[2])] = section
    for family in families.values():
        if set(family) == set(range(size)):
            members = {id(section) for section in family.values()}
            before: list[Spoken] = []
            for section in _all_sections(group):
                if id(section) in members:
                    break
                if not any(id(inner) in members for inner in _all_sections(section)):
                    before += messages_of(section)
            return [[*before, *messages_of(family[number])] for number in range(size)]
    return None


def _assigned(blocks: Sequence[Sequence[Record]], records: Sequence[Record]) -> list[Transcript]:
    """Assign a block of sections to each trajectory: a block with an answer that the trajectory
    logged, else a block with the trajectory's reward. Blocks with equal rewards are assigned in
    order. If the rewards of blocks and trajectories do not agree, rewards are ignored, and the
    blocks without such an answer are assigned in order."""
    spoken = [[texts for part in block for texts in messages_of(part)] for block in blocks]
    unassigned = dict.fromkeys(range(len(blocks)))
    sure: dict[int, int] = {}
    for place, record in enumerate(records):
        logged = {text for who, text in turns_logged(record) if who in _ANSWERS and text}
        fitting = [n for n in unassigned if any(texts in logged for _, texts in spoken[n])]
        if fitting:
            sure[place] = fitting[0]
            del unassigned[fitting[0]]
    assigned = {place: Transcript(spoken[block], "trajectory") for place, block in sure.items()}
    rest = [place for place in range(len(records)) if place not in assigned]
    by_reward: dict[str | None, list[int]] = {}
    for block in unassigned:
        by_reward.setdefault(dict(spoken[block]).get("reward"), []).append(block)
    wanted: dict[str | None, list[int]] = {}
    for place in rest:
        wanted.setdefault(f"{_reward(records[place]):.3f}", []).append(place)
    if {k: len(v) for k, v in by_reward.items()} != {k: len(v) for k, v in wanted.items()}:
        by_reward, wanted = {None: list(unassigned)}, {None: rest}
    for key, places in wanted.items():
        same = len({tuple(spoken[block]) for block in by_reward[key]}) == 1
        for place, block in zip(places, by_reward[key], strict=True):
            assigned[place] = Transcript(spoken[block], "trajectory" if same else "order")
    return [assigned[place] for place in range(len(records))]


def _reward(record: Record) -> float:
    """Return the sum of the rewards of a record's turns."""
    return sum(as_float(step.get("reward")) or 0.0 for step in _steps(record))


def _children(node: object) -> list[object]:
    return list_of(table_of(node).get("children"))


def _sections(node: object, below: bool = False) -> Iterator[dict[str, object]]:
    """Yield the outermost sections of a tree. With `below`, skip the node itself."""
    if is_table(node) and node.get("tag") == "section" and not below:
        yield node
        return
    for child in _children(node):
        yield from _sections(child)


def _all_sections(node: object) -> Iterator[dict[str, object]]:
    for section in _sections(node, below=True):
        yield section
        yield from _all_sections(section)


def _rows(node: object) -> Iterator[tuple[str, str]]:
    if table_of(node).get("tag") == "tr":
        cells = [_text(child).strip() for child in _children(node)]
        if len(cells) == 2 and cells != ["key", "value"]:
            yield cells[0], cells[1]
        return
    for child in _children(node):
        yield from _rows(child)


def _heading(section: Record) -> str:
    for child in _children(section):
        if str(table_of(child).get("tag", "")) in _HEADINGS:
            return _text(child).strip()
    return ""


def _text(node: object) -> str:
    if isinstance(node, str):
        return html.unescape(node)
    return "".join(_text(child) for child in _children(node))


def messages_of(node: object) -> Iterator[Spoken]:
    """Yield the messages, paragraphs and table rows of a tree, in order. Skip sections with
    trajectory details, which repeat the rollout summaries."""
    fields = table_of(node)
    data, tag = table_of(fields.get("data")), fields.get("tag")
    if data.get("type") == "conversation":
        for message in list_of(data.get("messages")):
            if is_table(message):
                yield str(message.get("role", "?")), _content(message)
    elif tag == "p":
        text = _text(fields).strip()
        matched = _WHO.match(text)
        yield (matched[1], matched[2]) if matched else ("note", text)
    elif tag == "details":
        title, *rest = _children(fields) or [""]
        yield _text(title).strip(), "".join(map(_text, rest)).strip()
    elif tag == "tr":
        yield from _rows(fields)
    elif tag != "section" or _heading(fields) != _DETAILS:
        for child in _children(fields):
            yield from messages_of(child)


def _content(message: Record) -> str:
    """Return a message as text. Parts such as thinking or tool calls begin with their kind."""
    content = message.get("content")
    if isinstance(content, str):
        text = content
    else:
        parts = content if is_list(content) else [content]
        text = "".join(_part(part) for part in parts)
    return text + "".join(f"\n[tool_call] {call}" for call in list_of(message.get("tool_calls")))


def _part(part: object) -> str:
    if not is_table(part):
        return "" if part is None else str(part)
    kind = str(part.get("type", "text"))
    text = part.get("text", part.get(kind))
    if kind == "text":
        return str(text)
    rest = {key: value for key, value in part.items() if key != "type"}
    return f"[{kind}] {rest if text is None else text}\n"


def turns_logged(record: Record) -> list[Spoken]:
    """Return the messages that the turns of a trajectory logged, in order. Speakers have the same
    names as in transcripts."""
    spoken: list[Spoken] = []
    for step in _steps(record):
        for key, value in table_of(step.get("logs")).items():
            spoken.append((_SPEAKERS.get(str(key).lower(), str(key)), str(value)))
    return spoken


def answers(spoken: Sequence[Spoken]) -> list[str]:
    """Return the model's messages; empty if no speaker is known to be the model."""
    return [text for who, text in spoken if who in _ANSWERS]


def _steps(record: Record) -> list[dict[str, object]]:
    return [step for step in list_of(record.get("steps")) if is_table(step)]
