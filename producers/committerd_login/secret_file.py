"""A secret that stands in a file, alone."""

from __future__ import annotations

from pathlib import Path


def read_secret(path: Path, option: str) -> str:
    """The secret; a newline at the end of the file does not count.

    Raises `ValueError`, which names the option, if the file can't be read or is empty.
    """
    try:
        found = path.read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:  # whose text has the bytes of the secret
        raise ValueError(f"{option}: {str(path)!r} can't be read: it is not UTF-8") from error
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise ValueError(f"{option}: {str(path)!r} can't be read: {reason}") from error
    if not found:
        raise ValueError(f"{option}: {str(path)!r} is empty")
    return found
