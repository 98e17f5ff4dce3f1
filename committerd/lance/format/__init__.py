"""Bytes to messages and back: what Lance puts on storage.

The generated messages, paths, row ids and index details are in `committerd_common`, since clients need them too. Here
`manifest_file` and `fragment_list` are what a version is made of; `data_file`, `deletion_file` and `fragment_reuse`
are the files that belong to it. `support`, `feature_flags` and `bounds` find what we would break.
"""

from __future__ import annotations
