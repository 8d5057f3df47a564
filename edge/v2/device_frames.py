"""The device protocol over HTTP, for devices without a connection (iOS), with possession codes for lost keys."""

import asyncio
import struct
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import msgspec

from edge.core.admission import PushAdmission
from edge.core.message_ids import MessageIds
from protos.delivery.v1.delivery_pb2 import OutcomeKind, RecordReportsRequest, Reports
from protos.delivery.v1.delivery_pb2_grpc import ReportsServiceStub
from protos.gateway.v1.sessions_pb2 import SessionBatch, SessionEvent, SessionFact
from protos.push.v1.push_pb2 import Audience, Devices, IosStyle, Kind, Message, PushCommand, SendPush
from protos.registry.v1.apps_pb2 import App, Platform
from protos.registry.v1.devices_pb2 import (
    REGISTRATION_AUTHORITY_CODE,
    REGISTRATION_AUTHORITY_KEY,
    REGISTRATION_AUTHORITY_TOKEN,
    Device,
    DeviceCommand,
)
from protos.registry.v1.registry_pb2 import GetDevicesRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from protos.runtime.v1.log_pb2 import Meta, Origin
from services.domain.alias_checks import AliasChecks
from services.domain.apps import OUTDATED
from services.domain.attempt_buckets import AttemptBuckets
from services.domain.command_writer import Command, CommandWriter, device_command, push_command
from services.domain.device_protocol import answers, commands, frames
from services.domain.device_protocol.answers import HelloRefusedError
from services.domain.device_protocol.possession import possession_code, proves_possession, sealed_code
from services.domain.identity import IdentityChecks
from services.domain.ids import new_token
from services.domain.ios_tokens import ios_token, spellings
from services.domain.limits import check_room
from services.domain.master_key import DEVICE_KEY_LENGTH, KeyPurpose
from services.domain.registrations import DeviceQuota, RegistrationLimiter, RegistrationRates
from services.domain.role import RoleContext
from services.domain.token_resolver import TokenAndAliasResolver
from services.domain.topics import SESSIONS, device_key
from services.errors import InputError, NotFoundError, SignError, TooManyRequestsError, UnavailableError
from services.log.batcher import Batcher, ByteBudget
from services.log.topics import partition_of
from services.process.metrics import REGISTRATIONS_REFUSED
from services.replica.peers import Peers

if TYPE_CHECKING:
    from protos.delivery.v1.delivery_pb2_grpc import ReportsServiceAsyncStub

# Sends and checks possession codes, for apps that know their APNs token and have lost their key.

AGAIN_MS = 60_000
"""Shortest time between two pushes with a code to one token, from one process."""

PERIOD_S = 300
"""Time to live of a push with a code, which ends before the code does."""

MAX_TOKENS = 20_000
"""Upper bound of the tokens that are remembered as having been sent a code; the oldest is forgotten first."""

_CONTENT = "possession code"
"""Text of such a push in lists of pushes; it is not sent to the device."""


class PossessionCodes:
    """Pushes with codes, at most one to a token in AGAIN_MS and CODES_PER_S to an app, and the check of codes."""

    def __init__(
        self, context: RoleContext, writer: CommandWriter, ids: MessageIds, admission: PushAdmission, partitions: int
    ) -> None:
        self._context = context
        self._writer = writer
        self._ids = ids
        self._admission = admission
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
        await self._admission.admit_code(appkey)
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


# Acknowledgements and reports of devices without a connection, for delivery.

REPORTS_BURST = 60
REPORT_INTERVAL_MS = 1_000
"""A device may send REPORTS_BURST frames with acknowledgements or reports at once, then one in each interval."""

_MAX_REPORTS = 1_000
_WAITING_BYTES = 16 * 1024 * 1024
_REPORT_BYTES = 300


class DeviceReport(NamedTuple):
    """An outcome that a device tells: the message ids of an acknowledgement, or the one of a report."""

    appkey: str
    partition: int
    number: int
    msgids: Sequence[int]
    kind: "OutcomeKind.ValueType"
    time_ms: int


class HttpReports:
    """Calls RecordReports of delivery. Devices that report at the same time share a call."""

    def __init__(self, peers: Peers, partitions: int) -> None:
        self._partitions = partitions
        self._budget = ByteBudget(_WAITING_BYTES)
        self._batchers: list[Batcher[DeviceReport, None]] = [
            Batcher(partial(_record_reports, ReportsServiceStub(channel)), self._budget, _MAX_REPORTS)
            for channel in peers.all("delivery")
        ]

    async def put(
        self,
        appkey: str,
        token: str,
        number: int,
        msgids: Sequence[int],
        kind: "OutcomeKind.ValueType",
        time_ms: int,
    ) -> None:
        """Return once delivery has recorded the outcome, or has found that it cannot be true. The call may be repeated.

        UnavailableError: delivery does not answer.
        """
        partition = self.partition(appkey, token)
        await self.put_all([DeviceReport(appkey, partition, number, msgids, kind, time_ms)])

    def partition(self, appkey: str, token: str) -> int:
        """Return the partition of a device."""
        return partition_of(device_key(appkey, token), self._partitions)

    async def put_all(self, reports: Sequence[DeviceReport]) -> None:
        """Do what `put` does for the outcomes of many devices; those of one instance of delivery share a call."""
        by_owner: dict[int, list[DeviceReport]] = {}
        for report in reports:
            by_owner.setdefault(report.partition % len(self._batchers), []).append(report)
        recorded = []
        for owner, owned in by_owner.items():
            size = sum(_REPORT_BYTES + 8 * len(report.msgids) for report in owned)
            self._budget.reserve(size)
            recorded.append(self._batchers[owner].put(owned, size))
        await asyncio.gather(*recorded)


async def _record_reports(delivery: "ReportsServiceAsyncStub", reports: list[DeviceReport]) -> list[None]:
    by_app: dict[str, list[DeviceReport]] = {}
    for report in reports:
        by_app.setdefault(report.appkey, []).append(report)
    await delivery.RecordReports(RecordReportsRequest(reports=[_columns(*item) for item in by_app.items()]))
    return [None] * len(reports)


def _columns(appkey: str, reports: Sequence[DeviceReport]) -> Reports:
    rows = [(report, msgid) for report in reports for msgid in report.msgids]
    count = len(rows)
    return Reports(
        appkey=appkey,
        partitions=struct.pack(f"<{count}H", *(report.partition for report, _ in rows)),
        numbers=struct.pack(f"<{count}I", *(report.number for report, _ in rows)),
        msgids=struct.pack(f"<{count}Q", *(msgid for _, msgid in rows)),
        kinds=bytes(report.kind for report, _ in rows),
        times_ms=struct.pack(f"<{count}q", *(report.time_ms for report, _ in rows)),
    )


_RETRY_AFTER_S = 10


class DeviceCaller(msgspec.Struct, frozen=True):
    """An authenticated device, and the origin that its records carry."""

    appkey: str
    token: str
    number: int
    origin: Origin


class FrameHandler:
    """Executes one frame and answers it with a welcome, an ok or the device's record."""

    def __init__(
        self,
        context: RoleContext,
        writer: CommandWriter,
        resolver: TokenAndAliasResolver,
        partitions: int,
        registrations: RegistrationLimiter,
        rates: RegistrationRates,
        possession: PossessionCodes,
    ) -> None:
        self._context = context
        self._possession = possession
        self._registrations = registrations
        self._rates = rates
        self._writer = writer
        self._resolver = resolver
        self._partitions = partitions
        self._quota = DeviceQuota(context.apps, context.peers, context.clock, partitions)
        self._identity = IdentityChecks(context.clock.now_ms)
        self._aliases = AliasChecks(context.peers)
        self._reports = HttpReports(context.peers, partitions)
        self._report_rates = AttemptBuckets(REPORTS_BURST, REPORT_INTERVAL_MS)

    async def answer(self, payload: bytes, origin: Origin) -> answers.Answer:
        """Execute a frame and return the answer.

        InputError: no frame, or a ping. SignError: unknown app, wrong key, or wrong proof.
        ForbiddenError: the app requires a proof, or the device needs a code and the app is paused. NotFoundError: the
        device was removed. UnavailableError: the app is unknown here, and the log, which may know it, does not answer.
        TooManyRequestsError: too many hellos without a key from this address, whether the app exists or not, or too
        many new devices of the app, or the app has too many devices, or the device has handed in too many proofs.
        """
        credentials = frames.credentials(payload)
        frame = frames.decode_frame(payload)
        if isinstance(frame, frames.Hello) and not frame.key:
            self._limit_registrations(origin.address)
        app = await self._app(credentials.app)
        if isinstance(frame, frames.Hello):
            self._context.keys.check(KeyPurpose.DEVICES)
            is_ios = app.platform == Platform.PLATFORM_IOS
            welcome = await (self._hello_of_ios if is_ios else self._hello_of_android)(app, frame, origin)
            return msgspec.structs.replace(welcome, ignored=frames.ignored_attributes(frame))
        caller = await self._caller(app, credentials, origin)
        if isinstance(frame, frames.Ping):
            raise InputError("input error: type: pings are not supported over HTTP")
        if isinstance(frame, frames.GetDeviceRequest):
            return answers.device_answer(frame.id, await self._find(caller))
        if (number := await self._number(caller.appkey, caller.token)) is None:
            raise NotFoundError("input error: no such device")
        if number != caller.number:
            raise SignError("unauthorized")
        if isinstance(frame, frames.Ack | frames.Report):
            await self._report(caller, frame)
            return answers.Ok(None if isinstance(frame, frames.Ack) else frame.id)
        if isinstance(frame, frames.Activity):
            await self._append_activity(caller, frame.event)
        else:
            await self._change(app, caller, frame)
        return answers.Ok(frame.id)

    def _limit_registrations(self, address: str) -> None:
        if not self._registrations.take(address, self._context.clock.now_ms()):
            REGISTRATIONS_REFUSED.inc()
            raise TooManyRequestsError("too many new devices from this address; repeat the request", _RETRY_AFTER_S)

    def allows_origin(self, payload: bytes, origin: str) -> bool:
        """Return whether pages of this origin may read answers about the app that the frame names."""
        app = self._context.apps.get(frames.named_app(payload))
        return app is not None and origin in app.web_origins

    async def _app(self, appkey: str) -> App:
        app = self._context.apps.get(appkey)
        if app is None:
            is_current = await self._context.apps.refresh()
            app = self._context.apps.get(appkey)
            if app is None:
                raise SignError("unauthorized") if is_current else UnavailableError(OUTDATED)
        return app

    async def _caller(self, app: App, credentials: frames.Credentials, origin: Origin) -> DeviceCaller:
        """Authenticate the sender. SignError: it has no key of the token, or a revoked one."""
        token = credentials.token or ""
        if token and app.platform == Platform.PLATFORM_IOS:
            ios_token(token, "input error: token")
        proven = await self._proven(app.appkey, token, credentials.key)
        if proven is None:
            raise SignError("unauthorized")
        return DeviceCaller(app.appkey, *proven, origin)

    async def _proven(self, appkey: str, token: str, key: str | None) -> tuple[str, int] | None:
        """Return the token and the device number that the key proves; None if it proves none, or is revoked.

        A key belongs to the token as it is registered, which may be an older spelling. A key whose number was reserved
        after the log had gone back opens no device, but its token may register again.

        Before a well-formed key is refused, the directory is refreshed once: keys may have been rotated a moment ago.
        UnavailableError: the refresh failed, or this process has not been given the key in force.
        """
        proven = self._proven_now(appkey, token, key)
        if proven is None and key and len(key) == DEVICE_KEY_LENGTH:
            is_current = await self._context.apps.refresh()
            proven = self._proven_now(appkey, token, key)
            if proven is None and not is_current:
                raise UnavailableError(OUTDATED)
        return proven

    def _proven_now(self, appkey: str, token: str, key: str | None) -> tuple[str, int] | None:
        """Return as `_proven` does, from the directory as it is now."""
        for name in spellings(token):
            number = self._context.keys.device_number(appkey, name, key or "")
            partition = partition_of(device_key(appkey, name), self._partitions)
            if number is not None and not self._context.apps.is_refused(appkey, partition, number):
                return name, number
        return None

    def _is_revoked(self, appkey: str, token: str, number: int) -> bool:
        partition = partition_of(device_key(appkey, token), self._partitions)
        return self._context.apps.is_revoked(appkey, partition, number)

    async def _hello_of_android(self, app: App, hello: frames.Hello, origin: Origin) -> answers.Welcome:
        """Register a new device under a new token, or welcome the device that the key proves.

        A key from before the log went back may prove another number than the token has now.
        """
        if not hello.token and not hello.key:
            made = commands.registration(app.appkey, new_token(), app.platform, hello, REGISTRATION_AUTHORITY_TOKEN)
            return await self._register(app, made, origin)
        caller = await self._caller(app, hello, origin)
        number = await self._number(app.appkey, caller.token)
        if number is None:
            made = self._by_key(app, caller.token, caller.number, hello)
            return await self._register(app, made, origin, shown=hello.key, former=caller.number)
        if command := commands.command(hello, app.appkey, caller.token):
            await self._writer.append_and_wait([device_command(command)], origin)
        return self._welcome(app.appkey, caller.token, number, new=number != caller.number, shown=hello.key)

    async def _hello_of_ios(self, app: App, hello: frames.Hello, origin: Origin) -> answers.Welcome:
        """Register a new token, or welcome the device that the key or the code proves.

        A token is no secret, so a token alone opens no registered device. A known token registers again, so that a late
        answer of Apple about its earlier registration does not remove it.
        """
        if not hello.token:
            raise InputError("input error: token is missing: it is the one that APNs gave")
        ios_token(hello.token, "input error: token")
        appkey = app.appkey
        proven = await self._proven(appkey, hello.token, hello.key)
        if hello.key and proven is None:
            self._limit_registrations(origin.address)
        registered = await self._registered(appkey, spellings(hello.token))
        if registered is None:
            return await self._return_or_register(app, hello, proven, origin)
        token, number = registered
        if proven == registered:
            made = self._by_key(app, token, number, hello)
            return await self._register(app, made, origin, new=False, shown=hello.key)
        if not self._possession.is_right(hello.code, appkey, token, number):
            await self._ask_for_code(appkey, token, number, origin)
        made = commands.registration(appkey, token, app.platform, hello, REGISTRATION_AUTHORITY_CODE, number)
        return await self._register(app, made, origin, new=False)

    async def _return_or_register(
        self, app: App, hello: frames.Hello, proven: tuple[str, int] | None, origin: Origin
    ) -> answers.Welcome:
        """Register a token that is not registered: under its number where its key is proven, else as a new device.

        HelloRefusedError: its key was revoked. SignError: the key is wrong.
        """
        names = spellings(hello.token or "")
        former = await self._former_numbers(app.appkey, names)
        if any(self._is_revoked(app.appkey, name, number) for name, number in former.items()):
            raise _revoked()
        if not hello.key:
            made = commands.registration(app.appkey, names[0], app.platform, hello, REGISTRATION_AUTHORITY_TOKEN)
        elif proven is not None and former.get(proven[0], proven[1]) == proven[1]:
            made = self._by_key(app, *proven, hello)
        else:
            raise SignError("unauthorized")
        return await self._register(app, made, origin, shown=hello.key, former=former.get(made.token))

    def _by_key(self, app: App, token: str, number: int, hello: frames.Hello) -> DeviceCommand:
        return commands.registration(app.appkey, token, app.platform, hello, REGISTRATION_AUTHORITY_KEY, number)

    async def _register(
        self,
        app: App,
        command: DeviceCommand,
        origin: Origin,
        *,
        new: bool = True,
        shown: str | None = None,
        former: int | None = None,
    ) -> answers.Welcome:
        """Append the registration, and welcome the device if this command registered it or the key proves it.

        `shown`: the key in the hello. `former`: the token's number before; its removal took the alias away.
        """
        appkey, token = command.appkey, command.token
        if new:
            self._rates.take(app, origin.address)
            await self._quota.reserve(appkey, token)
        command.meta.time_ms = self._context.clock.now_ms()
        await self._writer.append_and_wait([device_command(command)], origin)
        device = await self._record(appkey, token)
        if device is None or self._is_revoked(appkey, token, device.number):
            raise NotFoundError("the device was removed while it was registered; repeat the request")
        if not _is_entitled(command, device):
            raise SignError("unauthorized: the device was registered otherwise meanwhile; repeat the request")
        if former is not None:
            await self._check_alias(appkey, token, former)
        return self._welcome(appkey, token, device.number, new=new, shown=shown)

    async def _ask_for_code(self, appkey: str, token: str, number: int, origin: Origin) -> NoReturn:
        """Send the device a code. HelloRefusedError: always; the next hello carries the code."""
        await self._possession.send(appkey, token, number, origin)
        raise HelloRefusedError(
            "unauthorized: this token is registered, and the hello has no key of it; a silent push brings a code to the"
            " device: repeat the hello with this code",
            "possession",
        )

    def _welcome(self, appkey: str, token: str, number: int, *, new: bool, shown: str | None = None) -> answers.Welcome:
        key = self._context.keys.device_key(appkey, token, number, shown)
        return answers.Welcome(token=token, key=key, heartbeat=frames.HEARTBEAT_S, new=new)

    async def _change(self, app: App, caller: DeviceCaller, frame: frames.Change) -> None:
        command = commands.command(frame, caller.appkey, caller.token)
        assert command is not None
        self._identity.check(app, caller.token, frame, command)
        if isinstance(frame, frames.SetAddressRequest) and app.platform == Platform.PLATFORM_IOS:
            raise InputError(
                "input error: channel: devices of an iOS app are reached by their APNs token alone; a browser, also one"
                " on an iPhone, is a device of an app of platform android"
            )
        if isinstance(frame, frames.AddStagsRequest):
            check_room((await self._find(caller)).stags, frame.stags)
        await self._writer.append_and_wait([device_command(command)], caller.origin)
        if isinstance(frame, frames.SetAliasRequest | frames.ClearAliasRequest):
            await self._check_alias(caller.appkey, caller.token, caller.number)

    async def _check_alias(self, appkey: str, token: str, number: int) -> None:
        partition = partition_of(device_key(appkey, token), self._partitions)
        await self._aliases.check(appkey, partition, number)

    async def _report(self, caller: DeviceCaller, frame: frames.Ack | frames.Report) -> None:
        """Hand an acknowledgement or a report to delivery.

        UnavailableError: it may be lost, so repeat it. TooManyRequestsError: the device reports too often.
        """
        if isinstance(frame, frames.Ack):
            msgids, kind = frame.msgids, OutcomeKind.OUTCOME_KIND_RECEIVED
        else:
            msgids, kind = [frame.msgid], commands.report_kind(frame.event)
        device, now_ms = f"{caller.appkey}/{caller.token}", self._context.clock.now_ms()
        if wait_ms := self._report_rates.wait_ms(device, now_ms):
            raise TooManyRequestsError("too many reports of this device; repeat the request", -(-wait_ms // 1000))
        self._report_rates.take(device, now_ms)
        await self._reports.put(caller.appkey, caller.token, caller.number, msgids, kind, now_ms)

    async def _append_activity(self, caller: DeviceCaller, event: frames.ActivityEvent) -> None:
        now_ms = self._context.clock.now_ms()
        activity = SessionEvent(
            appkey=caller.appkey,
            number=caller.number,
            kind=commands.activity_kind(event),
            time_ms=now_ms,
        )
        fact = SessionFact(meta=Meta(time_ms=now_ms), batch=SessionBatch(events=[activity]))
        partition = partition_of(device_key(caller.appkey, caller.token), self._partitions)
        await self._writer.append_and_wait([Command(SESSIONS, caller.appkey.encode(), fact, partition)], caller.origin)

    async def _find(self, caller: DeviceCaller) -> Device:
        """Return the device's record. NotFoundError: it was removed. SignError: the key is of a former number."""
        device = await self._record(caller.appkey, caller.token)
        if device is None:
            raise NotFoundError("input error: no such device")
        if device.number != caller.number:
            raise SignError("unauthorized")
        return device

    async def _record(self, appkey: str, token: str) -> Device | None:
        """Return the record of a registered device."""
        partition = partition_of(device_key(appkey, token), self._partitions)
        registry = RegistryServiceStub(self._context.peers.owner("registry", partition))
        found = await registry.GetDevices(GetDevicesRequest(appkey=appkey, tokens=[token]))
        return found.devices[0] if found.devices else None

    async def _number(self, appkey: str, token: str) -> int | None:
        (plus_one,) = await self._resolver.numbers(appkey, [token])
        return plus_one - 1 if plus_one and not self._is_revoked(appkey, token, plus_one - 1) else None

    async def _registered(self, appkey: str, names: Sequence[str]) -> tuple[str, int] | None:
        """Return the first name with a registered device and its number; a revoked device counts as unregistered."""
        for name, plus_one in zip(names, await self._resolver.numbers(appkey, names), strict=True):
            if plus_one and not self._is_revoked(appkey, name, plus_one - 1):
                return name, plus_one - 1
        return None

    async def _former_numbers(self, appkey: str, names: Sequence[str]) -> dict[str, int]:
        """Return the numbers of the names that are or were registered."""
        found = await self._resolver.numbers(appkey, names, removed_too=True)
        return {name: plus_one - 1 for name, plus_one in zip(names, found, strict=True) if plus_one}


def _is_entitled(command: DeviceCommand, device: Device) -> bool:
    """Return whether the sender of a registration may have the key of `device`, as the registry has it afterwards.

    Not if another registration came first, such as that of somebody else who knows the token.
    """
    register, time_ms = command.register, command.meta.time_ms
    if register.authority == REGISTRATION_AUTHORITY_CODE:
        return device.registered_again_ms == time_ms
    proves_number = register.authority == REGISTRATION_AUTHORITY_KEY and device.number == register.proven_number
    return proves_number or device.registered_ms == time_ms


def _revoked() -> HelloRefusedError:
    return HelloRefusedError(
        "unauthorized: the key of this device was revoked; the app's server can register the token again", "revoked"
    )
