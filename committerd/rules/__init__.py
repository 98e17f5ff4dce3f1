"""Messages to decisions. Pure: no await, no clock, no dice, no logging; every input is an argument.

`footprint` and `conflicts` say whether a transaction may pass what was committed since it was read, `rebase` what has
to change for that, `manifest` what the next version looks like, `invariants` what must hold of it. `position`,
`answers`, `grouping`, `dedupe`, `settle` and `startup` are the queue's side of it: which records a version settles and
what each of them is told.
"""

from __future__ import annotations
