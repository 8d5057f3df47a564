"""Device tokens that app servers register and delete themselves."""

from edge.core.signature import AppRef
from protos.registry.v1.devices_pb2 import (
    REGISTRATION_AUTHORITY_APP_SERVER,
    DeviceCommand,
    RegisterDevice,
    RemoveDevice,
)
from protos.runtime.v1.log_pb2 import Origin
from services.domain.alias_checks import AliasChecks
from services.domain.apps import AppDirectory
from services.domain.audiences.token_resolver import TokenAndAliasResolver
from services.domain.command_writer import CommandWriter, device_command
from services.domain.limits.device_quota import DeviceQuota
from services.domain.limits.registrations import RegistrationRates
from services.domain.recorded_reasons import FixedReason
from services.domain.topics import device_key
from services.runtime.log.topics import partition_of


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
        """Register the token; of a registered one only the time is noted. One whose key was revoked starts anew.

        One that was removed has no alias any more: what waits for it under that alias is dropped.

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
