"""The device protocol over HTTP, for devices without a connection to the gateway (iOS)."""

import msgspec

from protos.gateway.v1.sessions_pb2 import SessionBatch, SessionEvent, SessionFact
from protos.registry.v1.apps_pb2 import App, Platform
from protos.registry.v1.devices_pb2 import Device
from protos.registry.v1.registry_pb2 import GetDevicesRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from protos.runtime.v1.log_pb2 import Meta, Origin
from services.domain.apps import OUTDATED
from services.domain.audiences.token_resolver import TokenAndAliasResolver
from services.domain.command_writer import Command, CommandWriter, device_command
from services.domain.device_protocol import answers, commands, frames
from services.domain.identity import IdentityChecks
from services.domain.ids import new_token
from services.domain.ios_tokens import ios_token, spellings
from services.domain.limits.device_quota import DeviceQuota
from services.domain.limits.registrations import RegistrationLimiter, RegistrationRates
from services.domain.limits.string_tags import check_room
from services.domain.role import RoleContext
from services.domain.topics import SESSIONS, device_key
from services.runtime.errors import InputError, NotFoundError, SignError, TooManyRequestsError, UnavailableError
from services.runtime.log.topics import partition_of
from services.runtime.process.metrics import REGISTRATIONS_REFUSED

_RETRY_AFTER_S = 10


class Caller(msgspec.Struct, frozen=True):
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
    ) -> None:
        self._context = context
        self._registrations = registrations
        self._rates = rates
        self._writer = writer
        self._resolver = resolver
        self._partitions = partitions
        self._quota = DeviceQuota(context.apps, context.peers, partitions)
        self._identity = IdentityChecks(context.clock.now_ms)

    async def answer(self, payload: bytes, origin: Origin) -> answers.Answer:
        """Execute a frame and return the answer.

        InputError: no frame, or one that needs a connection. SignError: unknown app, wrong key, or wrong proof.
        ForbiddenError: the app requires a proof. NotFoundError: the device was removed. UnavailableError: the app is
        unknown here, and the log, which may know it, does not answer. TooManyRequestsError: too many hellos without a
        key from this address, whether the app exists or not, or too many new devices of the app, or the app has too
        many devices, or the device has handed in too many proofs.
        """
        credentials = frames.credentials(payload)
        frame = frames.decode(payload)
        if isinstance(frame, frames.Hello) and not frame.key:
            self._limit_registrations(origin.address)
        app = await self._app(credentials.app)
        if isinstance(frame, frames.Hello):
            return await self._hello(app, frame, origin)
        caller = self._caller(app, credentials, origin)
        if isinstance(frame, frames.Ack | frames.Report | frames.Ping):
            raise InputError("input error: type: acknowledgements, reports and pings are not supported over HTTP")
        if isinstance(frame, frames.GetDeviceRequest):
            return answers.device_answer(frame.id, await self._find(caller))
        if await self._number(caller.appkey, caller.token) is None:
            raise NotFoundError("input error: no such device")
        if isinstance(frame, frames.Activity):
            await self._append_activity(caller, frame.event)
        else:
            await self._change(app, caller, frame)
        return answers.Ok(frame.id)

    def _limit_registrations(self, address: str) -> None:
        if not self._registrations.take(address, self._context.clock.now_ms()):
            REGISTRATIONS_REFUSED.inc()
            raise TooManyRequestsError("too many new devices from this address; repeat the request", _RETRY_AFTER_S)

    async def _app(self, appkey: str) -> App:
        app = self._context.apps.get(appkey)
        if app is None:
            is_current = await self._context.apps.refresh()
            app = self._context.apps.get(appkey)
            if app is None:
                raise SignError("unauthorized") if is_current else UnavailableError(OUTDATED)
        return app

    def _caller(self, app: App, credentials: frames.Credentials, origin: Origin) -> Caller:
        """Authenticate the sender. A key belongs to the token as it is registered, which may be an older spelling."""
        token, key = credentials.token or "", credentials.key or ""
        if token and app.platform == Platform.PLATFORM_IOS:
            ios_token(token, "input error: token")
        for name in spellings(token):
            number = self._context.keys.device_number(app.appkey, name, key)
            if number is not None and not self._is_revoked(app.appkey, name, number):
                return Caller(app.appkey, name, number, origin)
        raise SignError("unauthorized")

    def _is_revoked(self, appkey: str, token: str, number: int) -> bool:
        partition = partition_of(device_key(appkey, token), self._partitions)
        return self._context.apps.is_revoked(appkey, partition, number)

    async def _hello(self, app: App, hello: frames.Hello, origin: Origin) -> answers.Welcome:
        """Register a new device, or welcome a known one. An iOS token comes from Apple and needs no key.

        A known iOS token registers again too, so that a late answer of Apple about its time before does not remove it.
        """
        is_ios = app.platform == Platform.PLATFORM_IOS
        if is_ios and not hello.token:
            raise InputError("input error: token is missing: it is the one that APNs gave")
        if hello.key or (hello.token and not is_ios):
            token = self._caller(app, hello, origin).token
        else:
            token = await self._registered(app.appkey, hello.token) if hello.token else new_token()
        number = await self._number(app.appkey, token) if hello.token else None
        is_new = number is None
        if is_new:
            self._rates.take(app, origin.address)
            await self._quota.reserve(app.appkey, token)
        command = (
            commands.registration(app.appkey, token, app.platform, hello)
            if is_new or is_ios
            else commands.command(hello, app.appkey, token)
        )
        if command:
            await self._writer.append_and_wait([device_command(command)], origin)
        if number is None:
            number = await self._number(app.appkey, token)
        if number is None:
            raise NotFoundError("the device was removed while it was registered; repeat the request")
        key = self._context.keys.device_key(app.appkey, token, number)
        return answers.Welcome(token=token, key=key, heartbeat=frames.HEARTBEAT_S, new=is_new)

    async def _change(self, app: App, caller: Caller, frame: frames.Change) -> None:
        command = commands.command(frame, caller.appkey, caller.token)
        assert command is not None
        self._identity.check(app, caller.token, frame, command)
        if isinstance(frame, frames.AddStagsRequest):
            check_room((await self._find(caller)).stags, frame.stags)
        await self._writer.append_and_wait([device_command(command)], caller.origin)

    async def _append_activity(self, caller: Caller, event: frames.ActivityEvent) -> None:
        now_ms = self._context.clock.now_ms()
        activity = SessionEvent(
            appkey=caller.appkey,
            token=caller.token,
            number=caller.number,
            kind=commands.activity_kind(event),
            time_ms=now_ms,
        )
        fact = SessionFact(meta=Meta(time_ms=now_ms), batch=SessionBatch(events=[activity]))
        key = device_key(caller.appkey, caller.token)
        await self._writer.append_and_wait([Command(SESSIONS, key, fact)], caller.origin)

    async def _find(self, caller: Caller) -> Device:
        """Return the device's record. NotFoundError: it was removed."""
        partition = partition_of(device_key(caller.appkey, caller.token), self._partitions)
        registry = RegistryServiceStub(self._context.peers.owner("registry", partition))
        found = await registry.GetDevices(GetDevicesRequest(appkey=caller.appkey, tokens=[caller.token]))
        if not found.devices:
            raise NotFoundError("input error: no such device")
        return found.devices[0]

    async def _registered(self, appkey: str, given: str) -> str:
        """Return an iOS token as it is registered, or as it shall be."""
        ios_token(given, "input error: token")
        return await self._resolver.registered_token(appkey, given)

    async def _number(self, appkey: str, token: str) -> int | None:
        (plus_one,) = await self._resolver.numbers(appkey, [token])
        return plus_one - 1 if plus_one and not self._is_revoked(appkey, token, plus_one - 1) else None
