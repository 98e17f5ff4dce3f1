"""Was anything lost, doubled or answered falsely? Decided from a table's versions and its topics."""
