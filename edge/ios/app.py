"""Routes and endpoints of the legacy iOS interface, and the tokens that app servers register themselves."""

from falcon.asgi import Request, Response

from edge.core.admission import Admission
from edge.core.answers import Done, JsonApi, answer, json_api
from edge.core.idempotency import IdempotentPushes
from edge.core.push import RequestedPushes
from edge.core.signature import AppRef
from edge.ios.replies import push_reply
from edge.ios.requests import named_token, push_order
from edge.openapi.documents import OPENAPI_PATH, DocumentEndpoint
from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from protos.registry.v1.devices_pb2 import (
    REGISTRATION_AUTHORITY_APP_SERVER,
    DeviceCommand,
    RegisterDevice,
    RemoveDevice,
)
from protos.runtime.v1.log_pb2 import Origin
from services.domain.alias_checks import AliasChecks
from services.domain.apps import AppDirectory
from services.domain.command_writer import CommandWriter, device_command
from services.domain.recorded_reasons import FixedReason
from services.domain.registrations import DeviceQuota, RegistrationRates
from services.domain.role import RoleContext
from services.domain.settings import Settings
from services.domain.token_resolver import TokenAndAliasResolver
from services.domain.topics import device_key
from services.log.topics import partition_of

# Device tokens that app servers register and delete themselves.


class Registrations:
    """Registers and removes device tokens. A call returns once later calls see the change; repeating it is harmless."""

    def __init__(
        self,
        apps: AppDirectory,
        writer: CommandWriter,
        resolver: TokenAndAliasResolver,
        rates: RegistrationRates,
        quota: DeviceQuota,
        aliases: AliasChecks,
        partitions: int,
    ) -> None:
        self._aliases = aliases
        self._partitions = partitions
        self._apps = apps
        self._writer = writer
        self._resolver = resolver
        self._rates = rates
        self._quota = quota

    async def register(self, app: AppRef, given: str, origin: Origin) -> None:
        """Register the token; for a registered token only the time is noted.

        A token whose key was revoked becomes a new device.

        A removed token has lost its alias: messages that wait for it under that alias are dropped.

        TooManyRequestsError: the app has too many devices, or registers too many at once.
        """
        token = await self._resolver.registered_token(app.appkey, given)
        (is_known,) = await self._resolver.numbers(app.appkey, [token])
        if not is_known and (known_app := self._apps.get(app.appkey)) is not None:
            self._rates.take(known_app)
        await self._quota.reserve(app.appkey, token)
        register = RegisterDevice(platform=app.platform, authority=REGISTRATION_AUTHORITY_APP_SERVER)
        command = DeviceCommand(appkey=app.appkey, token=token, register=register)
        former = 0 if is_known else (await self._resolver.numbers(app.appkey, [token], removed_too=True))[0]
        await self._writer.append_and_wait([device_command(command)], origin)
        if former:
            partition = partition_of(device_key(app.appkey, token), self._partitions)
            await self._aliases.check(app.appkey, partition, former - 1)

    async def remove(self, app: AppRef, given: str, origin: Origin) -> None:
        """Remove the token; an unknown one stays unknown."""
        token = await self._resolver.registered_token(app.appkey, given)
        command = DeviceCommand(appkey=app.appkey, token=token, remove=RemoveDevice(reason=FixedReason.UNREGISTERED))
        await self._writer.append_and_wait([device_command(command)], origin)


# The endpoints of the legacy iOS interface.


class IosPushEndpoint:
    """POST /push"""

    def __init__(self, admission: Admission, pushes: IdempotentPushes) -> None:
        self._admission = admission
        self._pushes = pushes

    async def on_post(self, request: Request, response: Response) -> None:
        signed, app = await self._admission.admit_app(request, PLATFORM_IOS)

        def requested(raw: bytes) -> RequestedPushes:
            pushes = push_order(raw, app)
            return RequestedPushes(pushes, lambda results, _: push_reply(pushes, results))

        answer(response, await self._pushes.handle(signed, requested))


class RegisterEndpoint:
    """POST and DELETE /register"""

    def __init__(self, admission: Admission, registrations: Registrations) -> None:
        self._admission = admission
        self._registrations = registrations

    async def on_post(self, request: Request, response: Response) -> None:
        signed, _ = await self._admission.admit_app(request, PLATFORM_IOS)
        await self._registrations.register(signed.apps.ref, await signed.read(named_token), signed.origin)
        answer(response, Done(result=0, desc="add token done"))

    async def on_delete(self, request: Request, response: Response) -> None:
        signed, _ = await self._admission.admit_app(request, PLATFORM_IOS)
        await self._registrations.remove(signed.apps.ref, await signed.read(named_token), signed.origin)
        answer(response, Done(result=0, desc="delete token done"))


def ios_app(
    settings: Settings,
    context: RoleContext,
    admission: Admission,
    pushes: IdempotentPushes,
    writer: CommandWriter,
    resolver: TokenAndAliasResolver,
    rates_of_devices: RegistrationRates,
) -> JsonApi:
    app = json_api("ios", admission.note_refusal)
    app.add_route("/push", IosPushEndpoint(admission, pushes))
    devices = DeviceQuota(context.apps, context.peers, context.clock, settings.partitions)
    registrations = Registrations(
        context.apps, writer, resolver, rates_of_devices, devices, AliasChecks(context.peers), settings.partitions
    )
    app.add_route("/register", RegisterEndpoint(admission, registrations))
    app.add_route(OPENAPI_PATH, DocumentEndpoint("ios"))
    return app
