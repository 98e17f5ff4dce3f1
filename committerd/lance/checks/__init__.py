"""Checks of single values in a message: names, uuids, paths, numbers."""
