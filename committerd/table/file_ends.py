"""How much of the end of a data file is read first."""

from __future__ import annotations

from collections.abc import Iterable

END_BYTES, END_BYTES_MAX = 16 * 1024, 256 * 1024
"""The least and the most bytes to read. A column takes 150 to 190 bytes there, or more if it has many pages."""


class EndBytes:
    """How many bytes of a data file's end to read first: as many as the last files of the table have needed.

    Then one request for each file is enough, whether the table has few columns or many.
    """

    def __init__(self) -> None:
        self.bytes = END_BYTES

    def note(self, needed: Iterable[int]) -> None:
        """Note how many bytes the ends of the last files had to have, for their descriptors to be in them.

        The next ends have a quarter more, because files differ. A file that needed more than `END_BYTES_MAX` does not
        count: a longer end would still not be enough. Neither does a 0, which says that a file has no descriptor.
        """
        known = [one for one in needed if one]
        if not known:
            return
        most = max((one for one in known if one <= END_BYTES_MAX), default=0)
        self.bytes = min(max(most + most // 4, END_BYTES), END_BYTES_MAX)
