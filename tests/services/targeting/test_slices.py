"""Resolving in slices: bounded, in turn for several apps, given up with its caller, and of one state of the index."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.push.v1.push_pb2 import (
    ActivityClause,
    Attribute,
    AttributeClause,
    Audience,
    Comparison,
    Everyone,
    Filter,
    StagGroup,
    TagGroup,
)
from protos.registry.v1.devices_pb2 import Attributes, Device
from protos.targeting.v1.targeting_pb2 import ResolveRequest, ResolveResponse
from protos.targeting.v1.targeting_pb2_grpc import TargetingServiceStub
from services.domain.limits import MAX_ENTRIES, MAX_GROUPS
from services.errors import BusyError, DeadlineError, InputError
from services.net.fairness import FairSemaphore
from services.net.rpc.channel import Channel, connect
from services.net.rpc.server import serve
from services.process.clock import ManualClock
from services.targeting import server
from services.targeting.filters import Resolution
from services.targeting.projection import TargetingProjection
from services.targeting.state import TargetingState
from tests.services.targeting.conftest import TargetingHarness, local_channel, members
from tests.services.targeting.model import (
    APP,
    DAY_MS,
    HOUR_MS,
    NOON_MS,
    PARTITIONS,
    device_record,
    devices,
    expected,
    filters,
    opens_record,
    same_each_time,
)
from tests.services.targeting.test_filters import fold

OTHER_APP = "2000000002"
LARGEST = Filter(
    tags=[TagGroup(tags=[group % 40, 100 + group % 3]) for group in range(MAX_GROUPS)],
    not_tags=[TagGroup(tags=[200 + group % 7, group % 5]) for group in range(MAX_GROUPS)],
)


def registered(appkey: str) -> list[Device]:
    return [
        Device(appkey=appkey, partition=n % PARTITIONS, number=n // PARTITIONS, tags=[n % 40, 100 + n % 3, 200 + n % 7])
        for n in range(400)
    ]


def request(wanted: Filter, appkey: str = APP, partitions: Sequence[int] = range(PARTITIONS)) -> ResolveRequest:
    return ResolveRequest(appkey=appkey, audience=Audience(filter=wanted), partitions=partitions)


class SliceLog:
    """Notes the app of every slice, and calls `during` before each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.apps: list[str] = []
        self.during: Callable[[int], None] = lambda count: None
        advance = Resolution.advance

        def noted(resolution: Resolution, operations: int) -> bool:
            self.apps.append(resolution._appkey)
            self.during(len(self.apps))
            return advance(resolution, min(operations, 20))

        monkeypatch.setattr(Resolution, "advance", noted)


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> SliceLog:
    """Slices of 20 operations, noted."""
    return SliceLog(monkeypatch)


@pytest.fixture
async def channel(harness: TargetingHarness) -> AsyncIterator[Channel]:
    """A running targeting with the devices of two apps."""
    async with harness.running() as running:
        both = [*registered(APP), *registered(OTHER_APP)]
        await harness.write(running, [device_record(device) for device in both])
        yield running


def test_the_largest_filter_takes_many_slices_of_bounded_work() -> None:
    state = TargetingState(range(PARTITIONS), ManualClock(NOON_MS))
    fold(state, [device_record(device) for device in registered(APP)])
    resolution = Resolution(state, APP, LARGEST, range(PARTITIONS))
    work = list(resolution._steps)
    assert max(work) <= 1 + 4 * MAX_GROUPS / 10
    assert sum(work) > 1000
    again = Resolution(state, APP, LARGEST, range(PARTITIONS))
    count = 1
    while not again.advance(server.SLICE):
        count += 1
    assert count >= sum(work) // (2 * server.SLICE)
    assert again.response == resolution.response


async def test_another_apps_small_filter_passes_after_one_slice_of_a_large_one(
    channel: Channel, slices: SliceLog
) -> None:
    stub = TargetingServiceStub(channel)
    large = [asyncio.create_task(_call(stub, request(LARGEST))) for _ in range(3)]
    while len(slices.apps) < 3:
        await asyncio.sleep(0)
    before = len(slices.apps)
    await stub.Resolve(request(Filter(tags=[TagGroup(tags=[3])]), OTHER_APP, [0]))
    assert slices.apps[before:].index(OTHER_APP) <= 2
    assert not any(task.done() for task in large)
    answers = await asyncio.gather(*large)
    assert members(answers[0]) == expected(registered(APP), [], LARGEST, NOON_MS)


async def test_facts_are_applied_between_the_slices_of_a_large_filter(
    harness: TargetingHarness, channel: Channel, slices: SliceLog
) -> None:
    stub = TargetingServiceStub(channel)
    large = asyncio.create_task(_call(stub, request(LARGEST)))
    while len(slices.apps) < 2:
        await asyncio.sleep(0)
    await harness.write(channel, [device_record(Device(appkey=APP, partition=0, number=999, tags=[77]))])
    assert not large.done()
    assert (0, 999) not in members(await large)


@pytest.mark.parametrize("over_a_socket", [False, True])
async def test_a_request_whose_caller_is_gone_gets_no_further_slice(
    harness: TargetingHarness, slices: SliceLog, tmp_path: Any, over_a_socket: bool
) -> None:
    role = harness.build()
    ready = asyncio.Event()
    projection = role.services[0]
    assert isinstance(projection, TargetingProjection)
    following = asyncio.create_task(projection.run(ready))
    await ready.wait()
    grpc_server = serve([f"unix:{tmp_path}/socket"])
    for add in role.servicers:
        add(grpc_server)
    await grpc_server.start()
    channel = connect(f"unix:{tmp_path}/socket") if over_a_socket else local_channel(role)
    await harness.write(channel, [device_record(device) for device in registered(APP)])
    stub = TargetingServiceStub(channel)
    calls = [asyncio.create_task(_call(stub, request(LARGEST))) for _ in range(2)]
    async with asyncio.timeout(20):
        while len(slices.apps) < 4:
            await asyncio.sleep(0)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    async with asyncio.timeout(20):
        while await _slices_of_small_requests(stub, slices, 10) > 10:
            pass
    state = projection.state
    assert slices.apps.count(APP) < sum(Resolution(state, APP, LARGEST, range(PARTITIONS))._steps) / 20
    await channel.close()
    await grpc_server.stop(None)
    following.cancel()
    await asyncio.wait([following])


async def test_a_request_beyond_its_deadline_is_given_up(
    channel: Channel, slices: SliceLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "DEADLINE_S", 0.0)
    stub = TargetingServiceStub(channel)
    with pytest.raises(DeadlineError, match="not resolved within"):
        await stub.Resolve(request(LARGEST))
    monkeypatch.undo()
    count = len(slices.apps)
    await stub.Resolve(request(Filter(), partitions=[0]))
    assert len(slices.apps) - count <= 2


async def test_too_many_requests_of_one_app_are_refused_as_busy(
    channel: Channel, slices: SliceLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = TargetingServiceStub(channel)
    monkeypatch.setattr(FairSemaphore, "acquire", _full)
    with pytest.raises(BusyError):
        await stub.Resolve(request(LARGEST))
    probe = ResolveRequest(appkey=APP, audience=Audience(everyone=Everyone()))
    answer = await stub.Resolve(probe)
    assert (len(answer.process), len(answer.partitions)) == (16, 0)


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (Filter(tags=[TagGroup(tags=[1])] * 150_000), "filter.tags: 150000 groups, but at most 1000 are allowed"),
        (Filter(not_stags=[StagGroup(stags=["a"])] * 1001), "filter.not_stags: 1001 groups, but at most 1000"),
        (
            Filter(attributes=[AttributeClause(attribute=Attribute.ATTRIBUTE_REGION)] * 1001),
            "filter.attributes: 1001 clauses, but at most 1000",
        ),
        (
            Filter(activity=[ActivityClause(days=7, comparison=Comparison.COMPARISON_EQUAL)] * 51),
            "filter.activity: 51 clauses, but at most 50",
        ),
        (Filter(tags=[TagGroup(tags=[1] * (MAX_ENTRIES + 1))]), "filter.tags: the filter has 10001 tags and values"),
    ],
)
async def test_a_filter_beyond_the_bounds_is_refused_before_any_slice(
    channel: Channel, slices: SliceLog, wanted: Filter, text: str
) -> None:
    with pytest.raises(InputError, match=text):
        await TargetingServiceStub(channel).Resolve(request(wanted))
    assert slices.apps == []


@same_each_time
@given(st.lists(devices, max_size=30), st.lists(devices, max_size=30), filters, st.integers(0, 8))
def test_an_audience_is_of_one_moment_whatever_changes_between_its_slices(
    before: list[Device], after: list[Device], wanted: Filter, steps: int
) -> None:
    """Each partition's devices are those of the moment when its first slice ran."""
    state = TargetingState(range(PARTITIONS), ManualClock(NOON_MS))
    fold(state, [device_record(device) for device in before])
    resolution = Resolution(state, APP, wanted, [0])
    for _ in range(steps):
        resolution.advance(1)
    fold(state, [device_record(device) for device in after])
    while not resolution.advance(1):
        pass
    moment = before if steps else [*before, *after]
    assert members(resolution.response) == {
        (partition, number) for partition, number in expected(moment, [], wanted, NOON_MS) if partition == 0
    }


async def _call(stub: TargetingServiceStub, wanted: ResolveRequest) -> ResolveResponse:
    answer: ResolveResponse = await stub.Resolve(wanted)  # type: ignore[misc]
    return answer


async def _full(*arguments: object) -> None:
    raise BusyError("1000 audiences of app 1 wait already; try again later")


async def _slices_of_small_requests(stub: TargetingServiceStub, slices: SliceLog, count: int) -> int:
    """Resolve small filters one after the other; return how many slices ran meanwhile, of any request."""
    before = len(slices.apps)
    for _ in range(count):
        await _call(stub, request(Filter(), OTHER_APP, [0]))
    return len(slices.apps) - before


def test_attributes_are_united_over_their_values() -> None:
    state = TargetingState(range(PARTITIONS), ManualClock(NOON_MS))
    fold(
        state,
        [
            device_record(Device(appkey=APP, partition=0, number=n, attributes=Attributes(region=f"r{n}")))
            for n in range(100)
        ],
    )
    clause = AttributeClause(attribute=Attribute.ATTRIBUTE_REGION, values=[f"r{n}" for n in range(10, 90)])
    resolution = Resolution(state, APP, Filter(attributes=[clause]), [0])
    while not resolution.advance(1):
        pass
    assert members(resolution.response) == {(0, n) for n in range(10, 90)}


def test_a_first_sum_of_90_days_is_counted_in_slices_between_which_opens_are_applied() -> None:
    """Each slice adds at most a day, so the follower does not wait for 2,160 hours."""
    clock = ManualClock(NOON_MS)
    state = TargetingState(range(PARTITIONS), clock)
    opened = [(0, n % 40, NOON_MS - n * 5 * HOUR_MS) for n in range(450)]
    late = [(0, 41, NOON_MS), (0, 42, NOON_MS - 89 * DAY_MS)]
    known = [Device(appkey=APP, number=number) for number in range(43)]
    fold(state, [device_record(device) for device in known])
    fold(state, [opens_record(partition, [(number, ms)]) for partition, number, ms in opened])
    clause = ActivityClause(days=90, comparison=Comparison.COMPARISON_GREATER_OR_EQUAL, opens=1)
    wanted = Filter(activity=[clause])
    resolution = Resolution(state, APP, wanted, [0])
    slices = 1
    while not resolution.advance(100):
        slices += 1
        if slices in (3, 10):
            fold(state, [opens_record(0, [late[slices == 10][1:]])])
        if slices == 12:
            clock.move(3600)
    assert slices > 20
    assert members(resolution.response) == expected(known, opened + late, wanted, clock.now_ms())
    again = Resolution(state, APP, wanted, [0])
    assert sum(again._steps) < 100
    assert again.response == resolution.response
