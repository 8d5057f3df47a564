"""OwnerChannel: calls go to the owner that the log tells of, and are repeated at its successor."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from protos.delivery.v1.delivery_pb2 import AttachRequest
from protos.runtime.v1.instances_pb2 import InstanceAlive, InstanceFact
from protos.runtime.v1.log_pb2 import AwaitRequest, AwaitResponse, Position
from protos.runtime.v1.log_pb2_grpc import PositionsServiceStub
from services.errors import NotOwnerError, UnavailableError
from services.net.rpc.channel import connect
from services.replica import owner_channel
from services.replica.instances import InstanceDirectory
from services.replica.owner_channel import OwnerChannel
from testkit.waiting import run_ready_tasks, until_holds
from tests.services.net.rpc.servicers import BOUND_S, OverASocket, ServicersOnChannel, names

AWAIT = "/protos.runtime.v1.PositionsService/Await"


def owned_by(directory: InstanceDirectory, address: str, epoch: int) -> None:
    alive = InstanceAlive(role="r", address=address, caught_up=True, epoch=epoch)
    directory.instances.apply(InstanceFact(instance=address, alive=alive))


class CountedChannel:
    """A channel whose calls wait for `answers`, and end at `may_end`, also where they are cancelled before."""

    def __init__(self) -> None:
        self.answers, self.may_end = asyncio.Event(), asyncio.Event()
        self.is_closed = False

    def unary_unary(self, method: str, *arguments: Any, **options: Any) -> Any:
        async def call(request: Any, **call_options: Any) -> Any:
            try:
                await self.answers.wait()
            finally:
                await self.may_end.wait()
            return AwaitResponse()

        return call

    async def close(self, grace: float | None = None) -> None:
        self.is_closed = True


async def test_a_channel_that_does_not_lead_to_the_owner_any_more_is_closed_after_its_last_call() -> None:
    directory, opened = InstanceDirectory(), list[tuple[str, CountedChannel]]()

    def opens(address: str) -> Any:
        opened.append((address, CountedChannel()))
        if address != "first":
            opened[-1][1].answers.set()
            opened[-1][1].may_end.set()
        return opened[-1][1]

    channel: Any = OwnerChannel(directory, "r", 0, "default", opens)
    stub = PositionsServiceStub(channel)
    await stub.Await(AwaitRequest())
    owned_by(directory, "first", 1)
    directory.note_change()
    call = asyncio.create_task(stub.Await(AwaitRequest()))
    await run_ready_tasks()
    (_, default), (_, first) = opened
    closed = [default.is_closed, first.is_closed]
    owned_by(directory, "second", 2)
    directory.note_change()
    await run_ready_tasks()
    closed.append(first.is_closed)
    first.may_end.set()
    await call
    await run_ready_tasks()
    assert [*closed, first.is_closed] == [True, False, False, True]
    owned_by(directory, "default", 3)
    directory.note_change()
    await stub.Await(AwaitRequest())
    await run_ready_tasks()
    assert [(address, each.is_closed) for address, each in opened] == [
        ("default", True),
        ("first", True),
        ("second", True),
        ("default", False),
    ]
    await channel.close()
    assert opened[-1][1].is_closed


@pytest.mark.parametrize("hazardous", [(), (AWAIT,)])
async def test_a_call_whose_owner_ended_is_repeated_unless_it_may_have_been_the_cause(
    tmp_path: Path, hazardous: Sequence[str]
) -> None:
    directory, opened = InstanceDirectory(), []

    def opens(address: str) -> Any:
        opened.append(connect(address))
        return opened[-1]

    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    first, second = (f"unix:{tmp_path}/{name}/s" for name in ("first", "second"))
    channel: Any = OwnerChannel(directory, "r", 0, "unix:/nowhere", opens, hazardous)
    request = AwaitRequest(positions=[Position(topic="t")])
    async with (
        OverASocket(ServicersOnChannel(), tmp_path / "first") as ending,
        OverASocket(ServicersOnChannel(), tmp_path / "second"),
    ):
        owned_by(directory, first, 1)
        await PositionsServiceStub(channel).Await(AwaitRequest())
        ending.positions.hangs = True
        ending.positions.began.clear()
        call = asyncio.create_task(PositionsServiceStub(channel).Await(request))
        await asyncio.wait_for(ending.positions.began.wait(), BOUND_S)
        owned_by(directory, second, 2)
        assert ending.server is not None
        await ending.server.stop(grace=None)
        if hazardous:
            with pytest.raises(UnavailableError):
                await call
        assert await PositionsServiceStub(channel).Await(request) == AwaitResponse(produced=request.positions)
        if not hazardous:
            assert await call == AwaitResponse(produced=request.positions)
    await channel.close()


@pytest.mark.parametrize("hazardous", [(), (AWAIT,)])
async def test_a_call_that_is_not_answered_goes_to_the_owner_that_the_log_tells_of_unless_it_may_have_been_the_cause(
    tmp_path: Path, hazardous: Sequence[str]
) -> None:
    """As where the former owner is paused. A call that is not repeated ends at that moment."""
    directory = InstanceDirectory()
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    first, second = (f"unix:{tmp_path}/{name}/s" for name in ("first", "second"))
    channel: Any = OwnerChannel(directory, "r", 0, first, connect, hazardous)
    request = AwaitRequest(positions=[Position(topic="t")])
    async with (
        OverASocket(ServicersOnChannel(), tmp_path / "first") as former,
        OverASocket(ServicersOnChannel(), tmp_path / "second") as successor,
    ):
        owned_by(directory, first, 1)
        directory.note_change()
        former.positions.hangs = True
        call = asyncio.create_task(PositionsServiceStub(channel).Await(request))
        await asyncio.wait_for(former.positions.began.wait(), BOUND_S)
        directory.note_change()
        owned_by(directory, second, 2)
        directory.note_change()
        if hazardous:
            with pytest.raises(UnavailableError, match="another process owns the shard"):
                await asyncio.wait_for(call, BOUND_S)
            assert not successor.positions.began.is_set()
        else:
            assert await asyncio.wait_for(call, BOUND_S) == AwaitResponse(produced=request.positions)
    await channel.close()


async def test_a_call_that_began_before_any_owner_was_known_goes_on_at_the_same_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As beside a start of the caller, whose first read of the log tells of the owner that it calls already."""
    monkeypatch.setattr(owner_channel, "TAKEOVER_S", 0.0)
    directory, request = InstanceDirectory(), AwaitRequest(positions=[Position(topic="t")])
    address = f"unix:{tmp_path}/s"
    channel: Any = OwnerChannel(directory, "r", 0, address, connect)
    async with OverASocket(ServicersOnChannel(), tmp_path) as owner:
        owner.positions.hangs = True
        call = asyncio.create_task(PositionsServiceStub(channel).Await(request))
        await asyncio.wait_for(owner.positions.began.wait(), BOUND_S)
        owned_by(directory, address, 1)
        directory.note_change()
        await asyncio.wait([call], timeout=0)
        owner.positions.released.set()
        assert await asyncio.wait_for(call, BOUND_S) == AwaitResponse(produced=request.positions)
    await channel.close()


async def test_a_stream_that_began_before_any_owner_was_known_goes_on_until_there_is_another(tmp_path: Path) -> None:
    directory, answers = InstanceDirectory(), list[str]()
    address = f"unix:{tmp_path}/s"
    channel: Any = OwnerChannel(directory, "r", 0, address, connect)
    is_known = asyncio.Event()

    async def first_then_second() -> AsyncIterator[AttachRequest]:
        yield AttachRequest(gateway="a")
        await is_known.wait()
        yield AttachRequest(gateway="b")
        await asyncio.Event().wait()

    async with OverASocket(ServicersOnChannel(), tmp_path) as owner:
        owner.channel, opened = channel, owner.channel
        conversation = asyncio.create_task(owner.converse(first_then_second(), answers))
        await until_holds(lambda: answers == ["a"])
        owned_by(directory, address, 1)
        directory.note_change()
        is_known.set()
        await until_holds(lambda: answers == ["a", "b"])
        owned_by(directory, "elsewhere", 2)
        directory.note_change()
        with pytest.raises(NotOwnerError, match="another process owns the shard"):
            await conversation
        owner.channel = opened
    await channel.close()


async def test_a_hazardous_call_that_waited_for_its_owner_is_not_repeated_either(tmp_path: Path) -> None:
    """The owner is not there when the call is made; it comes, receives the call, and ends."""
    directory = InstanceDirectory()
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    first, second = (f"unix:{tmp_path}/{name}/s" for name in ("first", "second"))
    channel: Any = OwnerChannel(directory, "r", 0, first, connect, (AWAIT,))
    request = AwaitRequest(positions=[Position(topic="t")])
    starting = ServicersOnChannel()
    starting.positions.hangs = True
    call = asyncio.create_task(PositionsServiceStub(channel).Await(request))
    await asyncio.sleep(0)
    async with (
        OverASocket(starting, tmp_path / "first"),
        OverASocket(ServicersOnChannel(), tmp_path / "second") as successor,
    ):
        await asyncio.wait_for(starting.positions.began.wait(), BOUND_S)
        owned_by(directory, second, 2)
        assert starting.server is not None
        await starting.server.stop(grace=None)
        with pytest.raises(UnavailableError):
            await call
        assert not successor.positions.began.is_set()
    await channel.close()


async def test_a_stream_ends_when_the_log_tells_of_another_owner_although_the_former_one_leaves_it_open(
    tmp_path: Path,
) -> None:
    """As where the former owner is paused. The next stream goes to the other owner."""
    directory = InstanceDirectory()
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    first, second = (f"unix:{tmp_path}/{name}/s" for name in ("first", "second"))
    channel: Any = OwnerChannel(directory, "r", 0, first, connect)
    async with (
        OverASocket(ServicersOnChannel(), tmp_path / "first") as former,
        OverASocket(ServicersOnChannel(), tmp_path / "second") as latter,
    ):
        owned_by(directory, first, 1)
        former.channel, opened = channel, former.channel
        answers: list[str] = []
        conversation = asyncio.create_task(former.converse(names("a", then=asyncio.Event()), answers))
        await until_holds(lambda: answers == ["a"])
        owned_by(directory, second, 2)
        directory.note_change()
        with pytest.raises(NotOwnerError, match="another process owns the shard"):
            await conversation
        await asyncio.wait_for(former.delivery.ended.wait(), BOUND_S)
        latter.channel, other = channel, latter.channel
        await latter.converse(names("b"), answers)
        assert answers == ["a", "b"]
        assert latter.delivery.ended.is_set()
        former.channel, latter.channel = opened, other
    await channel.close()
