"""The demo: everything from end to end on real parts. `python -m scripts.demo` runs it; see `__main__`."""
