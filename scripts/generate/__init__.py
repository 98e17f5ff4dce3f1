"""Programs that write files which are checked in: from the code, from `protos/`, or from a package registry.

python -m scripts.generate            pages, the chart's schema and dashboard: `make docs`
python -m scripts.generate --check    whether these files are what they are generated from
python -m scripts.generate.protos     `make protos`
python -m scripts.generate.lock_image `make lock`
python -m scripts.generate.lock_jars  the jars of Kafka and DynamoDB Local
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
