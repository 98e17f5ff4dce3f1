"""Questions about a schema: a flat list of fields, parents before their children."""

from __future__ import annotations

from collections.abc import Iterable

from committerd.format.messages import Field


def may_tighten_nullability(before: Iterable[Field], after: Iterable[Field]) -> bool:
    """Whether data written for `before` may break `after`: some field is no longer nullable, or new
    and required.

    Lance 14 has writers assert this (`preserves_nullability`); comparing the schemas needs no
    assertion. A required child of a new parent does no harm: where the parent is null or left out
    there is nothing to require.
    """
    nullable_before = {field.id: field.nullable for field in before}
    return any(
        not field.nullable
        and nullable_before.get(field.id, True)
        and (field.parent_id < 0 or field.parent_id in nullable_before)
        for field in after
    )
