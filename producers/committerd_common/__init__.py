"""Code that the client and the committer share. The distribution `committerd-client` contains it; the committer depends
on that distribution.

`messages` has the protobuf messages of Lance and of committerd, which are the data model. `request` decodes a staged
record. `paths` makes the keys of a table's files, `uris` compares the URIs of tables. `row_ids` and `index_details`
read and write the encoded parts of fragments and indices; `row_runs` is arithmetic on row ids. `unknown_fields` finds
the fields of a message that committerd does not know. `errors` has the exceptions that both sides raise, `malformed`
turns undecodable bytes into them, `repeats` filters repeated log lines, `backports` has names for Python 3.10.

Nothing here opens a file or a connection. Everything runs on Python 3.10, which Spark clusters have.
"""

from __future__ import annotations
