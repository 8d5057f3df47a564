"""Pages of acknowledgements read at any time, compared with all receipts."""

from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from protos.delivery.v1.delivery_pb2 import AppOutcomes, DeliveryFact, OutcomeKind, Outcomes
from protos.push.v1.push_pb2 import Kind
from services.domain.topics import DELIVERIES
from testkit.examples import examples
from tests.analytics.records import PARTITIONS, T0, app_outcomes, send
from tests.analytics.statistics.sync_store import SyncStore

UNICASTS, BROADCAST = 50, 900


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncStore]:
    store = SyncStore(tmp_path_factory.mktemp("world"))
    yield store
    store.close()


class Receipt(NamedTuple):
    """A receipt `after` ms from the start. Equal values mean the same device and message, so they count once."""

    message: int
    after: int


class Written(NamedTuple):
    """A record of one partition."""

    partition: int
    receipts: list[Receipt]


class Read(NamedTuple):
    """Read one page at this moment."""

    limit: int
    after: int


receipts = st.builds(Receipt, st.integers(0, UNICASTS - 1) | st.just(BROADCAST), st.integers(0, 100))
records = st.builds(Written, st.integers(0, PARTITIONS - 1), st.lists(receipts, min_size=1, max_size=6))
reads = st.builds(Read, st.integers(1, 7), st.integers(0, 40))


@pytest.mark.long
@given(steps=st.lists(records | reads, max_size=30))
@example(steps=[Written(2, [Receipt(22, 39), Receipt(22, 39)]), Read(3, 22), Read(3, 22)])
@settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))
def test_pages_in_sequence_have_every_receipt_once(store: SyncStore, steps: list[Written | Read]) -> None:
    """Pages in sequence have each receipt once, in its partition's order and not before it is visible.

    Reading from a position again returns the same receipts.
    """
    appkey = store.new_app()
    first_id = int(appkey) * 1000
    commands = [send(first_id, kind=Kind.KIND_UNICAST, id_count=UNICASTS, appkey=appkey)]
    commands.append(send(first_id + BROADCAST, appkey=appkey))
    devices = [store.device(appkey, p, n, T0) for p in range(PARTITIONS) for n in {*range(UNICASTS), BROADCAST}]
    store.ingest([*commands, *devices])

    pos, now_ms = "0", T0
    seen: list[tuple[int, str]] = []
    written: dict[int, list[Receipt]] = {p: [] for p in range(PARTITIONS)}
    for step in steps:
        if isinstance(step, Written):
            apps = [_outcomes(appkey, first_id, receipt) for receipt in step.receipts]
            fact = DeliveryFact(outcomes=Outcomes(apps=apps))
            fact.meta.time_ms = T0 + 10_000
            store.ingest([store.record(DELIVERIES.name, step.partition, fact)])
            written[step.partition] += step.receipts
        else:
            now_ms += step.after
            page, following = store.page(appkey, pos, step.limit, now_ms)
            again, _ = store.page(appkey, pos, step.limit, now_ms)
            assert again == page
            found = [(ack.msgid - first_id, ack.token) for ack in page.acks]
            seen += found
            visible = _visible(written, now_ms - T0)
            assert set(found) <= visible
            assert page.has_more == bool(visible - set(seen))
            assert len(found) == step.limit or not page.has_more
            pos = following

    page, pos = store.page(appkey, pos, 1000, T0 + 10_000)
    seen += [(ack.msgid - first_id, ack.token) for ack in page.acks]
    assert len(seen) == len(set(seen))
    assert set(seen) == _visible(written, 10_000)
    for partition in range(PARTITIONS):
        order = dict.fromkeys(r.message for r in written[partition] if r.message != BROADCAST)
        assert [message for message, token in seen if token.startswith(f"{partition}-")] == list(order)
    assert store.page(appkey, pos, 1000, T0 + 10_000)[0].acks == []


def _outcomes(appkey: str, first_id: int, receipt: Receipt) -> AppOutcomes:
    numbers = np.array([receipt.message])
    received = OutcomeKind.OUTCOME_KIND_RECEIVED
    return app_outcomes(first_id + receipt.message, numbers, received, T0 + receipt.after, appkey=appkey)


def _visible(written: dict[int, list[Receipt]], after: int) -> set[tuple[int, str]]:
    """Return each partition's receipts up to the first one that is not visible yet."""
    found = set()
    for partition, receipts_there in written.items():
        latest = accumulate((receipt.after for receipt in receipts_there if receipt.message != BROADCAST), max)
        unicasts = [receipt for receipt in receipts_there if receipt.message != BROADCAST]
        for receipt, moment in zip(unicasts, latest, strict=True):
            if moment <= after:
                found.add((receipt.message, f"{partition}-{receipt.message}"))
    return found
