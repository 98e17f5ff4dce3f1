"""The queue's side of a commit, as decisions. Pure: no await, no clock, no random numbers, no logging.

`port` is what a queue offers. `position` says how far a table has answered its topic, `ledger` whether a record was
settled before, `grouping` which records become one version, `outcomes` what each record gets, `race` who wrote a
version, `start` whether a committer may run on this table and topic, `turns` who goes first, `replay` which dead
letters may be staged again.
"""
