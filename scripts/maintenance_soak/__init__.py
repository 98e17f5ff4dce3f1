"""Writers, clients and readers beside `committerd maintain`, all of which are killed at random moments; then a check.

    python -m scripts.maintenance_soak --seconds 300

An hour of the maintenance settings lasts a few seconds, so that versions and files get old enough to be deleted.
`hours` is the process with such hours, `table` the table with what it must contain, `load` the writer and the reader,
`client` a writer in a process of its own, `figures` what is counted, `checks` what must hold at the end, and `soak` all
of it.
"""
