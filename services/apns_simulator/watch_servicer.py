"""gRPC service that streams the pushes accepted by the simulator to virtual iOS devices."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractContextManager
from typing import Protocol

from protos.delivery.v1.virtual_pb2 import WatchRequest, WatchResponse
from protos.delivery.v1.virtual_pb2_grpc import VirtualPhonesServiceServicer
from services.apns_simulator.requests import ReceivedPush
from services.runtime.errors import ConflictError, InputError
from services.runtime.rpc.server import Context

MAX_WATCHED = 10_000
"""Tokens per Watch request."""


class AcceptedPushes(Protocol):
    """A source of accepted pushes, which the simulator implements."""

    def watching(self, tokens: Iterable[str]) -> "AbstractContextManager[asyncio.Queue[ReceivedPush]]": ...


class VirtualPhonesServicer(VirtualPhonesServiceServicer):
    """Streams the pushes that the simulator accepts for some device tokens.

    `pushes` is None where pushes go to Apple; Watch is then a ConflictError. `check` raises UnavailableError where
    another process answers.
    """

    def __init__(self, pushes: AcceptedPushes | None, check: Callable[[], None] = lambda: None) -> None:
        self._pushes = pushes
        self._check = check

    async def Watch(self, requests: AsyncIterator[WatchRequest], context: Context) -> AsyncIterator[WatchResponse]:
        request = await anext(requests, None)
        if self._pushes is None:
            raise ConflictError("pushes go where CARILLON_APNS_URL says, so virtual iOS devices get none; unset it")
        if request is None or not 1 <= len(request.tokens) <= MAX_WATCHED:
            raise InputError(f"tokens must be a list of 1 to {MAX_WATCHED}")
        self._check()
        with self._pushes.watching(request.tokens) as queue:
            yield WatchResponse()
            while True:
                push = await queue.get()
                yield WatchResponse(token=push.token, headers=push.headers, payload=push.payload)
