"""Ports to the world: the only home of kafka-python, aiobotocore, aiohttp and the file system."""

from __future__ import annotations
