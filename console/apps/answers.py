"""Apps in answers and in the output of commands."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from edge.core.parsing.fields import Count, described
from protos.delivery.v1.delivery_pb2 import GetAppleStateResponse
from protos.registry.v1.apps_pb2 import (
    APNS_ENVIRONMENT_BOTH,
    APNS_ENVIRONMENT_PRODUCTION,
    APNS_ENVIRONMENT_SANDBOX,
    CHANNEL_APNS,
    PLATFORM_ANDROID,
    PLATFORM_IOS,
)
from protos.registry.v1.apps_pb2 import App as StoredApp
from protos.registry.v1.apps_pb2 import Pause as StoredPause
from services.domain.addresses import RouteName, route_name, service_name
from services.domain.channel_credentials.forms import FORMS
from services.domain.channel_credentials.stored import credentials_of, settings_of
from services.domain.identity import identity_mode_name, key_ids

PLATFORMS = {PLATFORM_ANDROID: "android", PLATFORM_IOS: "ios"}
_ENVIRONMENTS = {
    APNS_ENVIRONMENT_PRODUCTION: "production",
    APNS_ENVIRONMENT_SANDBOX: "sandbox",
    APNS_ENVIRONMENT_BOTH: "both",
}
_Quota = Annotated[int | None, described("null: no quota.")]
TimeMs = Annotated[int, described("Milliseconds since 1970 UTC.")]

_TOKENS_TEXT = (
    "Since {since}, Apple has refused the tokens of {refused} of {sent} pushes ({reason}), the last one at {last}: the"
    " app's environment or bundle id is probably not that of its builds. These pushes have failed; the devices stay"
    " registered. Builds from Xcode have tokens of the sandbox, those of TestFlight and the App Store tokens of"
    " production: carillon app set {appkey} --apns-environment sandbox|production|both, or --apns-topic BUNDLE-ID. The"
    " next pushes show whether that was it."
)
_KEY_TEXT = (
    "Since {since}, Apple has not accepted the app's key ({reason}), so its pushes wait until they expire. It was"
    " revoked, or its id, team or topic is wrong: carillon app set {appkey} --apns-key FILE --apns-key-id ID"
    " --apns-team ID."
)


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """A pause of an app, or of all apps."""

    since_ms: TimeMs
    by: Annotated[str, described("The address of who paused it.")]
    actor: Annotated[
        str | UnsetType,
        described("The account that paused it, in the console or with an API token: user/ID or token/ID."),
    ] = UNSET
    says: Annotated[str | UnsetType, described("What that client says of itself.")] = UNSET
    reason: Annotated[str, described("Why.")]


class Quotas(msgspec.Struct, frozen=True):
    """Upper bounds of what an app may use."""

    requests_per_s: _Quota
    targets_per_s: _Quota
    broadcasts_per_day: _Quota
    devices: _Quota
    stored_task_bytes: _Quota
    registrations_per_minute: Annotated[
        int | None, described("New devices a minute. 0: no quota; null: as in the settings of the installation.")
    ]


class ApnsKey(msgspec.Struct, frozen=True):
    """The APNs key of an iOS app, without the key itself."""

    key_id: Annotated[str, described("The key's id.")]
    team_id: Annotated[str, described("The Apple team's id.")]
    topic: Annotated[str, described("The bundle id.")]
    environment: Annotated[str, described("production, sandbox or both.")]


class AppleProblem(msgspec.Struct, frozen=True, kw_only=True):
    """Something in the settings of an iOS app that Apple's answers to its pushes show to be wrong."""

    kind: Annotated[
        Literal["bad_tokens", "refused_key"],
        described(
            "bad_tokens: Apple refuses the tokens of most pushes, which have failed; devices stay registered."
            " refused_key: Apple does not accept the app's key; pushes wait until they expire."
        ),
    ]
    since_ms: TimeMs
    last_ms: Annotated[int | UnsetType, described("bad_tokens: the time of the last refusal.")] = UNSET
    refused: Annotated[
        int | UnsetType,
        described("bad_tokens: pushes whose token Apple refused in the last one to two days in which the app sent."),
    ] = UNSET
    accepted: Annotated[int | UnsetType, described("bad_tokens: pushes that Apple accepted in that time.")] = UNSET
    reason: Annotated[str, described("Apple's latest reason.")]
    text: Annotated[str, described("What is wrong, since when, and what to do.")]


class Identity(msgspec.Struct, frozen=True):
    """How the app's server proves the aliases and identity tags of devices."""

    mode: Annotated[
        Literal["off", "accept", "require"],
        described(
            "off: whoever has the app can set any alias, and gets its pushes. accept: a device that has proven its"
            " alias comes before all others. require: aliases and identity tags without a proof are refused."
        ),
    ]
    keys: Annotated[list[str], described("Its public keys: algorithm and beginning of the SHA-256 of each.")]
    tags: Annotated[list[str], described("Tags that address one person: names, beginnings with a *, and ranges.")]


_SHOWN = "; ".join(f"{form.name}: {', '.join(form.shown)}" for form in FORMS.values())


class App(msgspec.Struct, frozen=True, kw_only=True):
    """An app without its secret key."""

    appkey: Annotated[str, described("The app's key.")]
    platform: Annotated[str, described("android or ios.")]
    name: Annotated[str, described("The name for people.")]
    package: Annotated[str, described("The package name or bundle id.")]
    account: Annotated[str, described("The developer account.")]
    ack_info: Annotated[bool, described("Whether its app servers may read acknowledgements.")]
    default_period_s: Annotated[Count, described("Time to live of pushes without one, seconds.")]
    created_ms: TimeMs
    paused: Annotated[Pause | None, described("The pause of the app, or null.")]
    all_apps_paused: Annotated[Pause | None, described("The pause of all apps, or null.")]
    allow_from: Annotated[list[str] | None, described("The networks of its app servers; null: everywhere.")]
    replay_safe_required: Annotated[
        bool, described("Whether requests of its app servers without a replay-safe signature are refused.")
    ]
    quotas: Annotated[Quotas, described("Its quotas.")]
    old_secret_until_ms: Annotated[int | None, described("Until when the former secret key signs too; null: no more.")]
    identity: Annotated[Identity, described("The proof of aliases and identity tags.")]
    channels: Annotated[
        dict[str, dict[str, str]] | UnsetType,
        described(f"Credentials of channels by name, without their secrets; absent for none. {_SHOWN}."),
    ] = UNSET
    web_origins: Annotated[
        list[str] | UnsetType, described("Origins of web pages that may use the device interface; absent for none.")
    ] = UNSET
    channel_route: Annotated[
        RouteName | UnsetType,
        described(
            "Android: the route of pushes that name none. auto: over the device's own connection, or by a channel once"
            " the device has not been connected for a moment; own: over its own connection alone; vendor: by a channel"
            " first."
        ),
    ] = UNSET
    apns: Annotated[ApnsKey | UnsetType | None, described("iOS: the APNs key, null for none.")] = UNSET
    apns_reports: Annotated[
        bool | UnsetType,
        described("iOS: whether pushes carry their message id, so that devices acknowledge and report them."),
    ] = UNSET
    apple: Annotated[
        list[AppleProblem] | UnsetType | None,
        described(
            "iOS, where one app is shown: what Apple's answers to its pushes show to be wrong. null: delivery did not"
            " answer."
        ),
    ] = UNSET
    simulators: Annotated[
        list[str] | UnsetType,
        described(
            "Where one app is shown: the channels, such as apns, in the place of whose services a simulator answers, so"
            " that nothing leaves the installation. Absent for none, and where delivery did not answer."
        ),
    ] = UNSET


class AppList(msgspec.Struct, frozen=True):
    """Apps, by name."""

    apps: Annotated[list[App], described("The apps.")]


class RefusedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of an app server that was not carried out."""

    time_ms: TimeMs
    interface: Annotated[str, described("android, ios or v2.")]
    call: Annotated[str, described("The method and the path.")]
    result: Annotated[int, described("The `result` of the answer.")]
    code: Annotated[str, described("The kind of error, such as app_paused or over_requests; empty for others.")]
    answer: Annotated[str, described("The `desc` of the answer, without the values of the request that it quotes.")]
    address: Annotated[str, described("The address of the caller.")]
    signed: Annotated[bool, described("Whether a secret key of the app has signed it.")]
    left_out: Annotated[Count, described("Refused requests before it that are not listed: there were too many.")]


class RefusedRequests(msgspec.Struct, frozen=True):
    """Refused requests, the newest first."""

    refused_requests: Annotated[list[RefusedRequest], described("The requests.")]
    records_behind: Annotated[Count, described("Records of the log that are not in the answer yet.")]


class NewSecret(msgspec.Struct, frozen=True):
    """Another secret key of an app. It is not shown again."""

    appkey: Annotated[str, described("The app's key.")]
    secret_key: Annotated[str, described("The secret key, which signs from now on.")]
    platform: Annotated[str, described("android or ios.")]
    name: Annotated[str, described("The name for people.")]
    package: Annotated[str, described("The package name or bundle id.")]


class PauseChanged(msgspec.Struct, frozen=True):
    """The result of a pause or a resume."""

    changed: Annotated[bool, described("false: the app was paused, or not paused, already.")]
    pause: Annotated[Pause | None, described("The pause that holds now, or the one that has ended.")]
    unconfirmed: Annotated[list[str], described("Roles that have not confirmed it yet, and will apply it.")]
    all_apps_paused: Annotated[bool, described("Whether all apps are paused, this one too.")]


def app_answer(app: StoredApp, installation_pause: StoredPause | None, now_ms: int) -> App:
    """Return an app as answers and commands show it."""
    has_old_secret = bool(app.old_sealed_secret) and app.old_secret_until_ms > now_ms
    quotas = {name: getattr(app.quotas, name) or None for name in Quotas.__struct_fields__}
    if app.quotas.HasField("registrations_per_minute"):
        quotas["registrations_per_minute"] = app.quotas.registrations_per_minute
    return App(
        appkey=app.appkey,
        platform=PLATFORMS[app.platform],
        name=app.name,
        package=app.package,
        account=app.account,
        ack_info=app.ack_info_enabled,
        default_period_s=app.default_period_s,
        created_ms=app.created_ms,
        paused=pause_answer(app.pause) if app.HasField("pause") else None,
        all_apps_paused=pause_answer(installation_pause) if installation_pause else None,
        allow_from=list(app.allow_from) or None,
        replay_safe_required=app.replay_safe_required,
        quotas=Quotas(**quotas),
        old_secret_until_ms=app.old_secret_until_ms if has_old_secret else None,
        identity=Identity(identity_mode_name(app), key_ids(app), list(app.identity.tags)),
        channels=_channels(app) or UNSET,
        web_origins=list(app.web_origins) or UNSET,
        channel_route=UNSET if app.platform == PLATFORM_IOS else route_name(app),
        apns=_apns(app) if app.platform == PLATFORM_IOS else UNSET,
        apns_reports=app.apns_reports if app.platform == PLATFORM_IOS else UNSET,
    )


class StoppedService(NamedTuple):
    """A channel whose service does not accept the app's credentials. `channel`: its name."""

    channel: str
    since_ms: int
    reason: str


class ServiceState(NamedTuple):
    """What delivery knows of an app's push services.

    `problems`: what Apple's answers show to be wrong. `simulators`: the app's channels in the place of whose services
    a simulator answers. `stopped`: the app's channels whose services do not accept its credentials, since when and why.
    """

    problems: list[AppleProblem]
    simulators: list[str]
    stopped: list[StoppedService]


def service_state(app: StoredApp, states: Sequence[GetAppleStateResponse]) -> ServiceState:
    """Return what the instances of delivery know of an app together."""
    channels = sorted({channel for state in states for channel in state.simulators})
    simulators = [service_name(channel) for channel in channels if _is_set_up(app, channel)]
    is_ios = app.platform == PLATFORM_IOS
    latest_first = sorted((each for state in states for each in state.stopped), key=lambda each: -each.since_ms)
    stopped = {each.channel: each for each in latest_first}
    return ServiceState(
        apple_problems(app.appkey, states) if is_ios else [],
        simulators,
        [StoppedService(service_name(number), each.since_ms, each.reason) for number, each in sorted(stopped.items())],
    )


def _is_set_up(app: StoredApp, channel: int) -> bool:
    """Return whether the app's pushes may leave by the channel. The simulator of Apple asks for no key of the app."""
    if channel == CHANNEL_APNS:
        return app.platform == PLATFORM_IOS
    known = next((form for form in FORMS.values() if form.channel == channel), None)
    return app.platform != PLATFORM_IOS if known is None else credentials_of(app, known.channel) is not None


def with_services(answer: App, services: ServiceState | None) -> App:
    """Return the answer about one app with what delivery knows of its push services; None: it does not answer."""
    if answer.platform == PLATFORMS[PLATFORM_IOS]:
        answer = msgspec.structs.replace(answer, apple=services.problems if services else None)
    return msgspec.structs.replace(answer, simulators=services.simulators or UNSET) if services else answer


def apple_problems(appkey: str, states: Sequence[GetAppleStateResponse]) -> list[AppleProblem]:
    """Return what the instances of delivery know of an app together."""
    found = []
    if keys := [state.refused_key for state in states if state.HasField("refused_key")]:
        key = min(keys, key=lambda each: each.since_ms)
        text = _KEY_TEXT.format(since=_utc(key.since_ms), reason=key.reason, appkey=appkey)
        found.append(AppleProblem(kind="refused_key", since_ms=key.since_ms, reason=key.reason, text=text))
    if parts := [state.bad_tokens for state in states if state.HasField("bad_tokens")]:
        last = max(parts, key=lambda each: each.last_ms)
        refused, accepted = sum(part.refused for part in parts), sum(part.accepted for part in parts)
        since_ms = min(part.since_ms for part in parts)
        text = _TOKENS_TEXT.format(
            since=_utc(since_ms),
            last=_utc(last.last_ms),
            refused=refused,
            sent=refused + accepted,
            reason=last.reason,
            appkey=appkey,
        )
        found.append(
            AppleProblem(
                kind="bad_tokens",
                since_ms=since_ms,
                last_ms=last.last_ms,
                refused=refused,
                accepted=accepted,
                reason=last.reason,
                text=text,
            )
        )
    return found


def _utc(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")


def pause_answer(pause: StoredPause) -> Pause:
    origin = pause.origin
    return Pause(
        since_ms=pause.since_ms,
        by=origin.address,
        actor=origin.actor or UNSET,
        says=origin.says or UNSET,
        reason=pause.reason,
    )


def secret_answer(app: StoredApp, secret_key: str) -> NewSecret:
    return NewSecret(app.appkey, secret_key, PLATFORMS[app.platform], app.name, app.package)


def _channels(app: StoredApp) -> dict[str, dict[str, str]]:
    return {
        form.name: {name: value for name, value in settings_of(app, form.channel).items() if name in form.shown}
        for form in FORMS.values()
        if credentials_of(app, form.channel)
    }


def _apns(app: StoredApp) -> ApnsKey | None:
    if not app.HasField("apns"):
        return None
    apns = app.apns
    return ApnsKey(apns.key_id, apns.team_id, apns.topic, _ENVIRONMENTS.get(apns.environment, "unknown"))
