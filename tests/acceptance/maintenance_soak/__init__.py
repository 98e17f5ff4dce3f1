"""Writers, clients and readers beside `committerd maintain`, all of which are killed at random moments; then a check.

    make maintain-soak ARGS="--seconds 300"
    make maintain-soak ARGS="--steady --seconds 3600"

An hour of the maintenance settings lasts some seconds, so that versions and files get old enough to be deleted. Writers
at steady rates, maintenance and a reader work beside each other, each as a process. Each minute tells what was done,
how the table is beside its targets, and how much processor time each process took. At the end each row must be as
serial execution makes it, and no file may be left that nothing needs.

The first part, half of the time, writes as fast as it can, with maintenance and without, and compares the two. In the
second part committer, maintenance and a client are killed now and then. With --steady there is one part, in which
nothing is killed, and an hour of the settings lasts a minute. Temporary files in memory (TMPDIR) save a third of the
processor time.

`soak` is one run; `writers`, `reader` and `client` are its processes; `kills` is what is killed; `cheap_staging` is how
the writers stage; `table` is the table with what each row must contain, and `expected` what must be in it; `figures`
has the table beside its targets; `usage` counts processor time and memory; `checks` is what must hold at the end.
"""
