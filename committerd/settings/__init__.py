"""The operator's settings: one module for each group, and `load`, which reads them all."""
