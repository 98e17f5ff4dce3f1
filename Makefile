# `make` lists the targets. Each makes what it needs by itself; `setup` downloads only what is not there yet.
.DEFAULT_GOAL := help
.PHONY: help setup quick demo test test-long test-deploy test-arm64 conformance faults simulate histories rows oracle hostile spark-chaos spark-versions fleet-kills ingest-kills ingest-history ray-daft pipelines turns brokers takeover outage maintain-soak bench check lint format protos docs site lock licences advisories release release-check clean
.PHONY: basics

# Markers of tests that need a real part.
REAL := kafka or pylance or s3 or dynamodb or azure or gcs or spark

help: ## This list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

setup: ## All that the other targets need: .venv, pylance 4.0.0, Apache Kafka, and for the tests S3 servers
	@sh scripts/setup.sh

basics: # The same without S3 servers, which take minutes to build
	@sh scripts/setup.sh --no-stores

quick: lint ## After each change, within a minute: lint, fast tests of what is pure, 50 seeds of the simulation
	.venv/bin/python -m pytest -q --numprocesses=2 -m "not ($(REAL) or slow)" tests/common tests/lance tests/queue tests/audit
	.venv/bin/python -m tests.simulation 0-49

demo: basics ## The whole way: 8 producers, Apache Kafka, the daemon, a Lance table; STORE=s3, s3+ddb, azure or gcs: there
	.venv/bin/python -m scripts.demo --store $(or $(STORE),local)

test: setup ## All tests but the longest and those of `make test-deploy`; `make test ARGS="tests/stores -x"` runs some of them
	.venv/bin/python -m scripts.run_tests $(ARGS)

test-long: setup ## The longest tests (marker `long`), which each night runs; `make test-long ARGS="tests/spark -x"`
	.venv/bin/python -m scripts.run_tests -m long $(or $(ARGS),tests --ignore=tests/deploy)

test-deploy: basics ## Tests of image, Compose, chart, alerts, dashboard (root, Go, Debian packages; 17 minutes once)
	.venv/bin/python -m scripts.run_tests $(or $(ARGS),tests/deploy)

test-arm64: basics ## Tests of the images for arm64, which qemu builds and runs (root, Debian packages qemu-user-static, binfmt-support; an hour)
	COMMITTERD_IMAGE_ARCHITECTURE=arm64 .venv/bin/python -m scripts.run_tests tests/deploy/test_image.py

conformance: setup ## All conformance cases; STORE=s3, s3+ddb, azure or gcs: there
	$(if $(STORE),COMMITTERD_CONFORMANCE_STORE=$(STORE)) .venv/bin/python -m scripts.run_tests \
		tests/conformance/test_$(if $(STORE),stores,conformance).py

faults: setup ## 1,000 commits on S3, through DynamoDB, on Azure, on GCS, with every fault that networks and stores have
	COMMITTERD_FAULT_COMMITS=1000 .venv/bin/python -m scripts.run_tests tests/e2e/test_s3_faults.py

simulate: basics ## The committer in virtual time; `make simulate SEEDS=0-4999`, without SEEDS fresh ones and all mutations
	.venv/bin/python -m tests.simulation $(SEEDS)

histories: basics ## Random histories, committed by pylance and by us; `make histories FIRST=1 COUNT=500`
	LANCE_LOG=error .venv/bin/python -m tests.conformance.histories --first $(or $(FIRST),1) --count $(or $(COUNT),200)

rows: basics ## Random histories of changes to the same rows and compactions; `make rows FIRST=0 COUNT=2000`
	LANCE_LOG=error .venv/bin/python -m tests.rowlevel --first $(or $(FIRST),0) --count $(or $(COUNT),2000)

oracle: basics ## Random changes and damage, held against pylance; `make oracle SEEDS=0-999 KIND=changes`
	LANCE_LOG=error .venv/bin/python -m tests.oracle $(or $(KIND),changes) $(or $(SEEDS),0-299)

hostile: basics ## 20,000 mutated records between good ones, a real daemon and Kafka; `make hostile ARGS="--records 2000 --seed 7"`
	LANCE_LOG=error .venv/bin/python -m tests.hostile $(ARGS)

spark-chaos: basics ## A Spark stream under kill -9, of driver, committer and Kafka; `make spark-chaos ARGS="--batches 50"`
	LANCE_LOG=error .venv/bin/python -m tests.acceptance.spark_chaos $(ARGS)

spark-versions: basics ## The tests of Spark on 3.5, 4.0, 4.1, 4.2 and 4.3; `make spark-versions ARGS="3.5.9 -- -k stream"`
	.venv/bin/python -m tests.acceptance.spark_versions $(ARGS)

fleet-kills: basics ## 100 tables on two members under kills, floods and hanging stores, each audited; `make fleet-kills ARGS="--points 30"`
	LANCE_LOG=error .venv/bin/python -m tests.acceptance.fleet_kills $(ARGS)

ingest-kills: basics ## committerd ingest under kill -9 and SIGSTOP, of itself, committers and Kafka; `make ingest-kills ARGS="--points 30"`
	LANCE_LOG=error .venv/bin/python -m tests.acceptance.ingest_kills $(ARGS)

ingest-history: basics ## 100,000 changes by Debezium beside a dict, under kill -9; `make ingest-history ARGS="--changes 5000 --seed 7"`
	LANCE_LOG=error .venv/bin/python -m tests.acceptance.ingest_history $(ARGS)

ray-daft: basics ## The tests of the writers for Ray and Daft, with kills of drivers and workers; `make ray-daft ARGS="-k killed"`
	.venv/bin/python -m tests.acceptance.ray_daft $(ARGS)

pipelines: basics ## The tests of the examples for dlt, Airflow and Dagster, each killed on its way; `make pipelines ARGS="-k Dlt"`
	.venv/bin/python -m tests.acceptance.pipelines $(ARGS)

turns: basics ## 100 upserts under 500 appends a second: each wins, 99 % within 3 attempts; `make turns ARGS="--upserters 1"`
	.venv/bin/python -m tests.acceptance.turns $(ARGS)

brokers: setup ## The main job on Kafka 3.3, 3.7, 3.9 and 4.3; `make brokers ARGS="3.3.2"`
	.venv/bin/python -m tests.acceptance.brokers $(ARGS)

takeover: setup ## 100 takeovers under load: 50 after a clean stop, 50 after kill -9; `make takeover ARGS="--times 5"`
	LANCE_LOG=error .venv/bin/python -m tests.acceptance.takeover $(ARGS)

outage: setup ## Kafka is away for five minutes under load, in each way; `make outage ARGS="--seconds 30 --how killed"`
	LANCE_LOG=error .venv/bin/python -m tests.acceptance.outage $(ARGS)

maintain-soak: setup ## Writes and reads with and without maintenance, and while all is killed; an hour: `make maintain-soak ARGS="--steady --seconds 3600"`
	LANCE_LOG=error .venv/bin/python -m tests.acceptance.maintenance_soak $(ARGS)

bench: setup ## Benchmarks side by side with pylance, an hour; `make bench ARGS="--only fragments"`
	.venv/bin/python -m bench $(ARGS)

check: lint ## Lint, and whether generated files are those of their sources
	.venv/bin/python -m scripts.generate.protos --check
	.venv/bin/python -m scripts.generate --check
	.venv/bin/python -m scripts.generate.lock_image --check

lint: basics ## Format, ruff, mypy and the layers
	.venv/bin/python -m ruff format --check .
	.venv/bin/python -m ruff check .
	.venv/bin/python -m mypy
	.venv/bin/lint-imports

format: basics ## Format the code and fix what ruff can fix
	.venv/bin/python -m ruff check --fix-only .
	.venv/bin/python -m ruff format .

protos: basics ## Generate producers/committerd_common/*_pb2.py from protos/
	.venv/bin/python -m scripts.generate.protos

docs: basics ## Generate docs/reference, docs/metrics.md, wire vectors, the chart's schema and README, and the dashboard from the code
	.venv/bin/python -m scripts.generate

site: basics ## The documentation site, into build/site/html; `.venv/bin/python -m scripts.site --serve` shows it
	.venv/bin/python -m scripts.site

lock: basics ## Lock what the image installs, by version and hash, in deploy/requirements/
	.venv/bin/python -m scripts.generate.lock_image

licences: basics ## Check the licences of what the images hold against those that scripts/release allows
	.venv/bin/python -m scripts.release --licences

advisories: basics ## Look for advisories about what the images hold, at PyPI, or in OSV's copy: `make advisories ARCHIVE=all.zip`
	.venv/bin/python -m scripts.release --advisories $(if $(ARCHIVE),--archive "$(ARCHIVE)")

release: basics ## Build packages, chart and bills of materials into dist/, install them from there, and commit (Go)
	.venv/bin/python -m scripts.release

release-check: basics ## Whether TAG may be released: versions, changelog, chart; `make release-check TAG=v0.2.0`
	.venv/bin/python -m scripts.release --tag "$(TAG)"

clean: ## Remove what was made in this folder; the cache of downloads stays
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
