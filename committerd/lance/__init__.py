"""Lance's messages, files and rules. Pure: no await, clock, random numbers or logging; every input is an argument.

`format` reads and writes the files of a table. `checks` checks single values of a message. `versions` holds the parts
of a version, and the draft of the next one. `conflicts` has the grid: may a transaction pass one that was committed
since its read version? `rows` compares changes by the rows and keys that they touch. `operations` has a module for each
of the 15 operations. `transactions` is about a transaction of any operation: its content, whether it is valid, whether
it fits the table, and the version that it makes.
"""
