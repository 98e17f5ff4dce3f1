"""The demo: the whole way on real parts. `python -m scripts.demo` runs it; see `__main__`."""
