"""One table over the store port: reads its versions, judges transactions, builds and writes the next version."""
