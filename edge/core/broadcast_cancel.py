"""Cancels broadcasts and multicasts for the devices that have not received them yet."""

from protos.delivery.v1.delivery_pb2 import GetBroadcastRequest
from protos.delivery.v1.delivery_pb2_grpc import DeliveryServiceStub
from protos.push.v1.push_pb2 import CancelPush, PushCommand
from protos.runtime.v1.log_pb2 import Origin
from services.domain.command_writer import CommandWriter, push_command
from services.domain.topics import PUSH_COMMANDS
from services.runtime.errors import NotFoundError
from services.runtime.rpc.peers import Peers


class BroadcastCancel:
    """Cancels broadcasts through the log. Delivery knows each broadcast until its time to live is over."""

    def __init__(self, writer: CommandWriter, peers: Peers) -> None:
        self._writer = writer
        self._delivery = DeliveryServiceStub(peers.all("delivery")[0])

    async def cancel(self, appkey: str, msgid: int, origin: Origin) -> None:
        """Return once the broadcast is cancelled; cancelling twice is no error. Frames already sent are not recalled.

        NotFoundError: the app has no such broadcast, or its time to live is over.
        """
        # A broadcast that was answered a moment ago may not have reached delivery yet.
        await self._writer.wait_applied(PUSH_COMMANDS, 0)
        if await self._is_cancelled(appkey, msgid):
            return
        command = PushCommand(cancel=CancelPush(msgid=msgid, appkey=appkey))
        await self._writer.append_and_wait([push_command(command)], origin)
        if not await self._is_cancelled(appkey, msgid):
            raise NotFoundError("msgid names a broadcast whose time to live is over")

    async def _is_cancelled(self, appkey: str, msgid: int) -> bool:
        try:
            found = await self._delivery.GetBroadcast(GetBroadcastRequest(msgid=msgid, appkey=appkey), timeout=5)
        except NotFoundError:
            raise NotFoundError("msgid names no broadcast of this app that can be cancelled") from None
        return bool(found.cancelled)
