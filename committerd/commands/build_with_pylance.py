"""Builds versions with pylance: the process behind `committerd.daemon.pylance_process`, no command for people.

Its argument is the table's URI; it reads the settings of the stores as other commands do.

Each line of standard input is a JSON object: `version`, on which to build, and `transaction`, the base64 of its bytes.
The answer is a line of standard output: `built`, the number of the detached version; `next`, that of a commit on top of
it that changes nothing, or null and why (`refusal`). If nothing could be built, it is `error`, and whether the
transaction is at fault (`is_refused`); otherwise it may be the store or the machine.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from committerd.commands.lance_options import table_options
from committerd.lance.format.manifest_file import encode
from committerd.lance.versions.draft import DATA_FORMAT_DEFAULT, FILE_FORMAT
from committerd.settings.load import load_storage_settings
from committerd_common.messages import Manifest, Transaction
from committerd_common.paths import NamingScheme, manifest_key

if TYPE_CHECKING:
    import lance

_AT_FAULT = (ValueError, TypeError, NotImplementedError)
"""What pylance raises for a transaction or a table that it can't commit, and no outage."""
_TEXTS_OF_FAULTS = ("Invalid user input: ", "Not supported: ")
"""How such an error begins where pylance raises `OSError` for it."""
_TEXT_MAX = 300


def main() -> None:
    """Answer each line of standard input, until it ends."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # if memory runs out, this process ends, not the committer
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever else is printed is no answer
        for line in sys.stdin:
            asked = json.loads(line)
            transaction = Transaction.FromString(base64.b64decode(asked["transaction"]))
            print(json.dumps(_answer(sys.argv[1], asked["version"], transaction)), file=answers, flush=True)


def _answer(uri: str, version: int, transaction: Transaction) -> dict[str, Any]:
    try:
        return _built(uri, version, transaction)
    except BaseException as error:  # noqa: BLE001  # a panic of Rust is a BaseException
        is_refused = (
            isinstance(error, _AT_FAULT)
            or type(error).__name__ == "PanicException"
            or str(error).startswith(_TEXTS_OF_FAULTS)
        )
        return {"error": _text(error), "is_refused": is_refused}


def _built(uri: str, version: int, transaction: Transaction) -> dict[str, Any]:
    import lance
    from lance.dataset import LanceOperation
    from lance.dataset import Transaction as LanceTransaction

    # The manifests of the version and of those before it are in place, so no external manifest store is needed; it
    # would get an entry of each detached version.
    uri = uri.replace("s3+ddb://", "s3://", 1).partition("?")[0]
    options = table_options(uri, load_storage_settings())
    options.pop("dynamodb_endpoint", None)
    base = lance.dataset(uri, version=version, storage_options=options or None)
    built = lance.LanceDataset.commit(base, _read_by_pylance(transaction), detached=True)
    try:
        nothing = LanceTransaction(
            built.version,
            LanceOperation.UpdateConfig(),
            transaction_properties=dict(transaction.transaction_properties),
        )
        after = lance.LanceDataset.commit(built, nothing, detached=True)
    except BaseException as error:  # noqa: BLE001  # as in `_answer`
        return {"built": built.version, "next": None, "refusal": _text(error)}
    return {"built": built.version, "next": after.version, "refusal": ""}


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error)[:_TEXT_MAX]}"


def _read_by_pylance(transaction: Transaction) -> lance.Transaction:
    """The transaction as pylance reads it from the bytes, of a table that is made for it."""
    import lance

    manifest = Manifest(version=1)
    manifest.data_format.file_format, manifest.data_format.version = FILE_FORMAT, DATA_FORMAT_DEFAULT
    manifest.writer_version.library, manifest.writer_version.version = "lance", lance.__version__
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, manifest_key(1, NamingScheme.V2))
        path.parent.mkdir()
        path.write_bytes(encode(manifest, [], transaction))
        read = lance.dataset(folder).read_transaction(1)
    if read is None:
        raise ValueError("pylance reads no transaction from these bytes")
    return read


if __name__ == "__main__":
    main()
