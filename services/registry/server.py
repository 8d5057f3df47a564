"""RegistryService: changes of apps, which are decided here, revocations, which become commands, and queries."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from protos.registry.v1.apps_pb2 import (
    IDENTITY_MODE_ACCEPT,
    IDENTITY_MODE_OFF,
    IDENTITY_MODE_REQUIRE,
    PLATFORM_ANDROID,
    PLATFORM_IOS,
    App,
    AppChanged,
    AppFact,
    KeyFingerprint,
    QuotaReached,
    SavedAudience,
    TeamWebhooks,
)
from protos.registry.v1.devices_pb2 import DeviceCommand, RevokeAllKeys, RevokeKey
from protos.registry.v1.registry_pb2 import (
    ChangeWebhookRequest,
    ChangeWebhookResponse,
    CountDevicesNotBackRequest,
    CountDevicesNotBackResponse,
    CreateAppRequest,
    CreateAppResponse,
    DropFormerKeysRequest,
    DropFormerKeysResponse,
    ErasePersonRequest,
    ErasePersonResponse,
    FindAddressesRequest,
    FindAddressesResponse,
    FindAliasesRequest,
    FindAliasesResponse,
    FindDevicesRequest,
    FindDevicesResponse,
    GetAddressesRequest,
    GetAddressesResponse,
    GetAppRequest,
    GetAppResponse,
    GetDevicesRequest,
    GetDevicesResponse,
    GetTokensRequest,
    GetTokensResponse,
    ListAddressesRequest,
    ListAddressesResponse,
    ListAppsRequest,
    ListAppsResponse,
    ListInvalidTokensRequest,
    ListInvalidTokensResponse,
    ListTeamWebhooksRequest,
    ListTeamWebhooksResponse,
    NoteErasureDoneRequest,
    NoteErasureDoneResponse,
    NoteKeyFingerprintRequest,
    NoteKeyFingerprintResponse,
    NoteKeysCopiedRequest,
    NoteKeysCopiedResponse,
    NoteQuotaReachedRequest,
    NoteQuotaReachedResponse,
    PauseAppsRequest,
    PauseAppsResponse,
    RemoveAudienceRequest,
    RemoveAudienceResponse,
    ReserveDeviceRequest,
    ReserveDeviceResponse,
    ResumeAppsRequest,
    ResumeAppsResponse,
    RevokeAppKeysRequest,
    RevokeAppKeysResponse,
    RevokeDeviceKeyRequest,
    RevokeDeviceKeyResponse,
    RotateKeysRequest,
    RotateKeysResponse,
    RotateSecretRequest,
    RotateSecretResponse,
    SaveAudienceRequest,
    SaveAudienceResponse,
    SealRequest,
    SealResponse,
    TakeBroadcastsRequest,
    TakeBroadcastsResponse,
    UpdateAppRequest,
    UpdateAppResponse,
)
from protos.registry.v1.registry_pb2_grpc import RegistryServiceServicer, RegistryServiceStub
from protos.runtime.v1.log_pb2 import Meta, Origin
from services.domain import ids
from services.domain.apps import APPS_PARTITION, audience_key, fingerprint_key, quota_key, team_webhooks_key
from services.domain.command_writer import Command, CommandWriter, device_command
from services.domain.identity import identity_mode
from services.domain.ios_tokens import spellings
from services.domain.master_key import KeyPurpose
from services.domain.push_endpoints import webhook_hosts
from services.domain.role import RoleContext
from services.domain.secret_texts import is_id
from services.domain.settings import Settings
from services.domain.text import check_texts, checked_text
from services.domain.topics import APPS, DEVICE_COMMANDS, device_key
from services.domain.webhooks import scope_of, team_of_scope
from services.errors import Code, ConflictError, InputError, NotFoundError
from services.log.port import Partition
from services.log.topics import owned, partition_of
from services.net.rpc.server import Context
from services.registry.app_epochs import AppEpochs
from services.registry.app_quotas import NOTED_QUOTAS, BroadcastQuota, DeviceReservations, day_of
from services.registry.app_settings import (
    DEFAULT_PERIOD_S,
    change_settings,
    checked_package,
    checked_period,
    rotate_secret,
    secret_kept,
    settings_changed,
)
from services.registry.erasures import KnownErasure, PersonErasure
from services.registry.key_rotation import ChangeQueue, KeyRotation
from services.registry.pauses import Pauses
from services.registry.queries import AliasRanking, RegistryQueries
from services.registry.saved_audiences import removed, saved
from services.registry.sealing import SealingSwitch
from services.registry.tenure import RegistryTenure
from services.registry.webhooks import change_webhook

MAX_INVALID_PAGE = 5000
MAX_ADDRESS_PAGE = 5000
MAX_HASHES = 1000
_RANKINGS = {IDENTITY_MODE_ACCEPT: AliasRanking.PROVEN_FIRST, IDENTITY_MODE_REQUIRE: AliasRanking.PROVEN_ONLY}


class RegistryServicer(RegistryServiceServicer):
    """Answers the registry's calls; a standby answers each with NotOwnerError.

    Only shard 0 changes apps, one change at a time, under its owner's epoch. Revocations become commands to the
    partitions' owners.
    """

    def __init__(
        self,
        context: RoleContext,
        queries: RegistryQueries,
        settings: Settings,
        tenure: RegistryTenure,
        epochs: AppEpochs | None,
        known_erasure: KnownErasure,
        *,
        new_appkey: Callable[[], str] = ids.new_appkey,
        new_secret: Callable[[], str] = ids.new_secret,
    ) -> None:
        self._context = context
        self._queries = queries
        self._partitions = settings.partitions
        self._webhook_hosts = webhook_hosts(settings.webhook_hosts)
        self._writer = CommandWriter("registry", context.log, context.peers, context.clock, settings.partitions)
        self._tenure = tenure
        self._epochs = epochs
        self._zone = settings.zone()
        self._broadcasts = BroadcastQuota(context.apps, context.clock, self._zone)
        own = len(owned(settings.partitions, settings.shard, settings.shards))
        self._reservations = DeviceReservations(queries, context.clock, own, settings.partitions)
        self._new_appkey = new_appkey
        self._new_secret = new_secret
        self._changes = ChangeQueue()
        self._pauses = Pauses(context, self._append_changes)
        self._erasure = PersonErasure(context, self._writer, settings.partitions, known_erasure)
        self._rotation = KeyRotation(context, self._changes, self._append_changes, self._append_facts)
        self.sealing = SealingSwitch(context, self._changes, self._append_changes)

    async def CreateApp(self, request: CreateAppRequest, context: Context) -> CreateAppResponse:
        self._check_owner()
        check_texts(request)
        _check_platform(request.platform)
        app = App(
            platform=request.platform,
            name=checked_text("name", request.name),
            package=checked_package(request.package),
            account=checked_text("account", request.account, required=False),
            created_ms=self._context.clock.now_ms(),
            default_period_s=checked_period(
                request.default_period_s if request.HasField("default_period_s") else DEFAULT_PERIOD_S
            ),
        )
        if request.only_check:
            return CreateAppResponse(app=app)
        return await self._changes.make(partial(self._create, app, request.origin))

    async def ListApps(self, request: ListAppsRequest, context: Context) -> ListAppsResponse:
        await self._tenure.check_query()
        apps = self._context.apps
        return ListAppsResponse(apps=apps.all(), installation_pause=apps.installation_pause)

    async def GetApp(self, request: GetAppRequest, context: Context) -> GetAppResponse:
        await self._tenure.check_query()
        check_texts(request)
        return GetAppResponse(app=self._app(request.appkey), installation_pause=self._context.apps.installation_pause)

    async def UpdateApp(self, request: UpdateAppRequest, context: Context) -> UpdateAppResponse:
        self._check_owner()
        check_texts(request)
        return await self._changes.make(partial(self._update, request))

    async def RotateSecret(self, request: RotateSecretRequest, context: Context) -> RotateSecretResponse:
        self._check_owner()
        check_texts(request)
        return await self._changes.make(partial(self._rotate_secret, request))

    async def ChangeWebhook(self, request: ChangeWebhookRequest, context: Context) -> ChangeWebhookResponse:
        self._check_owner()
        check_texts(request)
        return await self._changes.make(partial(self._change_webhook, request))

    async def SaveAudience(self, request: SaveAudienceRequest, context: Context) -> SaveAudienceResponse:
        self._check_owner()
        check_texts(request)
        return await self._changes.make(partial(self._save_audience, request))

    async def RemoveAudience(self, request: RemoveAudienceRequest, context: Context) -> RemoveAudienceResponse:
        self._check_owner()
        check_texts(request)
        return await self._changes.make(partial(self._remove_audience, request))

    async def ListTeamWebhooks(self, request: ListTeamWebhooksRequest, context: Context) -> ListTeamWebhooksResponse:
        await self._tenure.check_query()
        check_texts(request)
        return ListTeamWebhooksResponse(webhooks=self._context.apps.webhooks_of_team(request.team_id))

    async def PauseApps(self, request: PauseAppsRequest, context: Context) -> PauseAppsResponse:
        self._check_owner()
        check_texts(request)
        response = await self._changes.make(partial(self._pauses.pause, request))
        response.unconfirmed.extend(await self._pauses.unconfirmed())
        return response

    async def ResumeApps(self, request: ResumeAppsRequest, context: Context) -> ResumeAppsResponse:
        self._check_owner()
        check_texts(request)
        response = await self._changes.make(partial(self._pauses.resume, request))
        response.unconfirmed.extend(await self._pauses.unconfirmed())
        return response

    async def TakeBroadcasts(self, request: TakeBroadcastsRequest, context: Context) -> TakeBroadcastsResponse:
        epoch = self._check_owner().current
        answer, facts = self._broadcasts.take([self._app(appkey) for appkey in request.appkeys])
        if facts:
            for fact in facts:
                fact.envelope.meta.epoch = epoch
            await self._writer.append(facts)
            self._tenure.confirm()
        return answer

    async def NoteQuotaReached(self, request: NoteQuotaReachedRequest, context: Context) -> NoteQuotaReachedResponse:
        self._check_owner()
        check_texts(request)
        if request.quota not in NOTED_QUOTAS:
            raise InputError(f"quota must be one of {', '.join(NOTED_QUOTAS)}")
        await self._changes.make(partial(self._note_quota, request))
        return NoteQuotaReachedResponse()

    async def ReserveDevice(self, request: ReserveDeviceRequest, context: Context) -> ReserveDeviceResponse:
        self._tenure.check()
        reserved = await self._reservations.reserve(self._app(request.appkey), request.token)
        return ReserveDeviceResponse(quota_used_up=not reserved)

    async def FindDevices(self, request: FindDevicesRequest, context: Context) -> FindDevicesResponse:
        tokens = list(request.tokens)
        numbers = await self._queries.numbers(request.appkey, tokens, removed_too=request.removed_too)
        return FindDevicesResponse(numbers_plus_one=[0 if number is None else number + 1 for number in numbers])

    async def FindAliases(self, request: FindAliasesRequest, context: Context) -> FindAliasesResponse:
        app = self._context.apps.get(request.appkey)
        ranking = _RANKINGS.get(identity_mode(app) if app else IDENTITY_MODE_OFF, AliasRanking.BY_ACTIVITY)
        if request.all:
            ranking = AliasRanking.ALL
        return FindAliasesResponse(aliases=await self._queries.aliases(request.appkey, list(request.aliases), ranking))

    async def GetDevices(self, request: GetDevicesRequest, context: Context) -> GetDevicesResponse:
        tokens = list(request.tokens)
        found = await self._queries.devices(request.appkey, tokens, removed_too=request.removed_too)
        return GetDevicesResponse(devices=found)

    async def GetTokens(self, request: GetTokensRequest, context: Context) -> GetTokensResponse:
        found = await self._queries.tokens(request.appkey, request.partition, list(request.numbers))
        return GetTokensResponse(tokens=[token for token, _ in found], active_ms=[active_ms for _, active_ms in found])

    async def GetAddresses(self, request: GetAddressesRequest, context: Context) -> GetAddressesResponse:
        numbers = list(request.numbers)
        found = await self._queries.addresses(request.appkey, request.partition, numbers, request.channel)
        return GetAddressesResponse(addresses=found)

    async def FindAddresses(self, request: FindAddressesRequest, context: Context) -> FindAddressesResponse:
        if len(request.hashes) > MAX_HASHES:
            raise InputError(f"hashes must have at most {MAX_HASHES} entries")
        return FindAddressesResponse(tokens=await self._queries.find_addresses(request.appkey, list(request.hashes)))

    async def ListAddresses(self, request: ListAddressesRequest, context: Context) -> ListAddressesResponse:
        if not 1 <= request.limit <= MAX_ADDRESS_PAGE:
            raise InputError(f"limit must be from 1 to {MAX_ADDRESS_PAGE}")
        listed = self._queries.list_dead_addresses if request.dead else self._queries.list_addresses
        after = request.after if request.HasField("after") else None
        return ListAddressesResponse(addresses=await listed(request.appkey, request.channel, after, request.limit))

    async def ListInvalidTokens(self, request: ListInvalidTokensRequest, context: Context) -> ListInvalidTokensResponse:
        if not 1 <= request.limit <= MAX_INVALID_PAGE:
            raise InputError(f"limit must be from 1 to {MAX_INVALID_PAGE}")
        after = request.after if request.HasField("after") else None
        return ListInvalidTokensResponse(tokens=await self._queries.invalid(request.appkey, after, request.limit))

    async def RevokeDeviceKey(self, request: RevokeDeviceKeyRequest, context: Context) -> RevokeDeviceKeyResponse:
        self._tenure.check()
        check_texts(request)
        token = await self._registered(self._app(request.appkey).appkey, request.token)
        command = DeviceCommand(appkey=request.appkey, token=token, revoke_key=RevokeKey())
        await self._writer.append_and_wait([device_command(command)], request.origin)
        return RevokeDeviceKeyResponse()

    async def RevokeAppKeys(self, request: RevokeAppKeysRequest, context: Context) -> RevokeAppKeysResponse:
        self._tenure.check()
        check_texts(request)
        key = self._app(request.appkey).appkey.encode()
        commands = [
            Command(
                DEVICE_COMMANDS, key, DeviceCommand(appkey=request.appkey, revoke_all_keys=RevokeAllKeys()), partition
            )
            for partition in range(self._partitions)
        ]
        await self._writer.append_and_wait(commands, request.origin)
        return RevokeAppKeysResponse()

    async def RotateKeys(self, request: RotateKeysRequest, context: Context) -> RotateKeysResponse:
        self._check_owner()
        check_texts(request)
        return await self._rotation.rotate(request)

    async def CountDevicesNotBack(
        self, request: CountDevicesNotBackRequest, context: Context
    ) -> CountDevicesNotBackResponse:
        self._tenure.check()
        chain = self._context.apps.key_chain(KeyPurpose.DEVICES.name)
        if chain is None or not chain.former:
            return CountDevicesNotBackResponse()
        return CountDevicesNotBackResponse(devices=await self._queries.count_silent(chain.switched_ms))

    async def DropFormerKeys(self, request: DropFormerKeysRequest, context: Context) -> DropFormerKeysResponse:
        self._check_owner()
        check_texts(request)
        return await self._rotation.drop_former(request)

    async def ErasePerson(self, request: ErasePersonRequest, context: Context) -> ErasePersonResponse:
        self._check_owner()
        check_texts(request)
        if request.erasure_id and not is_id(request.erasure_id):
            raise InputError("erasure_id must have 16 hexadecimal digits")
        answer = await self._changes.make(partial(self._erasure.erase, self._app(request.appkey).appkey, request))
        self._tenure.confirm()
        return answer

    async def NoteErasureDone(self, request: NoteErasureDoneRequest, context: Context) -> NoteErasureDoneResponse:
        self._check_owner()
        await self._changes.make(partial(self._erasure.note_done, request.erasure_id))
        self._tenure.confirm()
        return NoteErasureDoneResponse()

    async def Seal(self, request: SealRequest, context: Context) -> SealResponse:
        self._check_owner()
        check_texts(request)
        return await self.sealing.seal(request)

    async def NoteKeysCopied(self, request: NoteKeysCopiedRequest, context: Context) -> NoteKeysCopiedResponse:
        self._check_owner()
        check_texts(request)
        return await self.sealing.note_copied(request)

    async def NoteKeyFingerprint(
        self, request: NoteKeyFingerprintRequest, context: Context
    ) -> NoteKeyFingerprintResponse:
        self._check_owner()
        if request.fingerprint.purpose not in KeyPurpose.__members__ or len(request.fingerprint.fingerprint) != 16:
            raise InputError("the fingerprint must be 16 bytes of the key for DEVICES or SECRETS")
        return await self._changes.make(partial(self._note_fingerprint, request.fingerprint))

    async def _note_fingerprint(self, noted: KeyFingerprint) -> NoteKeyFingerprintResponse:
        apps = self._context.apps
        if apps.key_chain(noted.purpose) is None:
            first = KeyFingerprint(purpose=noted.purpose, fingerprint=noted.fingerprint)
            command = Command(APPS, fingerprint_key(first), AppFact(key_fingerprint=first))
            (position,) = await self._writer.append([command])
            await apps.applied.wait([(APPS_PARTITION, position.offset)])
        chain = apps.key_chain(noted.purpose)
        return NoteKeyFingerprintResponse(fingerprint=chain.in_force if chain else b"")

    async def _note_quota(self, request: NoteQuotaReachedRequest) -> None:
        """Record that an app has reached a quota, unless it is recorded for this day. NotFoundError: no such app."""
        app, now_ms = self._app(request.appkey), self._context.clock.now_ms()
        day = day_of(now_ms, self._zone)
        if self._context.apps.quota_reached_on(app.appkey, request.quota) == day:
            return
        reached = QuotaReached(appkey=app.appkey, quota=request.quota, limit=request.limit, day=day)
        fact = AppFact(meta=Meta(event_id=ids.event_id(), time_ms=now_ms), quota_reached=reached)
        await self._append_facts({quota_key(app.appkey, request.quota): fact}, Origin())

    async def _registered(self, appkey: str, given: str) -> str:
        """Return a token as it is or was registered. NotFoundError: the app never had such a device."""
        for token in spellings(given):
            partition = partition_of(device_key(appkey, token), self._partitions)
            owner = RegistryServiceStub(self._context.peers.owner("registry", partition))
            find = FindDevicesRequest(appkey=appkey, tokens=[token], removed_too=True)
            if (await owner.FindDevices(find)).numbers_plus_one[0]:
                return token
        raise NotFoundError(Code.APP_WITHOUT_DEVICE, appkey=appkey)

    def _app(self, appkey: str) -> App:
        """Return a copy of the app. NotFoundError: there is none."""
        known = self._context.apps.get(appkey)
        if known is None:
            raise NotFoundError(Code.NO_SUCH_APP, appkey=appkey)
        app = App()
        app.CopyFrom(known)
        return app

    def _check_owner(self) -> AppEpochs:
        """Return the epochs of this process as the owner of the apps."""
        if self._epochs is None:
            raise ConflictError("only the registry's instance 0 changes apps; call that one")
        self._tenure.check()
        return self._epochs

    def _free_appkey(self) -> str:
        while self._context.apps.get(appkey := self._new_appkey()) is not None:
            pass
        return appkey

    async def _create(self, app: App, origin: Origin) -> CreateAppResponse:
        app.appkey = self._free_appkey()
        secret = self._new_secret()
        app.sealed_secret = self._context.keys.seal(secret, app.appkey)
        await self._write(app, "created", [], origin)
        return CreateAppResponse(app=app, secret_key=secret)

    async def _update(self, request: UpdateAppRequest) -> UpdateAppResponse:
        app = self._app(request.appkey)
        change_settings(app, request, self._context.keys)
        known = self._app(request.appkey)
        if app != known and not request.only_check:
            await self._write(app, "set", settings_changed(known, app), request.origin)
        return UpdateAppResponse(app=app, installation_pause=self._context.apps.installation_pause)

    async def _rotate_secret(self, request: RotateSecretRequest) -> RotateSecretResponse:
        app = self._app(request.appkey)
        secret = self._new_secret()
        sealed = self._context.keys.seal(secret, app.appkey)
        rotate_secret(app, sealed, request, self._context.clock.now_ms())
        await self._write(app, "secret rotated", secret_kept(app), request.origin)
        return RotateSecretResponse(app=app, secret_key=secret)

    async def _change_webhook(self, request: ChangeWebhookRequest) -> ChangeWebhookResponse:
        owner, known = self._owner_of_webhooks(request), self._owner_of_webhooks(request)
        now_ms = self._context.clock.now_ms()
        changed = change_webhook(owner, request, self._context.keys, self._webhook_hosts, now_ms)
        if isinstance(owner, App) and owner != known:
            await self._write(owner, changed.action, changed.settings, request.origin)
        elif isinstance(owner, TeamWebhooks) and owner != known:
            record = AppChanged(team_id=owner.team_id, action=changed.action, settings=changed.settings)
            fact = AppFact(team_webhooks=owner)
            await self._append_changes(record, {team_webhooks_key(owner.team_id): fact}, request.origin)
        return ChangeWebhookResponse(webhook=changed.webhook, secret=changed.secret)

    async def _save_audience(self, request: SaveAudienceRequest) -> SaveAudienceResponse:
        self._app(request.appkey)
        audience = saved(self._context.apps, request, self._context.clock.now_ms())
        await self._write_audience(audience, "audience saved", request.origin)
        return SaveAudienceResponse(audience=audience)

    async def _remove_audience(self, request: RemoveAudienceRequest) -> RemoveAudienceResponse:
        audience = removed(self._context.apps, request, self._context.clock.now_ms())
        await self._write_audience(audience, "audience removed", request.origin)
        return RemoveAudienceResponse()

    async def _write_audience(self, audience: SavedAudience, action: str, origin: Origin) -> None:
        changed = AppChanged(appkey=audience.appkey, action=action, settings=[f"audience {audience.name}"])
        fact = AppFact(saved_audience=audience)
        await self._append_changes(changed, {audience_key(audience.appkey, audience.name): fact}, origin)

    def _owner_of_webhooks(self, request: ChangeWebhookRequest) -> App | TeamWebhooks:
        """Return a copy of the app, or of the webhooks of the team. NotFoundError: there is no such app.

        InputError: the request names neither an app nor a team, or both, or what is no id of a team.
        """
        team_id = team_of_scope(scope_of(request.appkey, request.team_id))
        if not team_id:
            return self._app(request.appkey)
        if not is_id(team_id):
            raise InputError("team_id must have 16 hexadecimal digits")
        return TeamWebhooks(team_id=team_id, webhooks=self._context.apps.webhooks_of_team(team_id))

    async def _write(self, app: App, action: str, settings: Sequence[str], origin: Origin) -> None:
        """Append the change and the app's new record; return once this process has applied them."""
        changed = AppChanged(appkey=app.appkey, action=action, settings=settings)
        await self._append_changes(changed, {app.appkey.encode(): AppFact(app=app)}, origin)

    async def _append_changes(self, changed: AppChanged, facts: Mapping[bytes, AppFact], origin: Origin) -> None:
        """Append a change and the facts that it makes; return once this process has applied them."""
        meta = Meta(event_id=ids.event_id(), time_ms=self._context.clock.now_ms())
        subject = scope_of(changed.appkey, changed.team_id) if changed.appkey or changed.team_id else "installation"
        changed_key = f"{subject}/changed/{meta.event_id.hex()}"
        for fact in facts.values():
            fact.meta.CopyFrom(meta)
        await self._append_facts({changed_key.encode(): AppFact(meta=meta, changed=changed), **facts}, origin)

    async def _append_facts(self, facts: Mapping[bytes, AppFact], origin: Origin) -> None:
        """Append facts by their keys, under the owner's epoch; return once this process has applied them."""
        epoch = self._check_owner().current
        for fact in facts.values():
            fact.meta.epoch = epoch
        commands = [Command(APPS, key, fact) for key, fact in facts.items()]
        last = (await self._writer.append(commands, origin if origin != Origin() else None))[-1]
        await self._context.apps.applied.wait([(Partition(last.topic, last.partition), last.offset)])
        self._tenure.confirm()


def _check_platform(platform: int) -> None:
    if platform not in (PLATFORM_ANDROID, PLATFORM_IOS):
        raise InputError("platform must be android or ios")
