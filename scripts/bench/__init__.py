"""`make bench`: committerd beside pylance, in one run on one machine, store and set of files.

    .venv/bin/python -m scripts.bench                            everything; about 25 minutes
    .venv/bin/python -m scripts.bench --only fragments judge     some scenarios
    .venv/bin/python -m scripts.bench --quick                    small, to see that it runs

`scenarios` holds one module for each; its docstring says what is timed. `bars` says what the figures must reach.
"""
