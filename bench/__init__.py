"""`make bench`: committerd and pylance side by side, in one run on one machine, with the same store and files.

    .venv/bin/python -m bench                            everything; about an hour
    .venv/bin/python -m bench --only fragments judge     some scenarios
    .venv/bin/python -m bench --quick                    small sizes, to check that it runs

`scenarios` has one module for each scenario; its docstring says what is timed. `targets` has floors and aims. Other
modules are programs that measure one thing each: `measure_start` on a table of `long_history`, `spark_throughput`,
`spark_maintenance`, and `same_new_keys`, which counts keys that are there twice.
"""
