"""From a file to its columns, through the cache: only bytes that are new are read.

A cached file counts when its stamp is as it was. One that has grown is continued, if all bytes
before the end that was cached are still the same: by a checksum, or elsewhere by the objects that
it is made of; anything else is parsed again. The times of a file are only as fine as the kernel's
clock: one changed moments before it was last looked at is compared by the checksum of its bytes.
"""

import zlib
from collections.abc import Sequence
from dataclasses import replace

from sweeper.errors import NotFound
from sweeper.metrics.files import MetricsFile
from sweeper.metrics.tables.cache import Cache, Kept
from sweeper.metrics.tables.columns import Columns, columns_of, line_end, parse_columns
from sweeper.metrics.tables.sources import Files, Source, Stamp, begins_with


class Reader:
    """Reads columns; `cache` None: each time from the file. `parsed` counts the bytes that were not
    in it."""

    def __init__(self, cache: Cache | None) -> None:
        self.cache = cache
        self.parsed = 0
        self._hint: tuple[str, ...] = ()

    def columns(
        self,
        files: Files,
        path: str,
        keys: Sequence[str] | None = None,
        source: Source | None = None,
    ) -> Columns | None:
        """The rows of the file at `path`, with these keys and `step` (None: all keys); None when
        there is no such file. `source`: what `files` has just said of it."""
        wanted = None if keys is None else list(dict.fromkeys(("step", *keys)))
        source = source or files.source(path)
        while source is not None:
            try:
                return self._columns(source, wanted)
            except NotFound:  # parts that have become one file meanwhile, or gone
                again = Files(files.store, files.prefix).source(path)
                if again is None or again.stamp == source.stamp:
                    return None
                source = again
        return None

    def keys(self, files: Files, path: str) -> Sequence[str]:
        """The keys in the file at `path`, in order of appearance; none when there is no file."""
        source = files.source(path)
        kept = None
        if source is not None and self.cache is not None:
            kept = self.cache.load(source.name, ())
        if kept is not None and kept.whole and source is not None and _fits(kept, source):
            return kept.keys
        columns = self.columns(files, path)
        return () if columns is None else tuple(columns.values)

    def save(self) -> None:
        """Each file is kept as it is read."""

    def _columns(self, source: Source, keys: list[str] | None) -> Columns:
        cache = self.cache
        kept = None if cache is None else cache.load(source.name, keys)
        if cache is None or kept is None:
            kept = self._fresh(source, self._wanted(source, keys))
        elif _fits(kept, source):
            return kept.columns
        else:
            known = cache.load(source.name, None) or kept
            kept = self._continued(source, known) or self._fresh(source, keys)
        if cache is not None and kept.about:
            cache.save(source.name, kept)
        return kept.columns if keys is None else chosen(kept.columns, keys)

    def _wanted(self, source: Source, keys: list[str] | None) -> list[str] | None:
        """The first time only what is asked for; when more of it is wanted, all at once."""
        if self.cache is None or keys is None:
            return keys
        return None if self.cache.load(source.name, ()) is not None else keys

    def _fresh(self, source: Source, keys: list[str] | None) -> Kept:
        stamp, data = source.view(0)
        self.parsed += len(data)
        columns = parse_file(source.name, data, keys, self._hint)
        if keys is None:
            self._hint = tuple(columns.values)
        kept = self.cache is not None and len(data) == stamp.size
        if source.pieces and stamp.is_fleeting:  # they are not compared by their bytes
            kept = False
        about = _about(source, stamp, data, columns) if kept else {}
        return Kept(about, columns, keys is None)

    def _continued(self, source: Source, kept: Kept) -> Kept | None:
        """What was kept with what is new; None when the file is another, or was rewritten."""
        mark = _Mark(kept)
        if not mark.may_go_on(source) or MetricsFile(source.name).is_csv:
            return None
        begin = mark.offset if mark.pieces else 0
        stamp, data = source.view(begin)
        if stamp.size < mark.stamp.size or len(data) != stamp.size - begin:
            return None
        if mark.sum is not None:
            if stamp.size == mark.stamp.size and zlib.crc32(data) == mark.whole:
                return Kept(_seen(kept.about, stamp), kept.columns, kept.whole)
            if zlib.crc32(data[: mark.offset]) != mark.sum:
                return None
        new = data[mark.offset - begin :]
        self.parsed += len(new)
        old = kept.columns.head(mark.rows)
        keys = None if kept.whole else list(old.values)
        later = parse_columns(new, keys, old.values)
        columns = old.then(later)
        if kept.whole:  # what stood on a last line that is another now may have had keys of its own
            columns = columns.tidy()
        line = line_end(new)
        about = {
            **_seen(kept.about, stamp),
            "offset": mark.offset + line,
            "rows": columns.rows - _rows_after(new, line),
            "sum": None if mark.sum is None else zlib.crc32(new[:line], mark.sum),
            "whole": None if mark.sum is None else zlib.crc32(new, mark.sum),
            "pieces": source.pieces,
        }
        return Kept(about, columns, kept.whole)


def _fits(kept: Kept, source: Source) -> bool:
    mark = _Mark(kept)
    return mark.stamp == source.stamp and not mark.fleeting


class _Mark:
    """What a cache file says of the file it was made from: its stamp, the end (`offset`) and the
    number of its whole lines, checksums of the bytes before that end (`sum`) and of all bytes
    (`whole`), None where they were not needed; the `pieces` of one that lies elsewhere."""

    def __init__(self, kept: Kept) -> None:
        about = kept.about
        self.stamp = Stamp(*about["stamp"])
        self.fleeting: bool = about["fleeting"]
        self.offset: int = about["offset"]
        self.rows: int = about["rows"]
        self.sum: int | None = about["sum"]
        self.whole: int | None = about["whole"]
        self.pieces: list[list[int]] = about["pieces"]

    def may_go_on(self, source: Source) -> bool:
        """Whether there are rows to go on from, and something to compare what is before the end
        by; of a file that lies elsewhere, whether that is the same."""
        if not self.rows or bool(self.pieces) != bool(source.pieces):
            return False
        if self.pieces:
            return begins_with(source, self.pieces)
        return self.sum is not None


def _about(source: Source, stamp: Stamp, data: memoryview, columns: Columns) -> dict[str, object]:
    offset, is_csv = line_end(data), MetricsFile(source.name).is_csv
    # What has kept still will hardly be compared by its bytes.
    compared = not source.pieces and (stamp.is_fleeting or not source.settled)
    total = zlib.crc32(data[:offset]) if compared else None
    return {
        **_seen({}, stamp),
        "offset": offset,
        "rows": columns.rows - (0 if is_csv else _rows_after(data, offset)),
        "pieces": source.pieces,
        "sum": total,
        "whole": None if total is None else zlib.crc32(data[offset:], total),
    }


def _seen(about: dict[str, object], stamp: Stamp) -> dict[str, object]:
    return {**about, "stamp": stamp, "fleeting": stamp.is_fleeting}


def _rows_after(data: memoryview, line: int) -> int:
    """The rows in what follows the last whole line: one, if it lacks only its newline."""
    tail = bytes(data[line:])
    return parse_columns(tail).rows if tail.strip() else 0


def parse_file(
    path: str, data: bytes | memoryview, keys: Sequence[str] | None, hint: Sequence[str]
) -> Columns:
    """Return the rows in the bytes of the file at `path`, as `parse_columns` does."""
    file = MetricsFile(path)
    if not file.is_csv:
        return parse_columns(data, keys, hint)
    parsed = file.parse(bytes(data))
    columns = replace(columns_of(parsed.rows), malformed=parsed.malformed, torn=parsed.torn)
    return columns.tidy() if keys is None else chosen(columns, keys)


def chosen(columns: Columns, keys: Sequence[str]) -> Columns:
    """The rows with these keys only."""
    values = {key: columns.column(key) for key in keys}
    odd = {key: columns.odd[key] for key in keys if key in columns.odd}
    return Columns(columns.rows, values, odd, columns.malformed, columns.torn)
