"""Writers, clients and readers beside `committerd maintain`, all of which are killed at random moments; then a check.

    python -m tests.acceptance.maintenance_soak --seconds 300
    python -m tests.acceptance.maintenance_soak --steady --seconds 3600

An hour of the maintenance settings lasts a few seconds, so that versions and files get old enough to be deleted.
`hours` is the process with such hours, `table` the table with what it must contain, `load` the writer and the reader,
`client` a writer in a process of its own, `figures` what is counted, `checks` what must hold at the end, and `soak` all
of it.

With --steady nothing is killed: writers at steady rates, maintenance and a reader work beside each other, and each
minute tells what was done, how the table is beside its targets, and how much processor time each process took. An hour
of the settings lasts a minute. `steady` is that run, `writers` and `reader` are its processes, `cheap` is how the
writers stage, `expected` what must be in the table, and `spent` who took the time. The reader does the same work in
each minute, however large the table is: each second it reads 1,024 rows at random places and counts all rows; every 4 s
it asks the indices for such rows, and every 2 s it reads some rows of an older version again; each minute it reads all
rows, of the latest version and of an older one, and compares each index with scans of the whole table. At the end each
row must be as serial execution makes it. Temporary files in memory (TMPDIR) save a third of the processor time.
"""
