"""Cancels broadcasts and multicasts for the devices that have not received them yet."""

from protos.delivery.v1.delivery_pb2 import GetBroadcastRequest
from protos.delivery.v1.delivery_pb2_grpc import DeliveryServiceStub
from protos.push.v1.push_pb2 import CancelPush, PushCommand
from protos.runtime.v1.log_pb2 import Origin, Position
from services.domain.command_writer import CommandWriter, push_command
from services.domain.topics import PUSH_COMMANDS
from services.runtime.errors import NotFoundError
from services.runtime.log.port import Log, Partition
from services.runtime.rpc.peers import Peers

_COMMANDS = Partition(PUSH_COMMANDS.name, 0)


class Broadcasts:
    """Cancels broadcasts through the log. Delivery knows each broadcast until its time to live is over."""

    def __init__(self, log: Log, writer: CommandWriter, peers: Peers) -> None:
        self._log = log
        self._writer = writer
        self._peers = peers
        self._delivery = DeliveryServiceStub(peers.all("delivery")[0])

    async def cancel(self, appkey: str, msgid: int, origin: Origin) -> None:
        """Return when the broadcast is cancelled; cancelling twice is no error. Frames already sent are not recalled.

        NotFoundError: the app has no such broadcast, or its time to live is over.
        """
        await self._catch_up()
        if await self._is_cancelled(appkey, msgid):
            return
        command = PushCommand(cancel=CancelPush(msgid=msgid, appkey=appkey))
        await self._writer.append_and_wait([push_command(command)], origin)
        if not await self._is_cancelled(appkey, msgid):
            raise NotFoundError("msgid names a broadcast whose time to live is over")

    async def _catch_up(self) -> None:
        """Wait until delivery has applied every push command, so that it knows a broadcast answered a moment ago."""
        end = (await self._log.ends([_COMMANDS]))[_COMMANDS]
        if end:
            await self._peers.wait_applied([Position(topic=_COMMANDS.topic, partition=0, offset=end - 1)])

    async def _is_cancelled(self, appkey: str, msgid: int) -> bool:
        try:
            found = await self._delivery.GetBroadcast(GetBroadcastRequest(msgid=msgid, appkey=appkey), timeout=5)
        except NotFoundError:
            raise NotFoundError("msgid names no broadcast of this app that can be cancelled") from None
        return bool(found.cancelled)
