# Two commands for a newcomer: `make run` and `make test`. Everything is installed into .venv.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
COMPILED := $(wildcard gateway/*/*.pyx gateway/*/*.pxd)
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3.14 python3; do \
	"$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$name" && break; done)

.DEFAULT_GOAL := help
.PHONY: help install run test fuzz lint bench bench-growth bench-pipeline wheel docs schema clean system-packages

help: ## List the commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name what; do \
		printf '  make %-15s %s\n' "$$name" "$$what"; done

install: $(STAMP) ## Install everything into .venv

# The stamp is newer than what decides the packages, so a second run has nothing to do.
$(STAMP): pyproject.toml setup.py constraints.txt $(COMPILED)
	@test -n "$(PYTHON)" || { \
		echo 'Python 3.11 or newer is missing: install it, on Debian with "apt-get install python3 python3-venv".' >&2; \
		exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
		echo 'The venv module of $(PYTHON) is missing: on Debian, "apt-get install python3-venv" as root.' >&2; \
		exit 1; }
	@test -x $(BIN)/python && $(BIN)/python -c 'import pip' 2>/dev/null || "$(PYTHON)" -m venv --clear $(VENV)
	@echo 'Installing into $(VENV); the first time this takes a minute.'
	@PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT= $(BIN)/python -m pip install --quiet \
		--constraint constraints.txt --editable '.[dev]'
	@touch $@

run: install ## Start PostgreSQL and the gateway; Ctrl-C stops both
	@exec $(BIN)/tablewire serve

test: install system-packages ## Run the whole test suite
	@$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

fuzz: install ## Try a million mutations on every decoder of client bytes
	@$(BIN)/python -m tests.support.fuzz

lint: install ## Check style, types and import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict gateway benchmarks
	$(BIN)/lint-imports

bench: install ## Measure throughput and latency against raw COPY and Apache Kafka
	@$(BIN)/python -m benchmarks

bench-growth: install ## Plot what a record costs as partitions, producers and rows grow
	@$(BIN)/python -m benchmarks.growth

bench-pipeline: install ## Measure Spark reads of 10 million rows
	@$(BIN)/python -m benchmarks.pipeline

wheel: install ## Build dist/tablewire-….whl with the compiled modules
	@PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT= $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	@for wheel in dist/*.whl; do echo "$$wheel"; for module in $(basename $(notdir $(wildcard gateway/*/*.pyx))); do \
		"$(BIN)/python" -m zipfile -l "$$wheel" | grep "$$module\..*so" >/dev/null || { \
		echo "It lacks $$module: a C compiler or the headers of Python are missing." >&2; exit 1; }; done; done

docs: install ## Write docs/protocol-coverage.md anew from the table of handlers
	@$(BIN)/python -m gateway.handlers

schema: install ## Write sql/schema.sql anew from the migrations
	@$(BIN)/python -m tests.support.schema_dump

clean: ## Remove .venv and caches; .tablewire, the data, stays
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
	rm -f gateway/*/_*.c gateway/*/_*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# kcat, a Java runtime, Maven and PgBouncer are what is tested with, not part of Tablewire. What cannot be installed is
# named, and the tests that need it are skipped with the same words.
system-packages:
	@missing=''; \
	command -v kcat >/dev/null || missing="$$missing kcat"; \
	java -version 2>&1 | grep -Eq 'version "(1[7-9]|[2-9][0-9])' || missing="$$missing default-jre-headless"; \
	command -v mvn >/dev/null || missing="$$missing maven"; \
	PATH="$$PATH:/usr/sbin" command -v pgbouncer >/dev/null || missing="$$missing pgbouncer"; \
	test -n "$$missing" || exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "Installing for the tests:$$missing"; \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
			$$missing; } >/dev/null && exit 0; \
	fi; \
	echo "Some tests will be skipped; to run them: apt-get install$$missing (as root)." >&2
