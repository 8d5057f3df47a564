PYTHON ?= python3
BIN := .venv/bin
BUF_VERSION := 1.75.0
PYTEST := $(BIN)/pytest -n 3 --dist loadgroup --no-loadscope-reorder

.PHONY: run install test test-long lint buf bench soak fuzz clean

## Start everything in one process on ./data; prints a first push to try.
run: .venv/installed
	$(BIN)/carillon up

## Make the virtual environment and install the service in it.
install: .venv/installed

.venv/installed: pyproject.toml protos/build.py $(shell find protos -name '*.proto')
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q --disable-pip-version-check -e .
	touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/pip install -q --disable-pip-version-check -e '.[dev]'
	touch $@

## Every check, and every test that decides a change; at most 8 minutes on two cores.
test: .venv/installed-dev lint buf
	$(PYTEST) -m "not long"

## The tests that take long (crash points, the ledger test, long models), and every hypothesis test with all its examples.
test-long: .venv/installed-dev
	$(PYTEST) -m "long or hypothesis" --hypothesis-profile=full

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

buf:
	npx --yes @bufbuild/buf@$(BUF_VERSION) lint
	npx --yes @bufbuild/buf@$(BUF_VERSION) format -d --exit-code

## The ledger test: inject faults under load, then check every push: make soak ARGS="--minutes 30 --kafka"
soak: .venv/installed-dev
	$(BIN)/python -m tests.soak $(ARGS)

## The fuzzer: mutated, signed requests and device frames: make fuzz ARGS="--bodies 1000000"
fuzz: .venv/installed-dev
	$(BIN)/python -m tests.soak.fuzz $(ARGS)

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
