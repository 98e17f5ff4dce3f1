"""The status page of a member: what it knows of each dataset that it serves, as HTML and as JSON. It only shows."""

from __future__ import annotations
