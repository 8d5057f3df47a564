"""Calls to the owner of a shard, wherever it is: found in the log, and asked again at its successor."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from services.runtime.errors import UnavailableError
from services.runtime.ownership.directory import InstanceDirectory
from services.runtime.rpc.channel import Channel
from services.runtime.rpc.limits import DEADLINE_S

RETRY_S = 0.1
"""Upper bound of the wait for news of the owner, before the next attempt of a call."""

SUCCESSION_S = 5.0
"""How long at most a call is repeated: a standby takes over from an owner that was killed in less."""


class OwnerChannel:
    """A channel for generated stubs. An attempt that is answered with UnavailableError is repeated at the present owner
    for SUCCESSION_S, within the deadline of the call. So a call may be carried out twice: it must be a query. There are
    no streams.

    A call of one of the `hazardous` methods is repeated only where it cannot have reached the owner: what it asks may
    have made the owner crash, and would take the standbys with it, one after the other.

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
            while True:
                change = self._directory.change
                channel = self._current()
                attempt = calls.get(channel)
                if attempt is None:
                    attempt = calls[channel] = channel.unary_unary(method, *arguments, **options)
                was_connected = _is_connected(channel)
                try:
                    return await attempt(request, timeout=deadline_s - loop.time(), **call_options)
                except UnavailableError:
                    if loop.time() >= last_attempt_s or (was_connected and method in self._hazardous):
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


def _is_connected(channel: Channel) -> bool:
    """Return whether the peer is there; channels without a socket always are connected."""
    return getattr(channel, "is_connected", True)
