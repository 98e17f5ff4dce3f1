"""Deletes what no reader and no writer needs any more: old versions, and files that no version names.

`names` knows which files a version or a transaction names, `versions` decides which versions may go, `files` which
files may go, and `report` how that is written down. None of them does I/O. `survey` reads all of it from the store and
the topic, and `cleaning` does it.
"""

from __future__ import annotations
