"""What the client and the committer have in common. Comes with `committerd-client`; the committer depends on that.

`messages` has the protobuf messages of Lance and of committerd, which are the model of everything. `request` decodes a
staged record. `paths` and `uris` say where files and tables lie. `row_ids` and `index_details` read and write what
fragments and indices carry, and `unknown_fields` finds the fields of a message that committerd does not know. `errors`
has the exceptions that both raise, `repeats` the filter for repeated log lines.

Nothing here opens a file or a connection. Everything runs on Python 3.10, which Spark clusters have.
"""

from __future__ import annotations
