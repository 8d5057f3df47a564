"""Fixtures that more than one folder of tests uses, and settings of pytest and hypothesis for all of them."""

import asyncio
import functools
import gc
import inspect
import logging
import os
import shutil
import sys
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator
from pathlib import Path

import hypothesis
import pytest
import structlog

from services.net.rpc import channel, local
from services.process.logs import logger
from testkit.installation.sample import SampleService
from testkit.kafka.broker import KafkaBroker, kafka

_SHARED_MEMORY = Path("/dev/shm")
_LEAST_FREE_BYTES = 4 << 30
_JOURNEY_S = 1200
"""The bound of a journey, which starts several processes, on a machine that is busy with other work."""
_CALL_S = 60.0
"""The deadline of calls between roles in the tests' own process: a hang guard, which a busy machine does not reach."""

_SHARE_OF_TIMEOUT = 0.9
"""The part of pytest-timeout's time, which begins with the fixtures, that the test itself has."""

_LARGEST = ("kafka", "service")
"""Groups of many modules, each of which takes as long as a quarter of a run of one worker."""

# The same examples in every run, and no verdict that depends on how busy the machine is.
for _profile in ("quick", "full"):
    hypothesis.settings.register_profile(
        _profile,
        derandomize=True,
        deadline=None,
        max_examples=100 if _profile == "full" else 10,
        suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
    )
hypothesis.settings.load_profile("quick")


def pytest_configure() -> None:
    """Put temporary folders in memory where there is room: the logs and stores of many small tests wait for fsync."""
    if _SHARED_MEMORY.is_dir() and shutil.disk_usage(_SHARED_MEMORY).free >= _LEAST_FREE_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_SHARED_MEMORY))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give each worker whole groups of tests, so that an installation or a broker is started once.

    pytest-xdist reads the groups before any `pytest_collection_modifyitems` of a conftest runs.
    """
    item.add_marker(pytest.mark.xdist_group(_group(item)))
    if item.path.parent.name == "journeys" and item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(_JOURNEY_S))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the groups that take longest; give each asynchronous test a deadline of its own."""
    items.sort(key=_order)
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.obj = _with_deadline(item)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep the collector from running finalizers while a failure is described.

    pytest parses the failing source. In Python 3.11 a finalizer that formats a traceback at that moment, as asyncio
    does for a lost task, ends the whole run with "AST constructor recursion depth mismatch".
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def _with_deadline(item: pytest.Function) -> Callable[..., Awaitable[None]]:
    """Return the test, ended shortly before pytest-timeout ends it: its traceback then shows what it awaited.

    The traceback of pytest-timeout ends in the event loop.
    """
    marker = item.get_closest_marker("timeout")
    seconds = float(marker.args[0] if marker else item.config.getini("timeout"))
    test = item.obj

    @functools.wraps(test)
    async def bounded(*args: object, **kwargs: object) -> None:
        async with asyncio.timeout(seconds * _SHARE_OF_TIMEOUT):
            await test(*args, **kwargs)

    return bounded


def _group(item: pytest.Item) -> str:
    """Return the kind of installation that the test shares with others, else its module.

    Journeys on Kafka start up to twenty processes and are one group, so that two of them never share two cores. Tests
    that need Swift are one, so that one worker sets it up, and no other one waits for that.
    """
    callspec = getattr(item, "callspec", None)
    installation = callspec.params.get("carillon") if callspec else None
    if installation:
        return str(installation)
    if "journeys" in item.path.parts and item.get_closest_marker("kafka"):
        return "cluster"
    if item.get_closest_marker("swift"):
        return "swift"
    if item.get_closest_marker("long") and item.get_closest_marker("timeout"):
        return item.nodeid
    if "service" in getattr(item, "fixturenames", ()):
        return "service"
    shares_broker = item.get_closest_marker("kafka") and item.path.parent.name != "journeys"
    return "kafka" if shares_broker else str(item.path)


def _order(item: pytest.Item) -> tuple[bool, float, bool, bool, str]:
    """Sort journeys first, then by the bound of a test that has one of its own, then the groups of many modules.

    So the last groups are short ones, and no worker is left alone with a long one.
    """
    is_journey, timeout = item.path.parent.name == "journeys", item.get_closest_marker("timeout")
    bound_s = timeout.args[0] if timeout else 0
    group = _group(item)
    return (not is_journey, -bound_s, group not in _LARGEST, "analytics" not in item.path.parts, group)


@pytest.fixture(autouse=True)
def restored_logs() -> Iterator[None]:
    """Undo what a command that runs in this process has done to the logs."""
    hooks = sys.excepthook, threading.excepthook, sys.unraisablehook
    yield
    sys.excepthook, threading.excepthook, sys.unraisablehook = hooks
    logging.captureWarnings(False)
    structlog.reset_defaults()
    vars(logger).pop("bind", None)


@pytest.fixture(scope="session", autouse=True)
def patient_calls() -> Iterator[None]:
    """Give calls whose caller names no deadline _CALL_S seconds."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (channel, local):
            patch.setattr(module, "DEADLINE_S", _CALL_S)
        yield


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A real Kafka broker, one for the whole run."""
    with kafka(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture
def empty_broker(kafka_broker: KafkaBroker) -> KafkaBroker:
    """The running broker of this run, without topics."""
    if not kafka_broker.running:
        kafka_broker.start()
    kafka_broker.delete_topics()
    return kafka_broker


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SampleService]:
    """`carillon up`, one for the whole run: for tests that only send requests and read answers."""
    with SampleService(tmp_path_factory.mktemp("service")) as running:
        yield running
