PYTHON ?= python3
BIN := .venv/bin
PIP_INSTALL := $(BIN)/pip install -q --disable-pip-version-check
TOOLS := .cache/tools
BUF_VERSION := 1.75.0
PYTEST := $(BIN)/pytest -n 3 --dist loadgroup --no-loadscope-reorder

.PHONY: run install test test-long lint buf bench soak fuzz lock sbom audit-dependencies pin-images clean

## Start everything in one process on ./data; prints a first push to try.
run: .venv/installed
	$(BIN)/carillon up

## Make the virtual environment and install the service in it, with the packages of requirements/ checked by their hashes.
install: .venv/installed

.venv/installed: pyproject.toml protos/build.py requirements/runtime.lock requirements/build.lock $(shell find protos -name '*.proto')
	$(PYTHON) -m venv .venv
	$(PIP_INSTALL) --require-hashes -r requirements/runtime.lock -r requirements/build.lock
	$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	touch $@

.venv/installed-dev: .venv/installed requirements/dev.lock
	$(PIP_INSTALL) --require-hashes -r requirements/dev.lock
	touch $@

## Write requirements/*.lock anew after a change of pyproject.toml; ARGS=--upgrade also takes newer versions.
lock: $(TOOLS)/installed
	$(TOOLS)/bin/python requirements/lock.py $(ARGS)

## Write the software bill of materials of an installation (CycloneDX JSON) to dist/carillon.cdx.json.
sbom: $(TOOLS)/installed
	mkdir -p dist
	$(TOOLS)/bin/cyclonedx-py requirements requirements/runtime.lock --pyproject pyproject.toml --mc-type application \
		--output-reproducible --of JSON -o dist/carillon.cdx.json

## Compare the locked packages with the known vulnerabilities of PyPI's database.
audit-dependencies: $(TOOLS)/installed
	$(TOOLS)/bin/python requirements/audit.py

## Pin the images of docker-compose.yml and the Dockerfile to their registries' digests; ARGS=--check changes nothing.
pin-images:
	$(PYTHON) deploy/pin_images.py $(ARGS)

$(TOOLS)/installed: requirements/tools.lock
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/pip install -q --disable-pip-version-check --require-hashes -r requirements/tools.lock
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
	rm -rf .venv $(TOOLS) .mypy_cache .ruff_cache .pytest_cache .hypothesis
