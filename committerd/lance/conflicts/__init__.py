"""Conflicts: may our transaction pass one that was committed since its read version?

`grid` has a cell for each pair of operations, `rules` the functions in the cells, `footprint` their input, and
`key_filter` the keys that a merge-insert inserted.
"""
