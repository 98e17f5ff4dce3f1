"""A transaction as a whole: what it says, whether it is valid and fits the table, and the version that it makes."""
