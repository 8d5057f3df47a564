"""Sends and checks possession codes, for apps that know their APNs token and have lost their key."""

import struct
from collections import OrderedDict

import msgspec

from edge.core.message_ids import MessageIds
from edge.core.pauses import check_not_paused
from edge.core.quotas.rates import RateQuotas
from protos.push.v1.push_pb2 import Audience, Devices, IosStyle, Kind, Message, PushCommand, SendPush
from protos.registry.v1.apps_pb2 import Platform
from protos.runtime.v1.log_pb2 import Origin
from services.domain.command_writer import CommandWriter, push_command
from services.domain.device_protocol.possession import possession_code, proves_possession, sealed_code
from services.domain.role import RoleContext
from services.domain.topics import device_key
from services.runtime.log.topics import partition_of

AGAIN_MS = 60_000
"""Shortest time between two pushes with a code to one token, from one process."""

PERIOD_S = 300
"""Time to live of such a push, which ends before its code does."""

MAX_TOKENS = 20_000
"""Upper bound of the tokens that are remembered as having been sent a code; the oldest is forgotten first."""

_CONTENT = "possession code"
"""What lists of pushes show in place of a text. The device is not sent it."""


class PossessionCodes:
    """Pushes with codes, at most one to a token in AGAIN_MS and CODES_PER_S to an app, and the check of codes."""

    def __init__(
        self, context: RoleContext, writer: CommandWriter, ids: MessageIds, rates: RateQuotas, partitions: int
    ) -> None:
        self._context = context
        self._writer = writer
        self._ids = ids
        self._rates = rates
        self._partitions = partitions
        self._sent_ms: OrderedDict[tuple[str, str], int] = OrderedDict()

    def is_right(self, code: str | None, appkey: str, token: str, number: int) -> bool:
        """Return whether the device was sent this code in the last minutes."""
        now_ms = self._context.clock.now_ms()
        return code is not None and proves_possession(self._context.keys, code, appkey, token, number, now_ms)

    async def send(self, appkey: str, token: str, number: int, origin: Origin) -> None:
        """Push a code to the device, unless one was sent a moment ago. It has the origin of the hello that asks for it.

        ForbiddenError: the app is paused. TooManyRequestsError: too many devices of the app ask for codes.
        """
        now_ms = self._context.clock.now_ms()
        device = appkey, token
        if now_ms - self._sent_ms.get(device, now_ms - AGAIN_MS) < AGAIN_MS:
            return
        await check_not_paused(self._context.apps, [appkey])
        self._rates.take_code(appkey)
        self._sent_ms[device] = now_ms
        self._sent_ms.move_to_end(device)
        if len(self._sent_ms) > MAX_TOKENS:
            self._sent_ms.popitem(last=False)
        try:
            send = self._push(await self._ids.take(), appkey, token, number, now_ms)
            await self._writer.append([push_command(PushCommand(send=send))], origin)
        except BaseException:
            self._sent_ms.pop(device, None)
            raise

    def _push(self, msgid: int, appkey: str, token: str, number: int, now_ms: int) -> SendPush:
        """Return a silent push to this device alone. The code is sealed in it, so that the log does not show it."""
        keys = self._context.keys
        code = possession_code(keys, appkey, token, number, now_ms)
        partition = partition_of(device_key(appkey, token), self._partitions)
        devices = Devices(
            partitions=struct.pack("<H", partition), numbers=struct.pack("<I", number), id_offsets=bytes(4)
        )
        request = {"type": "hello", "appkey": appkey, "token": token, "message": _CONTENT}
        return SendPush(
            msgid=msgid,
            id_count=1,
            appkey=appkey,
            platform=Platform.PLATFORM_IOS,
            kind=Kind.KIND_UNICAST,
            audience=Audience(devices=devices),
            message=Message(content=_CONTENT, ios=IosStyle(sealed_possession_code=sealed_code(keys, code, appkey))),
            period_s=PERIOD_S,
            request_json=msgspec.json.encode(request).decode(),
        )
