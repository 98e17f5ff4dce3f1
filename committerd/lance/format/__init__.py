"""Bytes to messages and back: what Lance puts on storage, and what lies in the topic. No rules, no
IO.

`messages` has the protobuf messages, which are the model of everything. `paths` says where files
lie, `manifest_file` what a version is made of, `deletion_file`, `row_ids`, `index_details` and
`fragment_reuse` what hangs on it; `support` and `unknown_fields` refuse what we would break.
`request` decodes a staged record.
"""

from __future__ import annotations
