"""What a single value in a message may be: a name, a uuid, a path, a number."""
