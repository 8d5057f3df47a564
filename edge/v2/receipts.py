"""POST /channels/v1/receipt/CHANNEL/APPKEY/TOKEN: what vendors tell of messages that they took over."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence

import falcon
from falcon.asgi import Request, Response

from edge.core.parsing.body import read_body
from edge.v2.device_frames import DeviceReport, HttpReports
from protos.delivery.v1.delivery_pb2 import OutcomeKind
from protos.registry.v1.apps_pb2 import App, Channel
from protos.registry.v1.devices_pb2 import ClearAddress, DeviceCommand
from protos.registry.v1.registry_pb2 import FindAddressesRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.domain.addresses import CHANNELS, address_hash, channel_name
from services.domain.apps import AppDirectory
from services.domain.channel_credentials.forms import FORMS
from services.domain.channel_credentials.stored import settings_of
from services.domain.channel_receipts.receipts import (
    KEY_SETTING,
    MAX_BODY_BYTES,
    ChannelReceipt,
    ReceiptKind,
    ReceiptTags,
    VendorReceipts,
    is_receipt_token,
)
from services.domain.command_writer import CommandWriter, device_command
from services.domain.master_key import Keys
from services.domain.token_resolver import TokenAndAliasResolver
from services.domain.topics import device_key
from services.errors import UnavailableError
from services.log.topics import partition_of
from services.process.clock import Clock
from services.process.metrics import CHANNEL_RECEIPTS
from services.replica.peers import Peers

_RETRY_AFTER_S = 10


class ReceiptIntake:
    """Records receipts: as reports of the devices that have the addresses, or as the end of these addresses."""

    def __init__(
        self,
        peers: Peers,
        writer: CommandWriter,
        resolver: TokenAndAliasResolver,
        reports: HttpReports,
        clock: Clock,
    ) -> None:
        self._registries = [RegistryServiceStub(channel) for channel in peers.all("registry")]
        self._writer = writer
        self._resolver = resolver
        self._reports = reports
        self._clock = clock

    async def record(self, app: App, channel: "Channel.ValueType", receipts: Sequence[ChannelReceipt]) -> None:
        """Return once all of them are recorded, or are about no device of the app. They may be repeated.

        UnavailableError: some may not be recorded.
        """
        for reason, count in Counter(receipt.reason for receipt in receipts).items():
            CHANNEL_RECEIPTS.labels(channel_name(channel), reason).inc(count)
        wanted = [receipt for receipt in receipts if receipt.kind is not ReceiptKind.OTHER]
        hashes = {receipt.address: address_hash(channel, receipt.address) for receipt in wanted}
        tokens = await self._tokens(app.appkey, set(hashes.values()))
        of_devices = [
            (receipt, token) for receipt in wanted if (token := tokens.get(hashes[receipt.address])) is not None
        ]
        received = [(each, token) for each, token in of_devices if each.kind is ReceiptKind.RECEIVED]
        dead = [(each, token) for each, token in of_devices if each.kind is ReceiptKind.DEAD_ADDRESS]
        await asyncio.gather(self._report(app.appkey, received), self._clear(app.appkey, channel, dead))

    async def _tokens(self, appkey: str, hashes: Iterable[bytes]) -> dict[bytes, str]:
        """Return the token of the device that has each address, without those that none has."""
        by_owner: dict[int, list[bytes]] = {}
        for hash_ in hashes:
            owner = partition_of(device_key(appkey, hash_.hex()), len(self._registries))
            by_owner.setdefault(owner, []).append(hash_)
        answers = await asyncio.gather(
            *(
                self._registries[owner].FindAddresses(FindAddressesRequest(appkey=appkey, hashes=owned))
                for owner, owned in by_owner.items()
            )
        )
        return {
            hash_: token
            for owned, answer in zip(by_owner.values(), answers, strict=True)
            for hash_, token in zip(owned, answer.tokens, strict=True)
            if token
        }

    async def _report(self, appkey: str, received: Sequence[tuple[ChannelReceipt, str]]) -> None:
        numbers = await self._resolver.numbers(appkey, [token for _, token in received]) if received else []
        kind, now_ms = OutcomeKind.OUTCOME_KIND_RECEIVED, self._clock.now_ms()
        await self._reports.put_all(
            [
                DeviceReport(
                    appkey, self._reports.partition(appkey, token), plus_one - 1, [receipt.msgid], kind, now_ms
                )
                for (receipt, token), plus_one in zip(received, numbers, strict=True)
                if plus_one
            ]
        )

    async def _clear(
        self, appkey: str, channel: "Channel.ValueType", dead: Sequence[tuple[ChannelReceipt, str]]
    ) -> None:
        """Remove the addresses; one that a device has set since stays."""
        commands = {
            token: device_command(
                DeviceCommand(
                    appkey=appkey,
                    token=token,
                    clear_address=ClearAddress(
                        channel=channel,
                        only_hash=address_hash(channel, receipt.address),
                        dead_reason=receipt.reason,
                    ),
                )
            )
            for receipt, token in dead
        }
        if commands:
            await self._writer.append(list(commands.values()))


class ReceiptEndpoint:
    """Takes the calls of vendors. Whoever has the app's URL may call, so it ends in a token.

    Where the app has a key for them, calls must be signed. Errors are HTTP statuses, by which a vendor knows whether to
    call again.
    """

    def __init__(self, apps: AppDirectory, keys: Keys, clock: Clock, intake: ReceiptIntake) -> None:
        self._apps = apps
        self._keys = keys
        self._clock = clock
        self._intake = intake

    async def on_post(self, request: Request, response: Response, channel: str, appkey: str, token: str) -> None:
        number = CHANNELS.get(channel)
        app, form = self._apps.get(appkey), FORMS.get(number) if number is not None else None
        vendor = form.receipts if form is not None else None
        if app is None or vendor is None or number is None or not is_receipt_token(app, number, token):
            raise falcon.HTTPNotFound
        key = settings_of(app, number).get(KEY_SETTING)
        if key and not vendor.is_signed(request.get_header(vendor.header, default=""), key, self._clock.now_ms()):
            raise falcon.HTTPForbidden
        body = await read_body(request, MAX_BODY_BYTES)
        try:
            receipts = _read(vendor, body, ReceiptTags(appkey, number, self._keys))
            await self._intake.record(app, number, receipts)
        except UnavailableError as error:
            raise falcon.HTTPServiceUnavailable(description=str(error), retry_after=_RETRY_AFTER_S) from None
        response.context.result = 0
        response.data = vendor.answer


def _read(vendor: VendorReceipts, body: bytes, tags: ReceiptTags) -> Sequence[ChannelReceipt]:
    try:
        return vendor.read(body, tags)
    except ValueError as error:
        raise falcon.HTTPBadRequest(description=str(error)) from None
