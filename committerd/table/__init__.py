"""One table over the store port: its versions, whether a transaction may become the next one, and writing it."""
