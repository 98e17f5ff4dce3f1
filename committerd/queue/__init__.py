"""The decisions on the queue's side of a commit. Pure: no await, no clock, no random numbers, no logging.

`port` is the interface of a queue, with its records. `position` says how far a table has settled its topic, `ledger`
whether a record was settled before, `rounds` which waiting records are taken together, `grouping` which of them become
one version, `outcomes` the outcome of each record, `race` who wrote a version, `start` whether a committer may run on
this table and topic, and what Kafka knows of earlier outcomes, `reservations` which refused transactions go before
others, `dead_letter` how a refused record is written and read, `replay` which dead letters may be staged again.
"""
