"""Looks for a transaction in a table's history, as far as pylance can read it."""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from typing import Any

from committerd_common.messages import COMMITTED, Member, Members, Outcome, Refusal, Refusals

VERSIONS_MAX = 1_000
"""Maximum number of versions that it reads. Each version takes one or two reads of the table's storage."""

_MEMBERS, _REFUSED = "committerd.members", "committerd.refused"
"""Transaction properties of each version that came from the queue."""


def find(uri: str | None, storage_options: Mapping[str, str] | None, uuid: str) -> tuple[Outcome | None, str]:
    """The outcome of this uuid in the latest 1,000 readable versions, or None; and a phrase that names them. Blocks."""
    if uri is None:
        return None, "the table was not asked (the client has no dataset_uri)"
    if find_spec("lance") is None:
        return None, "the table was not asked (pylance is not installed: extra `lance`)"
    import lance  # imported here because it takes a third of a second

    try:
        table = lance.dataset(uri, storage_options=dict(storage_options or {}) or None)
    except (OSError, ValueError) as error:  # pylance raises either if the table does not exist
        return None, f"the table was not asked ({_first_line(error)})"
    latest = lowest = table.version
    while lowest > max(latest - VERSIONS_MAX, 0):
        try:
            transaction = table.read_transaction(lowest)
        except (OSError, ValueError):  # cleaned up; nothing before a gap is read
            break
        found = None if transaction is None else _settled(transaction, lowest, uuid)
        if found is not None:
            return found, ""
        lowest -= 1
    looked = "no version can be read" if lowest == latest else f"versions {lowest + 1} to {latest} don't have it"
    return None, f"of the table {looked}"


def committed_among(table: Any, uuids: Collection[str], *, above: int) -> tuple[dict[str, int], bool]:
    """Which of these transactions are in the versions above `above`, up to that of the dataset `table`.

    Returns the version of each, and whether all these versions were read: they were not if some were cleaned up, or
    are more than 1,000. Blocks.
    """
    found: dict[str, int] = {}
    for version in range(table.version, above, -1):
        try:
            transaction = table.read_transaction(version) if version > table.version - VERSIONS_MAX else None
        except (OSError, ValueError):  # cleaned up
            transaction = None
        if transaction is None:
            return found, False
        properties = transaction.transaction_properties or {}
        members = Members.FromString(base64.b64decode(properties.get(_MEMBERS, ""))).members
        for uuid in (transaction.uuid, *(member.uuid for member in members)):
            if uuid in uuids:
                found[uuid] = version
    return found, True


def _settled(transaction: Any, version: int, uuid: str) -> Outcome | None:
    """The outcome that one version gives the transaction; None if it has none."""
    properties = transaction.transaction_properties or {}
    members = Members.FromString(base64.b64decode(properties.get(_MEMBERS, ""))).members
    for member in members:
        if member.uuid == uuid:
            return _committed(member, version, of=transaction, transactions=len(members))
    for refusal in Refusals.FromString(base64.b64decode(properties.get(_REFUSED, ""))).refusals:
        if refusal.uuid == uuid:
            return _refused(refusal)
    if transaction.uuid == uuid:  # committed by hand, not through the queue
        return _committed(Member(uuid=uuid, offset=-1), version, of=transaction, transactions=1)
    return None


def _committed(member: Member, version: int, *, of: Any, transactions: int) -> Outcome:
    return Outcome(
        uuid=member.uuid,
        status=COMMITTED,
        version=version,
        offset=member.offset,
        read_version=member.read_version,
        operation=re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(of.operation).__name__).lower(),
        transactions=transactions,
        reserved_first=member.reserved_first,
        reserved_count=member.reserved_count,
    )


def _refused(refusal: Refusal) -> Outcome:
    return Outcome(
        uuid=refusal.uuid,
        status=refusal.status,
        reason=refusal.reason,
        message=refusal.message,
        version=refusal.version,
        offset=refusal.offset,
        read_version=refusal.read_version,
        operation=refusal.operation,
        conflicting_version=refusal.conflicting_version,
        conflicting_operation=refusal.conflicting_operation,
    )


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:300]
