"""Upserts that must win under a stream of appends. `python -m scripts.turns` measures them; see `__main__`."""
