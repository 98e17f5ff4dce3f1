"""Messages to decisions. Pure: no await, no clock, no random numbers, no logging; every input is an argument.

`operations` has a module for each of the 15 operations. `validation` and `content` say whether a transaction can be
committed at all, `conflicts` whether it may pass what was committed since it was read, `manifest` what the next version
looks like, `invariants` and `succession` what must hold of it. `position`, `ledger`, `grouping`, `turns`, `answers`,
`settle` and `startup` are the queue's side of it: which records a version settles, and what each of them is told.
`audit` and `replay` are for operators.
"""

from __future__ import annotations
