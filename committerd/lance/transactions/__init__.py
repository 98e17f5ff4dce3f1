"""A transaction as a whole: its content, whether it is valid and fits the table, and the version that it makes."""
