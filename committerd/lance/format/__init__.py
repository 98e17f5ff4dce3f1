"""Lance's files: from bytes to messages and back.

The generated messages, paths, row ids, deletion files and index details are in `committerd_common`, because clients
need them too. Here `manifest_file` and `fragment_list` read and write a version's manifest; `data_file` and
`fragment_reuse` are about the files that belong to it. `support`, `feature_flags` and `bounds` find the features and
numbers that committerd can't write. `writers` names the program that wrote a version, `kind` lists the operations.
"""

from __future__ import annotations
