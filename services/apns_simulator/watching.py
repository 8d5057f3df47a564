"""The stand-in's side of virtual iOS devices: what it took for them, as Apple would hand it on."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractContextManager
from typing import Protocol

from protos.delivery.v1.virtual_pb2 import WatchRequest, WatchResponse
from protos.delivery.v1.virtual_pb2_grpc import VirtualPhonesServiceServicer
from services.apns_simulator.rules import Received
from services.runtime.errors import ConflictError, InputError
from services.runtime.rpc.transport import Context

MAX_WATCHED = 10_000
"""Tokens of one watcher."""


class Watched(Protocol):
    """What is accepted for tokens, from the moment of entry on, in order."""

    def watching(self, tokens: Iterable[str]) -> "AbstractContextManager[asyncio.Queue[Received]]": ...


class VirtualPhonesServicer(VirtualPhonesServiceServicer):
    """`simulator` None: pushes go to Apple, so nobody is told anything."""

    def __init__(self, simulator: Watched | None) -> None:
        self._simulator = simulator

    async def Watch(self, requests: AsyncIterator[WatchRequest], context: Context) -> AsyncIterator[WatchResponse]:
        if self._simulator is None:
            raise ConflictError("pushes go where CARILLON_APNS_URL says, so virtual iOS devices get none; unset it")
        request = await anext(requests, None)
        if request is None or not 1 <= len(request.tokens) <= MAX_WATCHED:
            raise InputError(f"tokens must be a list of 1 to {MAX_WATCHED}")
        with self._simulator.watching(request.tokens) as pushes:
            yield WatchResponse()
            while True:
                received = await pushes.get()
                yield WatchResponse(token=received.token, headers=received.headers, payload=received.payload)
