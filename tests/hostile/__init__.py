"""Hostile records between good ones, against a real committer."""
