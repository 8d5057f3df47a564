"""Calls to the owner of a shard, wherever it is: found in the log, and asked again at its successor."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from services.runtime.errors import NotOwnerError, UnavailableError
from services.runtime.ownership.directory import InstanceDirectory
from services.runtime.rpc.channel import Channel
from services.runtime.rpc.limits import DEADLINE_S

RETRY_S = 0.1
"""Upper bound of the wait for news of the owner, before the next attempt of a call."""

SUCCESSION_S = 5.0
"""How long at most a call is repeated: a standby takes over from an owner that was killed in less."""


class OwnerChannel:
    """A channel for generated stubs. An attempt that is answered with UnavailableError is repeated at the present owner
    for SUCCESSION_S, within the deadline of the call. So a call may be carried out twice: it must be a query, or do no
    harm when it is repeated. There are no streams.

    A call of one of the `hazardous` methods is repeated only where it cannot have been carried out. It is begun on a
    connection that is there, so nothing was sent before, and after that only NotOwnerError says so: any other error may
    come after the owner has received the call. What it asks may have made the owner crash, and would take the standbys
    with it, one after the other.

    Until the log tells of an owner the calls go to `default`, the address in the settings.
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
        self._channels: dict[str, Channel] = {}

    def unary_unary(self, method: str, *arguments: Any, **options: Any) -> Callable[..., Awaitable[Any]]:
        calls: dict[Channel, Callable[..., Awaitable[Any]]] = {}

        async def call(request: Any, timeout: float | None = None, **call_options: Any) -> Any:
            loop = asyncio.get_running_loop()
            deadline_s = loop.time() + (timeout or DEADLINE_S)
            last_attempt_s = min(deadline_s, loop.time() + SUCCESSION_S) - RETRY_S
            is_hazardous = method in self._hazardous
            while True:
                change = self._directory.change
                channel = self._current()
                attempt = calls.get(channel)
                if attempt is None:
                    attempt = calls[channel] = channel.unary_unary(method, *arguments, **options)
                try:
                    if is_hazardous:
                        await _connect(channel)
                    return await attempt(request, timeout=deadline_s - loop.time(), **call_options)
                except UnavailableError as error:
                    may_be_done = is_hazardous and not isinstance(error, NotOwnerError)
                    if may_be_done or loop.time() >= last_attempt_s:
                        raise
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RETRY_S):
                        await change.wait()

        return call

    async def close(self, grace: float | None = None) -> None:
        await asyncio.gather(*(channel.close(grace) for channel in self._channels.values()))

    def _current(self) -> Channel:
        address = self._directory.address(self._role, self._shard) or self._default
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = self._connect(address)
        return channel


async def _connect(channel: Channel) -> None:
    """Return once the peer is there; channels without a socket always are connected. NotOwnerError after RETRY_S."""
    connect = getattr(channel, "connect", None)
    if connect is not None:
        try:
            async with asyncio.timeout(RETRY_S):
                await connect()
        except TimeoutError:
            raise NotOwnerError("the owner cannot be reached; nothing was done; try again") from None
