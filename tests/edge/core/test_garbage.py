"""Requests leave no objects that only the cyclic garbage collector frees: its pauses would delay other requests."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import cast

import pytest

from protos.delivery.v1.delivery_pb2 import AttachRequest, AttachResponse, GetBroadcastRequest, GetBroadcastResponse
from protos.delivery.v1.delivery_pb2_grpc import DeliveryServiceServicer, add_DeliveryServiceServicer_to_server
from services.net.rpc.server import Context, Server
from testkit.edge.role import EdgeInstallation
from testkit.edge.valid_requests import ValidRequest, valid_requests
from testkit.garbage import cyclic_garbage
from testkit.signing import signed

REQUESTS = 10
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Delivery(DeliveryServiceServicer):
    """A delivery that has started every broadcast, and that no gateway attaches to."""

    async def GetBroadcast(self, request: GetBroadcastRequest, context: Context) -> GetBroadcastResponse:
        return GetBroadcastResponse()

    async def Attach(self, requests: AsyncIterator[AttachRequest], context: Context) -> AsyncIterator[AttachResponse]:
        raise AssertionError
        yield


@pytest.mark.parametrize("secrets", ["its own", "a wrong one"])
async def test_requests_leave_no_cyclic_garbage(installation: EdgeInstallation, secrets: str) -> None:
    add_DeliveryServiceServicer_to_server(Delivery(), cast(Server, installation.servers["delivery"]))
    valid = await valid_requests(installation)
    if secrets == "a wrong one":
        valid = [one._replace(secrets=("wrong",)) for one in valid]
    connections: dict[int, Connection] = {}
    for client in (installation.http, installation.android, installation.ios):
        port = cast(int, client.base_url.port)
        connections[port] = await asyncio.open_connection(client.base_url.host, port)
    # The first ones fill caches, and show which of them need roles that do not run here.
    answered = [request for request in valid if await _send(connections, installation, request, 2)]
    assert len(answered) > len(valid) * 0.8
    with cyclic_garbage() as garbage:
        for request in answered:
            await _send(connections, installation, request, REQUESTS)
    assert not {kind: number for kind, number in garbage.items() if number >= REQUESTS}
    for _, writer in connections.values():
        writer.close()
        await writer.wait_closed()


async def _send(
    connections: dict[int, Connection], installation: EdgeInstallation, request: ValidRequest, times: int
) -> bool:
    """Send the request some times over a bare connection: a client library would leave garbage too.

    Return whether all were answered, with any result but 500.
    """
    reader, writer = connections[cast(int, request.client(installation).base_url.port)]
    content = signed(request.body, *request.secrets)
    head = f"{request.method} {request.path} HTTP/1.1\r\nHost: test\r\nContent-Length: {len(content)}\r\n\r\n"
    is_answered = True
    for _ in range(times):
        writer.write(head.encode() + content)
        answer = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(int(answer.lower().split(b"content-length:")[1].split()[0]))
        is_answered &= answer.startswith(b"HTTP/1.1 200") and json.loads(body)["result"] != 500
    return is_answered
