"""A process of committerd that counts its requests to Kafka: `python -m bench.counting_member FILE run`.

The file holds the number of requests so far, and is written each second.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

from kafka.net.connection import KafkaConnection

from committerd.__main__ import main

_WRITE_SECONDS = 1.0


def _write(file: Path, counted: list[int]) -> None:
    while True:
        file.write_text(str(counted[0]))
        time.sleep(_WRITE_SECONDS)


if __name__ == "__main__":
    path, sent = Path(sys.argv.pop(1)), [0]
    send = KafkaConnection._send_request

    def counting(self: Any, *args: Any, **options: Any) -> Any:
        sent[0] += 1
        return send(self, *args, **options)

    KafkaConnection._send_request = counting
    threading.Thread(target=_write, args=(path, sent), daemon=True).start()
    main()
