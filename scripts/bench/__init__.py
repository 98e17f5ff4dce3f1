"""`make bench`: committerd and pylance side by side, in one run on one machine, with the same store and files.

    .venv/bin/python -m scripts.bench                            everything; about an hour
    .venv/bin/python -m scripts.bench --only fragments judge     some scenarios
    .venv/bin/python -m scripts.bench --quick                    small sizes, to check that it runs

`scenarios` has one module for each scenario; its docstring says what is timed. `bars` has the targets.
"""
