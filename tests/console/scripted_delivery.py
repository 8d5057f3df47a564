"""Delivery for tests of pages: knows every broadcast, and which of them the log cancels."""

from protos.delivery.v1.delivery_pb2 import (
    GetAppleStateRequest,
    GetAppleStateResponse,
    GetBroadcastRequest,
    GetBroadcastResponse,
)
from protos.delivery.v1.delivery_pb2_grpc import AppleStateServiceServicer, DeliveryServiceServicer
from protos.runtime.v1.log_pb2 import AwaitRequest, AwaitResponse
from protos.runtime.v1.log_pb2_grpc import PositionsServiceServicer
from services.domain.topics import PUSH_COMMANDS, decode
from services.errors import NotFoundError
from services.log.port import Partition
from services.log.sqlite.log import SqliteLog
from services.net.rpc.server import Context
from testkit.faults.crashing_log import records_of

EXPIRED = 13
"""The message id of a broadcast that delivery has forgotten."""


class ScriptedDelivery(DeliveryServiceServicer, AppleStateServiceServicer, PositionsServiceServicer):
    """Answers from `push-commands`, so that it has always applied what is there; `apple`: by appkey, else nothing."""

    def __init__(self, log: SqliteLog) -> None:
        self._log = log
        self.apple: dict[str, GetAppleStateResponse] = {}

    async def GetBroadcast(self, request: GetBroadcastRequest, context: Context) -> GetBroadcastResponse:
        if request.msgid == EXPIRED:
            raise NotFoundError("no such broadcast")
        commands = [decode(record) for record in await records_of(self._log, Partition(PUSH_COMMANDS.name, 0))]
        return GetBroadcastResponse(cancelled=any(command.cancel.msgid == request.msgid for command in commands))

    async def GetAppleState(self, request: GetAppleStateRequest, context: Context) -> GetAppleStateResponse:
        return self.apple.get(request.appkey, GetAppleStateResponse())

    async def Await(self, request: AwaitRequest, context: Context) -> AwaitResponse:
        return AwaitResponse()
