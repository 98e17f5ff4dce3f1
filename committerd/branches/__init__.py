"""Promotes a branch of a table: brings to main what has happened on the branch since it left main.

`reference` reads what Lance writes of a branch, `history` reads its versions, and `changes` compares two of them.
`grid` asks the conflict rules, `landing` builds the version of main, `indices` brings the indices, and `promoting` runs
all of it.
"""
