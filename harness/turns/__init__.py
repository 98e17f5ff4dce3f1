"""A load of upserts that must win under a stream of Appends: for `make turns`, for tests and for the benchmark."""
