"""Hostile records between good ones, against a real committer and a real Kafka.

    python -m tests.hostile                             20,000 records, with seed 1
    python -m tests.hostile --records 2000 --seed 7

The exit code is 1 if a good record is not committed (where no other record can prevent it), if a bad one gets no
outcome, if the committer is not ready at any moment, or if it takes more than 512 MiB of memory (768 MiB under the
heaviest records).
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from pathlib import Path

from harness.kafka import kafka_broker
from harness.scene import Scene
from tests.hostile.attack import (
    Seen,
    attack,
    attack_all_operations,
    attack_with_forged_records,
    attack_with_heavy_records,
)
from tests.hostile.bounds import KINDS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=20_000, help="mutated records; default %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="the same gives the same records; default %(default)s")
    chosen = parser.parse_args()
    wrong = 0
    with (
        tempfile.TemporaryDirectory(prefix="committerd-hostile-", ignore_cleanup_errors=True) as folder,
        kafka_broker() as kafka,
    ):
        for name, run, count in (
            ("seeds and appends", attack, chosen.records // 2),
            ("all operations", attack_all_operations, chosen.records // 2),
            ("forged records", attack_with_forged_records, chosen.records // 4),
            ("heavy records", attack_with_heavy_records, min(chosen.records, 1000)),
        ):
            root = Path(folder, name.replace(" ", "-"))
            (root / "samples").mkdir(parents=True)
            with Scene(kafka=kafka.bootstrap_servers, name=f"hostile-{secrets.token_hex(4)}", folder=root) as scene:
                seen = run(scene, count, chosen.seed, folder=root / "samples")
            print(report(name, seen), flush=True)
            wrong += len(seen.wrong)
        for kind in KINDS:
            root = Path(folder, kind.__name__)
            root.mkdir()
            with Scene(kafka=kafka.bootstrap_servers, name=f"hostile-{secrets.token_hex(4)}", folder=root) as scene:
                seen = kind(scene, chosen.seed)
            print(report(kind.__name__.replace("_", " "), seen), flush=True)
            wrong += len(seen.wrong)
    return 1 if wrong else 0


def report(name: str, seen: Seen) -> str:
    """Print the figures, and the problems found."""
    hostile = seen.hostile.total()
    lines = [
        f"{name}: {hostile} hostile records and {len(seen.good)} good ones in {seen.seconds:.0f} s, at most "
        f"{seen.rss_bytes / 2**20:.0f} MiB",
        *(f"  {count:6} {told}" for told, count in seen.hostile.most_common()),
        *(f"committerd failed on {line}" for line in dict.fromkeys(seen.failed)),
        *(f"WRONG: {line}" for line in seen.wrong),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
