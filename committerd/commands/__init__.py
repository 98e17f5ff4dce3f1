"""The commands, one module each. The only place where settings, edges and the core meet."""

from __future__ import annotations
