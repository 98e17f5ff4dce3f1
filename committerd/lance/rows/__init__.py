"""The rows that transactions delete: which rows these are, whether two transactions delete the same row, and what
several transactions do together.

A Delete, and an Update that rewrites rows, touch existing fragments only in that they delete rows of them. Two of them
conflict only where they delete the same row, so several can share a version. Rows are offsets in their
fragment, as in a deletion file. Nothing here reads a file: the caller passes what deletion files hold.
"""
