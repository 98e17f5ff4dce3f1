"""Stores for tables: the `ObjectStore` port, `open`, and one or more modules for each kind of store."""
