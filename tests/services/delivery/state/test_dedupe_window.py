"""The dedupe window: bounded, stored over restarts, and apart for tasks of scheduling, which may be repeated late."""

import pytest

from protos.delivery.v1.delivery_pb2 import PushFact, PushFailed
from protos.push.v1.push_pb2 import PushCommand, SendPush
from protos.runtime.v1.log_pb2 import Meta
from services.delivery.state import pushes, serialization
from services.delivery.state.delivery_state import DeliveryState
from services.delivery.state.pushes import DedupeWindow, PushSource
from services.log.port import Record
from testkit.delivery.records import APP, START_MS, NumberedDevice, listed_audience

FRONT_END, TIMED_TASK, TASK_AT_ONCE = PushSource


@pytest.fixture(autouse=True)
def small_generations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushes, "_GENERATION", 10)


def send(state: DeliveryState, offset: int, msgid: int, writer: str, *, partition: int = 0) -> None:
    audience = listed_audience(NumberedDevice(partition, 7))
    push = SendPush(msgid=msgid, id_count=1, appkey=APP, audience=audience)
    command = PushCommand(meta=Meta(time_ms=START_MS, writer=writer), send=push)
    state.apply(Record("push-commands", 0, offset, b"", b""), command)


@pytest.mark.parametrize("source", [TIMED_TASK, TASK_AT_ONCE])
def test_the_push_of_a_task_is_known_however_many_pushes_of_other_sources_followed(source: PushSource) -> None:
    window = DedupeWindow()
    window.add(1, source)
    window.add(2, FRONT_END)
    for msgid in range(100, 200):
        window.add(msgid, FRONT_END)
        window.add(msgid + 1000, TIMED_TASK if source is TASK_AT_ONCE else TASK_AT_ONCE)
    assert [1 in window, 2 in window, 190 in window] == [True, False, True]
    restored = DedupeWindow()
    restored.load(window.dump())
    assert [1 in restored, 2 in restored, 190 in restored] == [True, False, True]
    for msgid in range(200, 300):
        restored.add(msgid, source)
    assert [1 in restored, 199 in restored, 299 in restored] == [False, True, True]


@pytest.mark.parametrize("partition", [0, 1], ids=["pending here", "of another shard"])
def test_a_task_that_scheduling_sends_again_after_a_long_outage_does_not_start_anew(partition: int) -> None:
    state = DeliveryState([0])
    send(state, 0, 5, "scheduling", partition=partition)
    send(state, 1, 6, "edge", partition=1)
    restored = DeliveryState([0])
    serialization.load(restored, list(serialization.dump(state)))
    for each in (state, restored):
        end_all(each)
        for offset in range(2, 102):
            send(each, offset, 1000 + offset, "edge", partition=1)
        send(each, 102, 5, "scheduling")
        assert not each.requested
        send(each, 103, 6, "edge")
        assert each.requested.keys() == {6}, "a front end repeats nothing so late"


def end_all(state: DeliveryState) -> None:
    """End every push before it starts."""
    for msgid in list(state.requested):
        fact = PushFact(msgid=msgid, partition=0, failed=PushFailed())
        state.apply(Record("pushes", 0, msgid, b"", b""), fact)
