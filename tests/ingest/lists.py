"""A reader of lists of rows, for tests; some of its kinds break a promise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from committerd_ingest.reading import Part, Reader
from committerd_ingest.testing import SCHEMA


@dataclass
class Lists:
    """Rows in memory, in two splits; each `add` is a part."""

    kind: type[ListReader]
    parts: dict[str, list[list[dict[str, Any]]]] = field(default_factory=lambda: {"a": [], "b": []})
    opened: int = 0

    def add(self, first: int, count: int) -> None:
        rows = [{"id": number, "text": str(number)} for number in range(first, first + count)]
        self.parts["ab"[first % 2]].append(rows)

    def open(self) -> Reader:
        self.opened += 1
        return self.kind(self)


class ListReader:
    """Its token is the number of parts; of the rows of a part, all but the last come without a token."""

    def __init__(self, lists: Lists) -> None:
        self.lists = lists
        self.number = lists.opened
        self.name = "lists"

    def splits(self) -> Sequence[str]:
        return list(self.lists.parts)

    def waiting(self, split: str) -> int:
        return 0

    def close(self) -> None:
        pass

    def first(self, split: str, after: str | None) -> int:
        return int(after or 0)

    def rows(self, part: Sequence[dict[str, Any]]) -> list[pa.RecordBatch]:
        return [pa.RecordBatch.from_pylist(list(part), SCHEMA)]

    def token(self, split: str, number: int) -> str | None:
        return str(number)

    def read(self, split: str, after: str | None, table: pa.Schema | None) -> Iterator[Part | None]:
        number = self.first(split, after)
        while True:
            parts = self.lists.parts[split]
            if number == len(parts):
                yield None
                continue
            *firsts, last = self.rows(parts[number])
            number += 1
            for one in firsts:
                yield Part(rows=one)
            yield Part(rows=last, token=self.token(split, number))


class BeginsBeforeTheToken(ListReader):
    def first(self, split: str, after: str | None) -> int:
        return max(int(after or 0) - 1, 0)


class BeginsBehindTheNextPart(ListReader):
    def first(self, split: str, after: str | None) -> int:
        return min(int(after) + 1, len(self.lists.parts[split])) if after else 0


class KnowsItsTokensInTheProcess(ListReader):
    def token(self, split: str, number: int) -> str | None:
        return f"{self.number}/{number}"

    def first(self, split: str, after: str | None) -> int:
        process, _, number = (after or f"{self.number}/0").partition("/")
        return int(number) if process == str(self.number) else 0


class HasNoToken(ListReader):
    def token(self, split: str, number: int) -> str | None:
        return None


class TurnsRowsAround(ListReader):
    def rows(self, part: Sequence[dict[str, Any]]) -> list[pa.RecordBatch]:
        return super().rows(part[::-1])


class DropsARow(ListReader):
    def rows(self, part: Sequence[dict[str, Any]]) -> list[pa.RecordBatch]:
        return super().rows(part[1:] or part)


class Ends(ListReader):
    def read(self, split: str, after: str | None, table: pa.Schema | None) -> Iterator[Part | None]:
        for part in super().read(split, after, table):
            if part is None:
                return
            yield part


class HasANameOfItsOwn(ListReader):
    def __init__(self, lists: Lists) -> None:
        super().__init__(lists)
        self.name = f"lists {self.number}"


class ChangesColumnsBeforeAToken(ListReader):
    def rows(self, part: Sequence[dict[str, Any]]) -> list[pa.RecordBatch]:
        (rows,) = super().rows(part)
        return [rows.slice(0, 1).select(["id"]), rows.slice(1)]


class SharesItsPlace(ListReader):
    """Two iterators of a split take the parts from each other."""

    def __init__(self, lists: Lists) -> None:
        super().__init__(lists)
        self.place = dict[str, int]()

    def read(self, split: str, after: str | None, table: pa.Schema | None) -> Iterator[Part | None]:
        self.place[split] = int(after or 0)
        while True:
            number = self.place[split]
            if number == len(self.lists.parts[split]):
                yield None
                continue
            self.place[split] = number + 1
            yield Part(rows=self.rows(self.lists.parts[split][number])[0], token=str(number + 1))
