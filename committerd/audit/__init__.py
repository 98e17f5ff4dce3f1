"""The audit: it finds lost records, doubled records and false outcomes, from a table's versions and its topics."""
