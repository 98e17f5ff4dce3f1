"""Branches of a table: what has happened on one since it left the main branch, and how main gets it.

`reference` reads what Lance writes of a branch, `history` its versions; `changes` compares two of them; `grid` asks the
conflict rules; `landing` makes the version of main that has it all; `indices` what follows; `promoting` runs it.
"""
