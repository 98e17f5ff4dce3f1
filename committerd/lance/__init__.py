"""Lance's messages, files and rules. Pure: no await, clock, random numbers or logging; every input is an argument.

`format` reads and writes what lies on storage. `checks` says what a single value may be. `versions` holds the parts of
a version, and the draft of the next one. `conflicts` has the grid: may a transaction pass one that was committed since
its read version? `operations` has a module for each of the 15 operations. `transactions` puts them together: what a
transaction says, whether it is valid, whether it fits the table, and the version that it makes.
"""
