"""Calls about apps."""

from collections.abc import Mapping

from console.apps import actions
from console.apps.answers import (
    App,
    AppList,
    NewSecret,
    PauseChanged,
    RefusedRequest,
    RefusedRequests,
    app_answer,
    pause_answer,
    secret_answer,
    with_services,
)
from console.apps.form import ENVIRONMENTS
from console.apps.refusals import list_refusals
from console.shell.access import Requester
from console.shell.backend import Backend, app_of, visible_apps
from console.shell.calls import NoParams
from console.shell.requests import (
    ApnsKeyBody,
    AppParams,
    IdentityBody,
    ReasonBody,
    RefusalListParams,
    RotationBody,
    SettingsBody,
)
from protos.registry.v1.apps_pb2 import Channel
from protos.registry.v1.registry_pb2 import (
    AllowFromChange,
    ApnsKeyChange,
    ChannelChange,
    IdentityChange,
    IdentityKeys,
    IdentityTags,
    UpdateAppRequest,
    WebOrigins,
)
from services.domain.addresses import CHANNELS, ROUTES
from services.domain.identity import MODES
from services.errors import Code, InputError


async def list_apps(backend: Backend, requester: Requester, params: NoParams) -> AppList:
    """List the apps of the team, by name."""
    await backend.apps.refresh()
    pause, now_ms = backend.apps.installation_pause, backend.clock.now_ms()
    return AppList([app_answer(app, pause, now_ms) for app in visible_apps(backend, requester)])


async def app(backend: Backend, requester: Requester, params: AppParams) -> App:
    """Return one app."""
    await backend.apps.refresh()
    found = app_of(backend, params.appkey)
    answer = app_answer(found, backend.apps.installation_pause, backend.clock.now_ms())
    return with_services(answer, await actions.services_of(backend, found))


async def set_app(backend: Backend, requester: Requester, params: AppParams, body: SettingsBody) -> App:
    """Change settings of an app. Quotas stay with administrators of the installation."""
    found = app_of(backend, params.appkey)
    changed = await actions.change_app(backend, requester, change_of(found.appkey, body))
    return app_answer(changed.app, backend.apps.installation_pause, backend.clock.now_ms())


def change_of(appkey: str, body: SettingsBody) -> UpdateAppRequest:
    """Return the change that a body asks for."""
    key = body.apns
    return UpdateAppRequest(
        appkey=appkey,
        name=body.name,
        ack_info_enabled=body.ack_info,
        default_period_s=body.default_period_s,
        allow_from=None if body.allow_from is None else AllowFromChange(networks=body.allow_from),
        replay_safe_required=body.replay_safe_required,
        apns=None if key is None else _apns_change(key),
        channels=_channel_changes(body.channels or {}),
        web_origins=None if body.web_origins is None else WebOrigins(origins=body.web_origins),
        apns_reports=body.apns_reports,
        channel_route=None if body.channel_route is None else ROUTES[body.channel_route],
        identity=None if body.identity is None else _identity_change(body.identity),
        drop_old_secret=body.drop_old_secret,
    )


def _identity_change(identity: IdentityBody) -> IdentityChange:
    return IdentityChange(
        mode=None if identity.mode is None else MODES[identity.mode],
        keys=None if identity.keys is None else IdentityKeys(pems=identity.keys),
        tags=None if identity.tags is None else IdentityTags(tags=identity.tags),
    )


def _channel_changes(channels: Mapping[str, Mapping[str, str] | None]) -> list[ChannelChange]:
    """Return the changes of credentials. InputError: there is no channel of this name."""
    return [
        ChannelChange(channel=_channel(name), fields=fields or {}, remove=fields is None)
        for name, fields in channels.items()
    ]


def _channel(name: str) -> "Channel.ValueType":
    if name not in CHANNELS:
        raise InputError(Code.UNKNOWN, at=f"channels.{name}")
    return CHANNELS[name]


def _apns_change(key: ApnsKeyBody) -> ApnsKeyChange:
    environment = None if key.environment is None else ENVIRONMENTS[key.environment]
    return ApnsKeyChange(
        pem=key.pem,
        key_id=key.key_id,
        team_id=key.team_id,
        topic=key.topic,
        environment=environment,
        remove=key.remove,
    )


async def rotate_secret(backend: Backend, requester: Requester, params: AppParams, body: RotationBody) -> NewSecret:
    """Give an app another secret key.

    The present one stays valid for `keep_old_s`, while app servers change over; an older one ends at once.
    """
    found = app_of(backend, params.appkey)
    rotated = await actions.rotate_secret(backend, requester, found.appkey, body.keep_old_s)
    return secret_answer(rotated.app, rotated.secret_key)


async def list_refused_requests(backend: Backend, requester: Requester, params: RefusalListParams) -> RefusedRequests:
    """List the latest requests of an app's servers that were refused, the newest first: 1,000 of 30 days at most.

    Of an app 60 signed requests a minute are recorded, and 10 others, which anybody who knows the appkey may send.
    """
    appkey = app_of(backend, params.appkey).appkey
    found = await list_refusals(backend, appkey, params.limit, allow_behind=params.allow_behind)
    refusals = [
        RefusedRequest(
            time_ms=each.time_ms,
            interface=each.interface,
            call=each.call,
            result=each.result,
            code=each.code.lower(),
            answer=each.answer,
            address=each.address,
            signed=each.is_signed,
            left_out=each.left_out,
        )
        for each in found.refusals
    ]
    return RefusedRequests(refusals, found.records_behind)


async def pause(backend: Backend, requester: Requester, params: AppParams, body: ReasonBody) -> PauseChanged:
    """Pause an app: nothing of it is sent, and its new pushes are refused. It is safe to repeat the call."""
    found = app_of(backend, params.appkey)
    paused = await actions.pause_app(backend, requester, found.appkey, body.reason.strip())
    held = pause_answer(paused.pause)
    all_paused = backend.apps.installation_pause is not None
    return PauseChanged(not paused.already_paused, held, list(paused.unconfirmed), all_paused)


async def resume(backend: Backend, requester: Requester, params: AppParams, body: ReasonBody) -> PauseChanged:
    """Let a paused app send again. It is safe to repeat the call."""
    found = app_of(backend, params.appkey)
    resumed = await actions.resume_app(backend, requester, found.appkey, body.reason.strip())
    ended = pause_answer(resumed.ended) if resumed.HasField("ended") else None
    all_paused = backend.apps.installation_pause is not None
    return PauseChanged(ended is not None, ended, list(resumed.unconfirmed), all_paused)
