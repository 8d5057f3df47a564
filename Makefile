# The Python that made .venv, else python3. `make run PYTHON=python3.13` takes another one, and makes .venv anew.
PYTHON ?= $(shell made=$$(sed -n 's/^executable = //p' .venv/pyvenv.cfg 2>/dev/null); [ -x "$$made" ] && echo "$$made" || echo python3)
BIN := .venv/bin
TOOLS := .cache/tools
BUF_VERSION := 1.75.0
export PATH := $(CURDIR)/.cache/node/bin:$(PATH)
# Where it is set, each of the hundreds of processes that tests start compiles every module again: 2 s of CPU for `carillon up`.
unexport PYTHONDONTWRITEBYTECODE
# Without this make's flags: tests call make too.
PYTEST := env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL $(BIN)/pytest -n 3 --dist loadgroup --no-loadscope-reorder
# What depends on Python's own modules, on compiled packages or on programs: the rules of the roles are the same with every version.
TESTS_OF_PYTHON := $(addprefix tests/services/,log net process replica domain/test_golden.py) \
	tests/contract/clients tests/contract/log tests/contract/packaging tests/contract/sdk tests/console/oidc tests/edge/core/parsing/test_canonical.py \
	tests/services/delivery/channels/apns tests/services/gateway/websocket tests/analytics/store \
	tests/journeys/console tests/journeys/test_push.py tests/journeys/test_welcome.py tests/simulation/test_installations.py tests/simulation/test_python_versions.py

.PHONY: run install install-dev python doctor demo screenshots test test-programs tests test-long test-seeds test-python sdk lint ruff mypy imports buf release-schema soak cluster simulate hand-overs fuzz lock sbom audit-dependencies pin-images clean

## Start everything in one process on ./data; prints a first push to try.
run: install
	@$(BIN)/carillon up

## Make the virtual environment and install the service in it, with the packages of requirements/ checked by their hashes.
install: python
	@$(PYTHON) -m setup.install

install-dev: python
	@$(PYTHON) -m setup.install --dev

python:
	@command -v $(PYTHON) >/dev/null || { echo "There is no $(PYTHON): install Python 3.11 to 3.14, or name one: make run PYTHON=python3.13" >&2; exit 1; }
	@$(PYTHON) -m setup.python_version

## Say what is missing on this machine, for what, and the command that fixes it; ARGS=--json for programs.
doctor:
	@$(PYTHON) -m setup.doctor $(ARGS)

## Fill an installation with an afternoon of three teams, 20,000 devices and 200 pushes, and serve it: ARGS=--anew fills it again.
demo: install
	@$(BIN)/python -m demo $(ARGS)

## Take screenshots of every page of the console on the demo's installation, into build/screenshots and docs/images.
screenshots: install-dev
	$(BIN)/python -m demo.screenshots $(ARGS)

## Write requirements/*.lock anew after a change of pyproject.toml; ARGS=--upgrade also takes newer versions.
lock: $(TOOLS)/installed
	$(TOOLS)/bin/python requirements/lock.py $(ARGS)

## Build the devices' SDKs into dist/: carillon-device for Python (a wheel and its source), for npm (a tarball), for the
## JVM (jars) and Android (an AAR), also as a Maven repository, a sample app for Android (an APK), the Swift package, and
## carillon-react-native for npm. Maven runs the tests of its parts too, and needs no network after the first time.
sdk: install
	mkdir -p dist
	cd sdk && ../$(BIN)/python -m hatchling build -d ../dist
	@command -v npm >/dev/null || { echo "sdk: the packages for npm are left out, because npm is not installed" >&2; exit 0; }; \
	set -ex; \
	(cd sdk && npm pack --silent --pack-destination ../dist); \
	$(BIN)/python -m setup.react_native_package dist
	$(BIN)/python -m setup.swift_toolchain --package dist
	@command -v mvn >/dev/null || { echo "sdk: jar, AAR and APK are left out, because Maven is not installed" >&2; exit 0; }; \
	set -ex; \
	(cd sdk/jvm && mvn -q -B package -Dandroids=$(CURDIR)/.cache/androids); \
	$(BIN)/python -m setup.maven_repository dist/maven; \
	$(BIN)/python -m setup.android_sample dist/carillon-sample.apk

## Write the software bill of materials of an installation (CycloneDX JSON) to dist/carillon.cdx.json.
sbom: $(TOOLS)/installed
	mkdir -p dist
	$(TOOLS)/bin/cyclonedx-py requirements requirements/embedded.lock --pyproject pyproject.toml --mc-type application \
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

## Every check, and every test that decides a change; at most 8 minutes on two cores. Installs the programs that are
## missing where it may, and says what it leaves out without them.
test: install-dev test-programs
	@$(MAKE) --no-print-directory --jobs=5 tests mypy ruff imports buf

## The tests that take long (crash points, the ledger test, long models), and every hypothesis test with all its examples.
test-long: install-dev
	@$(BIN)/python -m setup.swift_toolchain --check
	$(PYTEST) -m "(long or hypothesis) and not seeds" --hypothesis-profile=full --durations=25

## Further seeds, roles and interfaces of long tests, which have found nothing that the first ones do not: before a release.
test-seeds: install-dev
	$(PYTEST) -m seeds

# Beside the other checks: mypy has one core for a minute and a half, and tests that wait leave a part of both.
tests: install-dev
	$(PYTEST) -m "not long"

## Install the programs that tests start, where that is possible, and say what is left out; ARGS=--all: fail if anything is.
test-programs: install-dev
	@$(BIN)/python -m setup.test_programs $(ARGS)

## The part of the tests that a new version of Python, or the lack of a program, may break: make test-python PYTHON=python3.14
test-python: install-dev test-programs
	$(BIN)/python -VV
	$(PYTEST) -m "not long" $(TESTS_OF_PYTHON)

## The checks of Python's code alone.
lint: ruff mypy imports

ruff: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

mypy: install-dev
	$(BIN)/mypy

imports: install-dev
	$(BIN)/lint-imports

buf:
	@command -v npx >/dev/null || { echo "buf: left out, because npx is not installed" >&2; exit 0; }; \
	set -ex; \
	npx --yes @bufbuild/buf@$(BUF_VERSION) lint; \
	npx --yes @bufbuild/buf@$(BUF_VERSION) format -d --exit-code; \
	npx --yes @bufbuild/buf@$(BUF_VERSION) breaking --against $(lastword $(sort $(wildcard .ci/released_schemas/*.binpb)))

## Store the contracts of a release and a log that it writes, with which later versions are compared: make release-schema VERSION=0.2.0
release-schema: install-dev
	npx --yes @bufbuild/buf@$(BUF_VERSION) build --exclude-source-info -o .ci/released_schemas/$(VERSION).binpb
	$(BIN)/python -m tests.simulation.backends.store_log $(VERSION)

## The ledger test: inject faults under load, then check every push: make soak ARGS="--minutes 30 --kafka"
soak: install-dev
	$(BIN)/python -m tests.soak $(ARGS)

## The ledger test on three brokers and several processes of each role, with a row for each fault: make cluster ARGS="--minutes 12"
cluster: install-dev
	$(BIN)/python -m tests.soak.cluster $(ARGS)

## Simulated worlds, one a seed, of an installation under faults: make simulate ARGS="--seeds 10000 --first 0"
simulate: install-dev
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.simulation $(ARGS)

## The model of handing messages over to channels, in random orders of everything: make hand-overs ARGS="--messages 1000000"
hand-overs: install-dev
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.services.delivery.hand_over_model $(ARGS)

## The fuzzer: mutated, signed requests and device frames: make fuzz ARGS="--bodies 1000000"
fuzz: install-dev
	$(BIN)/python -m tests.soak.fuzz $(ARGS)

clean:
	rm -rf .venv $(TOOLS) .mypy_cache .ruff_cache .pytest_cache .hypothesis
