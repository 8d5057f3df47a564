"""`carillon app`: create apps and change them."""

import codecs
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from carillon.commands.app_text import app_table, pause_text, print_alias_warning, print_app, print_secret
from carillon.commands.identity import identity_change, identity_options
from carillon.commands.output import as_json_lines, print_json, say, show
from carillon.commands.role_calls import call_all_instances, call_registry, call_role, command_origin
from carillon.environment import environment
from carillon.installation.chosen import chosen_installation
from console.apps.answers import App, NewSecret, Pause, secret_answer
from protos.delivery.v1.delivery_pb2 import CheckChannelRequest, CheckChannelResponse
from protos.delivery.v1.delivery_pb2_grpc import ChannelsServiceStub
from protos.registry.v1.apps_pb2 import (
    APNS_ENVIRONMENT_BOTH,
    APNS_ENVIRONMENT_PRODUCTION,
    APNS_ENVIRONMENT_SANDBOX,
    PLATFORM_ANDROID,
    PLATFORM_IOS,
    Quotas,
)
from protos.registry.v1.registry_pb2 import (
    AllowFromChange,
    ApnsKeyChange,
    ChannelChange,
    CreateAppRequest,
    QuotasChange,
    RevokeAppKeysRequest,
    RevokeDeviceKeyRequest,
    UpdateAppRequest,
    WebOrigins,
)
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.domain.addresses import CHANNELS, ROUTES
from services.domain.channel_credentials.fields import (
    MAX_VALUE_LENGTH,
    NEW,
    CredentialField,
    CredentialsForm,
    FieldKind,
    field_option,
)
from services.domain.channel_credentials.forms import FORMS
from services.domain.limits import MAX_PERIOD_S, MIN_PERIOD_S
from services.domain.settings import Settings, load
from services.net.rpc.channel import Channel

if TYPE_CHECKING:
    from protos.registry.v1.registry_pb2 import RevokeAppKeysResponse, RevokeDeviceKeyResponse


# `carillon app set --apns-...`: the APNs signing key of an iOS app.

ENVIRONMENTS = {
    "production": APNS_ENVIRONMENT_PRODUCTION,
    "sandbox": APNS_ENVIRONMENT_SANDBOX,
    "both": APNS_ENVIRONMENT_BOTH,
}
_REMOVE = "none"
_MAX_FILE_BYTES = 16 * 1024
_CHECK_S = 30.0

Command = TypeVar("Command", bound=Callable[..., Any])


def apns_options(command: Command) -> Command:
    """Decorate a command with the options whose values `apns_change` accepts, and `--apns-reports`."""
    environments = click.Choice(list(ENVIRONMENTS))
    options = (
        click.option("--apns-key", metavar="FILE", help="iOS: the .p8 file of the APNs key; `none` removes the key."),
        click.option("--apns-key-id", metavar="ID", help="iOS: the key's id, 10 letters and digits."),
        click.option("--apns-team", metavar="ID", help="iOS: the Apple team's id, 10 letters and digits."),
        click.option("--apns-topic", metavar="BUNDLE", help="iOS: the bundle id. Default: the app's package."),
        click.option("--apns-environment", type=environments, help="iOS: Apple's service. Default: production."),
        click.option(
            "--apns-reports",
            type=click.Choice(["on", "off"]),
            help="iOS: whether pushes carry their message id, so that devices report received, shown and clicked.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def apns_change(
    apns_key: str | None,
    apns_key_id: str | None,
    apns_team: str | None,
    apns_topic: str | None,
    apns_environment: str | None,
) -> ApnsKeyChange | None:
    """Build the change from the options; None if no option was given. UsageError: `none` with other options."""
    others = (apns_key_id, apns_team, apns_topic, apns_environment)
    if apns_key is None and others == (None,) * len(others):
        return None
    if apns_key == _REMOVE:
        if any(other is not None for other in others):
            raise click.UsageError("--apns-key none stands alone: it removes all of the key's settings")
        return ApnsKeyChange(remove=True)
    return ApnsKeyChange(
        pem=None if apns_key is None else _read(Path(apns_key)),
        key_id=apns_key_id,
        team_id=apns_team,
        topic=apns_topic,
        environment=None if apns_environment is None else ENVIRONMENTS[apns_environment],
    )


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_FILE_BYTES).removeprefix(codecs.BOM_UTF8).decode("ascii")
    except OSError as error:
        raise click.BadParameter(f"{path}: {error.strerror}", param_hint="--apns-key") from None
    except UnicodeDecodeError:
        raise click.BadParameter(f"{path} is no text in PEM form", param_hint="--apns-key") from None


# `carillon app set --webpush..., --fcm-...`: credentials of the channels, an option for each field of their forms.

_CHANNEL_OPTIONS = {
    field_option(form, field).removeprefix("--").replace("-", "_"): (form, field)
    for form in FORMS.values()
    for field in form.fields
}


def channel_options(command: Command) -> Command:
    """Decorate a command with the options that `channel_changes` takes, and `--web-origins`."""
    options = [_channel_option(form, field) for form, field in _CHANNEL_OPTIONS.values()]
    options.append(
        click.option("--web-origins", metavar="URL,...", help="Origins of pages that are devices; `none` for none.")
    )
    for option in reversed(options):
        command = option(command)
    return command


def _channel_option(form: CredentialsForm, field: CredentialField) -> Callable[[Command], Command]:
    about = f"{form.title}: {field.label}. {field.hint}".rstrip()
    match field.kind:
        case FieldKind.MADE:
            is_made = f"`{NEW}` makes it, `{_REMOVE}` removes all credentials."
            return click.option(field_option(form, field), type=click.Choice([NEW, _REMOVE]), help=f"{about} {is_made}")
        case FieldKind.SECRET:
            help_text = f"{about} `{_REMOVE}` removes all credentials."
            return click.option(field_option(form, field), metavar="FILE", help=help_text)
        case FieldKind.LIST:
            return click.option(field_option(form, field), metavar="ENTRY,...", help=f'{about} "" for none.')
        case FieldKind.TEXT:
            return click.option(field_option(form, field), metavar="TEXT", help=about)


def channel_changes(options: dict[str, Any]) -> list[ChannelChange]:
    """Take the fields of channels out of a command's options; return the changes.

    UsageError: `none` together with other options of the channel. BadParameter: a file cannot be read.
    """
    changes: dict[int, ChannelChange] = {}
    for parameter, (form, field) in _CHANNEL_OPTIONS.items():
        value: str | None = options.pop(parameter)
        if value is None:
            continue
        change = changes.setdefault(form.channel, ChannelChange(channel=form.channel))
        has_secret = field.kind in (FieldKind.MADE, FieldKind.SECRET)
        if has_secret and value == _REMOVE:
            change.remove = True
        else:
            is_file = field.kind is FieldKind.SECRET
            change.fields[field.name] = _read_secret(value, field_option(form, field)) if is_file else value
        if change.remove and change.fields:
            option = field_option(form, form.secret_field)
            raise click.UsageError(f"{option} {_REMOVE} stands alone: it removes all credentials for {form.title}")
    return list(changes.values())


def _read_secret(path: str, option: str) -> str:
    """Return the text of a file; one that is no text stays one that is refused."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_VALUE_LENGTH + 1).removeprefix(codecs.BOM_UTF8)
    except OSError as error:
        raise click.BadParameter(f"{path}: {error.strerror}", param_hint=option) from None
    if not content:
        raise click.BadParameter(f"{path} is empty", param_hint=option)
    return content.decode(errors="replace")


def web_origins_change(web_origins: str | None) -> WebOrigins | None:
    return None if web_origins is None else WebOrigins(origins=_listed(web_origins, _REMOVE))


def _listed(text: str, nothing: str) -> list[str]:
    given = text.strip()
    return [] if given in ("", nothing) else [each.strip() for each in given.split(",")]


# `carillon app set`: quotas and allowed networks; `carillon app rotate-secret --keep-old`: durations.

OFF = "off"
_DEFAULT = "default"
_REGISTRATIONS = "registrations_per_minute"
QUOTAS = tuple(Quotas.DESCRIPTOR.fields_by_name)
_HELP = {
    "requests_per_s": "Quota: signed requests a second.",
    "targets_per_s": "Quota: targets of pushes a second.",
    "broadcasts_per_day": "Quota: broadcasts and pushes by filter a day.",
    "devices": "Quota: registered devices.",
    "stored_task_bytes": "Quota: bytes of timed messages that wait.",
    _REGISTRATIONS: "Quota: new devices a minute; `default`: as in the settings.",
}
_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(\d{1,9})([smhd]?)")
_MOST_S = 2**32 - 1
"""Longer durations do not fit into a request."""


class _Quota(click.ParamType[int]):
    """A whole number; 0 or `off` removes the quota."""

    name = "N|off"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        if text == OFF:
            return 0
        if not (text.isascii() and text.isdigit() and len(text) <= 18):
            self.fail(f"{text!r} is no whole number; 0 or off removes the quota", param, ctx)
        return int(text)


class _QuotaOrDefault(_Quota):
    """A whole number, 0 or `off`, or `default` for the installation's quota, which is -1."""

    name = "N|off|default"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return -1 if str(value) == _DEFAULT else super().convert(value, param, ctx)


class DurationType(click.ParamType[int]):
    """A duration such as 24h, 30m, 7d or 90 (seconds), in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = _DURATION.fullmatch(str(value))
        if found is None:
            self.fail(f"{value!r} is no duration; write 24h, 30m, 7d or a number of seconds", param, ctx)
        duration_s = int(found[1]) * _UNITS_S[found[2]]
        if duration_s > _MOST_S:
            self.fail(f"{value!r} is too long: at most {_MOST_S} seconds", param, ctx)
        return duration_s


def limit_options(command: Command) -> Command:
    """Decorate a command with `--allow-from` and an option for each quota."""
    allow_from = click.option(
        "--allow-from",
        metavar="CIDR,...",
        help="Accept the app's requests from these addresses and networks alone; `off` lifts it.",
    )
    command = allow_from(command)
    for name in reversed(QUOTAS):
        kind = _QuotaOrDefault() if name == _REGISTRATIONS else _Quota()
        option = click.option(f"--{name.replace('_', '-')}", type=kind, help=f"{_HELP[name]} 0 or `off` removes it.")
        command = option(command)
    return command


def quotas_change(options: dict[str, Any]) -> QuotasChange | None:
    """Take the quotas out of a command's options; return the change, None if none was given. UsageError: too large."""
    given = {name: options.pop(name) for name in QUOTAS}
    is_default = given[_REGISTRATIONS] == -1
    try:
        change = QuotasChange(**(given | {_REGISTRATIONS: None} if is_default else given))
    except ValueError as error:  # a number that does not fit into its field
        raise click.UsageError(f"a quota is too large: {error}") from None
    if is_default:
        change.default_registrations = True
    return change if change.ListFields() else None


def allow_from_change(allow_from: str | None) -> AllowFromChange | None:
    if allow_from is None:
        return None
    networks = allow_from.strip()
    return AllowFromChange(networks=[] if networks in ("", OFF) else networks.split(","))


# `carillon app pause` and `carillon app resume`.

_appkey = click.argument("appkey", required=False)
_all_apps = click.option("--all", "all_apps", is_flag=True, help="All apps at once.")
_json = click.option("--json", "json_output", is_flag=True, help="Print one JSON object.")


@click.command()
@_appkey
@_all_apps
@click.option("--reason", default="", help="Why, for `app show` and the audit; up to 200 characters.")
@_json
def pause(appkey: str | None, all_apps: bool, reason: str, json_output: bool) -> None:
    """Pause one app, or all apps at once with --all, until `carillon app resume`.

    New pushes and timed messages are refused with HTTP 403. Pushes in progress stop within two seconds, and timed
    messages that fall due wait. After the resume both continue unless their time to live has ended. Cancels, queries,
    tags and devices are not affected.

    The pause of all apps is independent of the pauses of single apps. It is safe to repeat the command.
    """
    target = _checked_target(appkey, all_apps)
    paused = chosen_installation().pause(target, reason)
    assert paused.pause is not None
    if json_output:
        _print_json(target, paused.changed, paused.unconfirmed, paused=msgspec.to_builtins(paused.pause))
    elif paused.changed:
        say(f"{_paused(target)}. `carillon app resume {target or '--all'}` goes on.")
    else:
        say(f"{_paused(target)} already: {pause_text(paused.pause)}. Nothing changed.")
    _exit_if_unconfirmed(paused.unconfirmed, "pause")


@click.command()
@_appkey
@_all_apps
@click.option("--reason", default="", help="Why, for the audit; up to 200 characters.")
@_json
def resume(appkey: str | None, all_apps: bool, reason: str, json_output: bool) -> None:
    """End the pause of one app, or with --all the pause of all apps.

    --all ends only what `pause --all` began: apps that were paused one by one stay paused. It is safe to repeat the
    command.
    """
    target = _checked_target(appkey, all_apps)
    installation = chosen_installation()
    resumed = installation.resume(target, reason)
    if all_apps:
        still_paused = [app.appkey for app in installation.apps() if app.paused]
    else:
        still_paused = [target] if resumed.all_apps_paused else []
    if json_output:
        _print_json(target, resumed.changed, resumed.unconfirmed, still_paused=still_paused)
    else:
        say(_resumed_text(target, resumed.pause))
        _warn_of_pauses(target, still_paused)
    _exit_if_unconfirmed(resumed.unconfirmed, "resume")


def _checked_target(appkey: str | None, all_apps: bool) -> str:
    """Return the appkey, "" for all apps. UsageError: both or neither are given."""
    if bool(appkey) == all_apps:
        raise click.UsageError("name one APPKEY, or --all for all apps at once")
    return appkey or ""


def _paused(target: str) -> str:
    return f"App {target} is paused" if target else "All apps are paused"


def _resumed_text(target: str, ended: Pause | None) -> str:
    if ended is None:
        said = f"App {target} was not paused" if target else "All apps were not paused at once"
        return f"{said}. Nothing changed."
    who, they = (f"App {target} goes on", "it was") if target else ("All apps go on", "they were")
    return f"{who}; {they} paused {pause_text(ended)}."


def _warn_of_pauses(target: str, still_paused: Sequence[str]) -> None:
    if still_paused and not target:
        say(f"Still paused one by one: {', '.join(still_paused)}. Each needs its own `carillon app resume`.")
    elif still_paused:
        say("All apps are paused, this one too, until `carillon app resume --all`.")


def _print_json(target: str, changed: bool, unconfirmed: Sequence[str], **state: Any) -> None:
    record = {"appkey": target or None, "all": not target, "changed": changed, **state}
    say(json.dumps({**record, "unconfirmed": list(unconfirmed)}, ensure_ascii=False))


def _exit_if_unconfirmed(unconfirmed: Sequence[str], command: str) -> None:
    if unconfirmed:
        raise click.ClickException(
            f"it is in the log, but {' and '.join(unconfirmed)} did not confirm it in time and will apply it as soon as"
            f" possible. Repeat `carillon app {command}` to wait for it again."
        )


# `carillon device revoke` and `carillon app revoke-keys`: revoke device keys.

_as_json = click.option("--json", "json_output", is_flag=True, help="Print one JSON object.")


@click.command()
@click.argument("appkey")
@click.argument("token")
@_as_json
def revoke(appkey: str, token: str, json_output: bool) -> None:
    """Remove a device and revoke its key for ever. Its app may register the device again."""
    request = RevokeDeviceKeyRequest(appkey=appkey, token=token, origin=command_origin())

    def call(channel: Channel) -> "Awaitable[RevokeDeviceKeyResponse]":
        return RegistryServiceStub(channel).RevokeDeviceKey(request)

    call_role("registry", call)
    if json_output:
        say(json.dumps({"appkey": appkey, "token": token, "revoked": True}))
    else:
        say("The device is removed and its key is revoked: it is refused from now on.")


@click.command()
@click.argument("appkey")
@_as_json
def revoke_keys(appkey: str, json_output: bool) -> None:
    """Revoke every device key of an app issued so far. All its devices must register again."""
    request = RevokeAppKeysRequest(appkey=appkey, origin=command_origin())

    def call(channel: Channel) -> "Awaitable[RevokeAppKeysResponse]":
        return RegistryServiceStub(channel).RevokeAppKeys(request)

    call_role("registry", call)
    if json_output:
        say(json.dumps({"appkey": appkey, "revoked": True}))
    else:
        say("All device keys issued so far are refused from now on; their devices are being removed.")


PLATFORMS = {"android": PLATFORM_ANDROID, "ios": PLATFORM_IOS}


@click.group()
def app() -> None:
    """Create, list and change apps.

    With --url and an API token, for the apps of the token's team: list, show, set without quotas, pause, resume,
    rotate-secret and drop-old-secret.
    """


app.add_command(revoke_keys)
app.add_command(pause)
app.add_command(resume)


_default_period = click.option(
    "--default-period",
    type=click.IntRange(MIN_PERIOD_S, MAX_PERIOD_S),
    metavar="SECONDS",
    help=f"Time to live of pushes without one: {MIN_PERIOD_S} to {MAX_PERIOD_S} (7 days).",
)


@app.command()
@click.option("--platform", type=click.Choice(list(PLATFORMS)), required=True, help="The platform of its devices.")
@click.option("--name", required=True, help="The name for people, up to 64 characters.")
@click.option("--package", required=True, help="Package name or bundle id, such as com.example.app.")
@click.option("--account", default="", help="The developer account it belongs to.")
@_default_period
@as_json_lines
def create(platform: str, name: str, package: str, account: str, default_period: int | None, json_output: bool) -> None:
    """Create an app and print its appkey and secret key."""
    request = CreateAppRequest(
        platform=PLATFORMS[platform],
        name=name,
        package=package,
        account=account,
        origin=command_origin(),
        default_period_s=default_period,
    )
    answer = call_registry(lambda registry: registry.CreateApp(request))
    _print_secret(secret_answer(answer.app, answer.secret_key), json_output)
    if not json_output:
        print_alias_warning()


@app.command(name="list")
@as_json_lines
def list_apps(json_output: bool) -> None:
    """List all apps, the oldest first; with an API token, those of its team, by name."""
    apps = chosen_installation().apps()
    if json_output:
        for known in apps:
            print_json(known)
    elif apps:
        show(app_table(apps))
    else:
        say("There is no app yet; see `carillon app create --help`.")


@app.command(name="show")
@click.argument("appkey")
@as_json_lines
def show_app(appkey: str, json_output: bool) -> None:
    """Show one app."""
    _print_app(chosen_installation().app(appkey), json_output)


_CHECKED = {form.name: form.vendor for form in FORMS.values() if form.vendor.check}
_CHECK_HELP = """Ask a push service whether it accepts the app's credentials; nothing is sent to any device.

{checks} Exits with 1 where the credentials are not accepted.
""".format(checks=" ".join(f"{name}: {vendor.check}" for name, vendor in _CHECKED.items()))


@app.command(name="check-channel", help=_CHECK_HELP)
@click.argument("appkey")
@click.argument("channel", type=click.Choice(list(_CHECKED)))
def check_channel(appkey: str, channel: str) -> None:
    request = CheckChannelRequest(appkey=appkey, channel=CHANNELS[channel])

    async def ask(channels: Sequence[Channel]) -> CheckChannelResponse:
        return await ChannelsServiceStub(channels[0]).CheckChannel(request, timeout=_CHECK_S)

    answer = call_all_instances("delivery", ask)
    vendor = _CHECKED[channel].name
    by = f"the simulator on this machine, not {vendor}," if answer.simulated else vendor
    if not answer.accepted:
        raise click.ClickException(f"{by} does not accept the app's messages by {channel}: {answer.reason}")
    say(f"{by} accepts the app's messages by {channel} ({answer.reason})")


@app.command(name="set")
@click.argument("appkey")
@click.option("--ack-info", type=click.Choice(["on", "off"]), help="Whether its app servers may read acknowledgements.")
@_default_period
@click.option("--name", help="A new name.")
@click.option(
    "--replay-safe",
    type=click.Choice(["required", "optional"]),
    help="Whether requests of its app servers without a replay-safe signature are refused.",
)
@click.option(
    "--channel-route",
    type=click.Choice(list(ROUTES)),
    help="Android: the way of pushes that name none. `auto`: the device's own connection, or a channel such as Web Push"
    " once it has none; `own`: its own connection alone; `vendor`: a channel first.",
)
@limit_options
@identity_options
@channel_options
@apns_options
@as_json_lines
def set_app(
    appkey: str,
    ack_info: str | None,
    default_period: int | None,
    name: str | None,
    replay_safe: str | None,
    channel_route: str | None,
    allow_from: str | None,
    web_origins: str | None,
    json_output: bool,
    **others: Any,
) -> None:
    """Change one app. Settings without an option stay.

    An iOS app's first --apns-key needs --apns-key-id and --apns-team too; later each may be changed alone. The first
    --webpush new needs --webpush-contact.
    """
    quotas, networks, identity = quotas_change(others), allow_from_change(allow_from), identity_change(others)
    channels, origins = channel_changes(others), web_origins_change(web_origins)
    apns_reports = others.pop("apns_reports")
    change = apns_change(**others)
    given = (
        *(ack_info, default_period, name, replay_safe, channel_route),
        *(quotas, networks, identity, change, channels or None, origins, apns_reports),
    )
    if all(each is None for each in given):
        raise click.UsageError(
            "name a change: --ack-info, --default-period, --name, --replay-safe, --allow-from, a quota such as"
            " --requests-per-s, --identity..., --apns-..., --channel-route, --web-origins, or credentials of a channel"
            " such as --webpush"
        )
    enabled = None if ack_info is None else ack_info == "on"
    request = UpdateAppRequest(
        appkey=appkey,
        ack_info_enabled=enabled,
        default_period_s=default_period,
        name=name,
        apns=change,
        quotas=quotas,
        allow_from=networks,
        identity=identity,
        replay_safe_required=None if replay_safe is None else replay_safe == "required",
        channel_route=None if channel_route is None else ROUTES[channel_route],
        apns_reports=None if apns_reports is None else apns_reports == "on",
        web_origins=origins,
        channels=channels,
    )
    _print_app(chosen_installation().change_app(request), json_output)


@app.command()
@click.argument("appkey")
@click.option(
    "--keep-old",
    type=DurationType(),
    default="0",
    help="How long the old secret key signs beside the new one: 24h, 30m, 7d, up to 90d. Default: not at all.",
)
@as_json_lines
def rotate_secret(appkey: str, keep_old: int, json_output: bool) -> None:
    """Give an app a new secret key. The present one ends at once, or after --keep-old; an older one ends at once."""
    _print_secret(chosen_installation().rotate_secret(appkey, keep_old), json_output)


@app.command()
@click.argument("appkey")
@as_json_lines
def drop_old_secret(appkey: str, json_output: bool) -> None:
    """End the validity of the secret key that the last rotation kept."""
    request = UpdateAppRequest(appkey=appkey, drop_old_secret=True)
    _print_app(chosen_installation().change_app(request), json_output)


def _print_secret(made: NewSecret, json_output: bool) -> None:
    if json_output:
        print_json(made)
    else:
        print_secret(made)


def _print_app(known: App, json_output: bool) -> None:
    if json_output:
        print_json(known)
    else:
        print_app(known, load(Settings, environment()).zone())
