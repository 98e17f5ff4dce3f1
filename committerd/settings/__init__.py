"""What an operator may set: one module for each group, and `load`, which reads them all."""
