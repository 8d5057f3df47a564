"""A gRPC channel to the owner of a shard: the log names the owner, and calls are repeated at its successor."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any, cast

from services.errors import NotOwnerError, UnavailableError
from services.net.rpc.calls import DEADLINE_S
from services.net.rpc.channel import Channel, FormerConnections, PeerConnection
from services.process import background
from services.replica.instances import InstanceDirectory, OwnerOfShard

RETRY_S = 0.1
"""Upper bound of the wait for news of the owner, before the next attempt of a call."""

TAKEOVER_S = 5.0
"""Time within which a call is repeated. A standby takes over from a killed owner in less."""


class OwnerChannel:
    """A channel for generated stubs. An attempt that is answered with UnavailableError is repeated at the present owner
    for TAKEOVER_S, within the deadline of the call. An attempt that is not answered is given up and repeated as soon
    as the log names another owner: the former one may be paused. So a call may be carried out twice: it must be a
    query, or do no harm when it is repeated. A stream is not repeated: it ends with NotOwnerError once the log names
    another owner.

    A call of one of the `hazardous` methods is repeated only where it cannot have been carried out. It is begun on an
    open connection, so nothing was sent before, and after that only NotOwnerError says so: any other error may come
    after the owner has received the call. The request may have made the owner crash; repeated, it would crash the
    standbys too, one after the other. Once the log names another owner, the call ends with UnavailableError.

    Until the log names an owner, calls go to `default`, the address in the settings. These calls go on if the owner
    has that address. Once the log names an owner, channels to other addresses are closed after the last of their
    calls.
    """

    def __init__(
        self,
        directory: InstanceDirectory,
        role: str,
        shard: int,
        default: str,
        connect: Callable[[str], Channel],
        hazardous: Collection[str] = (),
    ) -> None:
        self._directory = directory
        self._role = role
        self._shard = shard
        self._default = default
        self._connect = connect
        self._hazardous = frozenset(hazardous)
        self._connections: dict[str, PeerConnection] = {}
        self._former = FormerConnections()
        self._owner = OwnerOfShard(directory, role, shard)
        self._asked = self._owner.id
        self._unanswered: dict[asyncio.Timeout, None] = {}  # in the order in which the calls began
        directory.on_change(self._note_owner)

    def unary_unary(self, method: str, *arguments: Any, **options: Any) -> Callable[..., Awaitable[Any]]:
        async def call(request: Any, timeout: float | None = None, **call_options: Any) -> Any:
            loop = asyncio.get_running_loop()
            deadline_s = loop.time() + (timeout or DEADLINE_S)
            last_attempt_s = min(deadline_s, loop.time() + TAKEOVER_S) - RETRY_S
            is_hazardous = method in self._hazardous
            while True:
                change = self._directory.change
                connection = self._current()
                attempt = connection.unary_unary(method, *arguments, **options)
                try:
                    with self._former.call(connection):
                        if is_hazardous:
                            await _connect(connection.channel)
                        async with self._given_up_with_the_owner(is_hazardous):
                            return await attempt(request, timeout=deadline_s - loop.time(), **call_options)
                except UnavailableError as error:
                    may_be_done = is_hazardous and not isinstance(error, NotOwnerError)
                    if may_be_done or loop.time() >= last_attempt_s:
                        raise
                await self._directory.wait_urgently(change, RETRY_S)

        return call

    def stream_stream(self, method: str, *arguments: Any, **options: Any) -> Callable[..., AsyncIterator[Any]]:
        async def call(requests: AsyncIterator[Any], **call_options: Any) -> AsyncIterator[Any]:
            owner = OwnerOfShard(self._directory, self._role, self._shard)
            change = _OwnerChange(owner, owner.id, self._default)
            connection = self._current()
            begin = connection.stream_stream(method, *arguments, **options)
            with self._former.call(connection):
                begun = cast(AsyncGenerator[Any, None], begin(requests, **call_options))
                async with contextlib.aclosing(change.ended(begun)) as responses:
                    async for response in responses:
                        yield response

        return call

    async def close(self, grace: float | None = None) -> None:
        open_now = (connection.channel.close(grace) for connection in self._connections.values())
        await asyncio.gather(*open_now, self._former.close(grace))

    @asynccontextmanager
    async def _given_up_with_the_owner(self, is_hazardous: bool) -> AsyncIterator[None]:
        """End the block once the log names another owner: with UnavailableError for a hazardous call, else with
        NotOwnerError.
        """
        unanswered = asyncio.timeout(None)
        self._unanswered[unanswered] = None
        try:
            async with unanswered:
                yield
        except TimeoutError:
            if not unanswered.expired():
                raise
            if is_hazardous:
                raise UnavailableError("the owner did not answer, and another process owns the shard by now") from None
            raise NotOwnerError("another process owns the shard by now") from None
        finally:
            self._unanswered.pop(unanswered, None)

    def _note_owner(self) -> None:
        """Close the connections to other addresses than the owner's, and give up unanswered calls to a former owner."""
        owner = self._directory.owner(self._role, self._shard)
        if owner is None:
            return
        for address in [each for each in self._connections if each != owner.alive.address]:
            self._former.add(self._connections.pop(address))
        if owner.id == self._asked:
            return
        is_the_asked = self._asked is None and owner.alive.address == self._default
        self._asked = owner.id
        if is_the_asked:
            return
        unanswered, self._unanswered = self._unanswered, {}
        for each in unanswered:
            each.reschedule(0)

    def _current(self) -> PeerConnection:
        address = self._owner.address or self._default
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = PeerConnection(self._connect(address))
        return connection


class _OwnerChange:
    """Ends a stream to the owner of this id once another owner is known. A wait for a response costs no task.

    A stream that began before any owner was known goes to the `default` address.
    """

    def __init__(self, owner: OwnerOfShard, known: str | None, default: str) -> None:
        self._owner = owner
        self._known = known
        self._default = default
        self._has_changed = False
        self._waiting = asyncio.timeout(None)

    async def ended(self, responses: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
        """Yield the responses. NotOwnerError: there is another owner."""
        watching = background.start("owner of a stream", self._watch())
        try:
            async with contextlib.aclosing(responses):
                while True:
                    try:
                        yield await self._next(responses)
                    except StopAsyncIteration:
                        return
        finally:
            watching.cancel()

    async def _next(self, responses: AsyncGenerator[Any, None]) -> Any:
        self._waiting = asyncio.timeout(0 if self._has_changed else None)
        try:
            async with self._waiting:
                return await anext(responses)
        except TimeoutError:
            if not self._waiting.expired():
                raise
            raise NotOwnerError("another process owns the shard by now") from None

    async def _watch(self) -> None:
        if self._known is None:
            await self._owner.wait_other(None)
            if self._owner.address == self._default:
                self._known = self._owner.id
        await self._owner.wait_other(self._known)
        self._has_changed = True
        with contextlib.suppress(RuntimeError):  # nobody waits for a response at present
            self._waiting.reschedule(asyncio.get_running_loop().time())


async def _connect(channel: Channel) -> None:
    """Return once the channel is connected; one without a socket always is.

    NotOwnerError: it is not connected within RETRY_S.
    """
    connect = getattr(channel, "connect", None)
    if connect is not None:
        try:
            async with asyncio.timeout(RETRY_S):
                await connect()
        except TimeoutError:
            raise NotOwnerError("the owner cannot be reached; nothing was done; try again") from None
