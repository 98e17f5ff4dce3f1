# `make` lists the targets. Each makes what it needs by itself; `setup` downloads only what is not there yet.
.DEFAULT_GOAL := help
.PHONY: help setup demo test simulate histories oracle check lint format protos docs clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

setup: ## All that the other targets need: .venv, pylance 4.0.0, Apache Kafka
	@sh scripts/setup.sh

demo: setup ## The whole way: 8 producers, Apache Kafka, the daemon, a Lance table
	.venv/bin/python scripts/demo.py

test: setup ## All tests; `make test ARGS="tests/edges -x"` runs some of them
	.venv/bin/python scripts/run_tests.py $(ARGS)

simulate: setup ## The committer in virtual time; `make simulate SEEDS=0-4999`, without SEEDS fresh ones and all mutations
	.venv/bin/python scripts/simulate.py $(SEEDS)

histories: setup ## Random histories, committed by pylance and by us; `make histories FIRST=1 COUNT=500`
	LANCE_LOG=error .venv/bin/python -m tests.conformance.histories --first $(or $(FIRST),1) --count $(or $(COUNT),200)

oracle: setup ## Random changes and damage, held against pylance; `make oracle SEEDS=0-999 KIND=changes`
	LANCE_LOG=error .venv/bin/python -m scripts.oracle $(or $(KIND),changes) $(or $(SEEDS),0-299)

check: lint ## Lint, and whether generated files are those of their sources
	.venv/bin/python scripts/generate_protos.py --check
	.venv/bin/python scripts/generate_metrics_table.py --check

lint: setup ## Format, ruff, mypy and the layers
	.venv/bin/python -m ruff format --check .
	.venv/bin/python -m ruff check .
	.venv/bin/python -m mypy
	.venv/bin/lint-imports

format: setup ## Format the code and fix what ruff can fix
	.venv/bin/python -m ruff check --fix-only .
	.venv/bin/python -m ruff format .

protos: setup ## Generate committerd/format/*_pb2.py from protos/
	.venv/bin/python scripts/generate_protos.py

docs: setup ## Generate docs/metrics.md from committerd/telemetry.py
	.venv/bin/python scripts/generate_metrics_table.py

clean: ## Remove what was made in this folder; the cache of downloads stays
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
