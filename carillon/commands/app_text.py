"""Apps and their pauses as text, in the output of commands."""

from collections.abc import Sequence
from datetime import datetime
from zoneinfo import ZoneInfo

import msgspec
from rich.table import Table

from carillon.commands.output import Listing, say, show
from console.apps.answers import App, NewSecret, Pause
from services.domain.channel_credentials.forms import FORMS

_SHOWN_ONCE = "Store the secret key: it is not shown again. `carillon app rotate-secret` makes a new one."

_IDENTITY = {
    "off": "whoever has the app can set any alias, and gets its pushes",
    "accept": "devices that have proven their alias come before all others",
    "require": "aliases and identity tags without a proof are refused",
}
_ROUTES = {
    "auto": "over the device's own connection, or by a channel once it has none for a moment",
    "own": "over the device's own connection alone",
    "vendor": "by a channel first",
}
_ANY_ALIAS = (
    "Whoever has the app can set any alias, and gets its pushes, until your server proves aliases: see"
    " `carillon app set --help`, --identity."
)


def print_app(app: App, zone: ZoneInfo) -> None:
    channels = {**_channels(app), **_route(app), **_reports(app)}
    services = {**_apple(app), **_simulators(app)}
    _print_rows({**_fields(app), **channels, **_limits(app, zone), "paused": pauses_text(app), **services})


def print_secret(made: NewSecret) -> None:
    _print_rows(
        {
            "appkey": made.appkey,
            "platform": made.platform,
            "name": made.name,
            "package": made.package,
            "secret key": made.secret_key,
        }
    )
    say(_SHOWN_ONCE)


def print_alias_warning() -> None:
    """Print what the default of identity means to a new app."""
    say(_ANY_ALIAS)


def app_table(apps: Sequence[App]) -> Table:
    """Return a row for each app. A narrow terminal folds its other columns, never the appkeys."""
    rows = [{**_fields(app), "paused": pauses_text(app)} for app in apps]
    listed = Listing()
    for name in rows[0]:
        listed.add_column(name, no_wrap=name in ("appkey", "platform"), overflow="fold")
    for row in rows:
        listed.add(*row.values())
    return listed


def pauses_text(app: App) -> str:
    """Return both pauses that hold for an app as text, `-` for none."""
    own = [pause_text(app.paused)] if app.paused else []
    of_all = [f"all apps {pause_text(app.all_apps_paused)}"] if app.all_apps_paused else []
    return "; ".join(own + of_all) or "-"


def pause_text(pause: Pause) -> str:
    """Return a pause as text, such as `since 2026-11-22 21:00:00 by ops@host: too many complaints`.

    An account of the console or an API token is named before its address: `by token/4f2a from 10.0.0.1`.
    """
    since = datetime.fromtimestamp(pause.since_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    says = f" (says {pause.says})" if pause.says else ""
    who = f"{pause.actor} from {pause.by}" if pause.actor else pause.by
    by = f" by {who}{says}" if who else ""
    return f"since {since}{by}" + (f": {pause.reason}" if pause.reason else "")


def identity_text(app: App) -> str:
    """Return the app's setting of identity with what it means, its keys and its identity tags."""
    identity = app.identity
    keys = f"keys {', '.join(identity.keys)}" if identity.keys else "no key"
    tags = [f"tags {', '.join(identity.tags)}"] if identity.tags else []
    return f"{identity.mode}: {_IDENTITY[identity.mode]}; {'; '.join([keys, *tags])}"


def _fields(app: App) -> dict[str, str]:
    return {
        "appkey": app.appkey,
        "platform": app.platform,
        "name": app.name,
        "package": app.package,
        "account": app.account or "-",
        "ack info": "on" if app.ack_info else "off",
        "default period": f"{app.default_period_s} s",
        "APNs": _apns(app),
    }


def _apns(app: App) -> str:
    match app.apns:
        case msgspec.UNSET:
            return "-"
        case None:
            return "no key"
        case key:
            return f"key {key.key_id} of team {key.team_id} for {key.topic}, {key.environment}"


def _channels(app: App) -> dict[str, str]:
    """Return the credentials of an app on each channel that it uses, and the web pages that are its devices."""
    titles = {form.name: form.title for form in FORMS.values()}
    origins = {} if app.web_origins is msgspec.UNSET else {"web origins": ", ".join(app.web_origins)}
    channels = {} if app.channels is msgspec.UNSET else app.channels
    texts = {
        titles.get(name, name): ", ".join(f"{setting.replace('_', ' ')} {value}" for setting, value in settings.items())
        for name, settings in channels.items()
    }
    return {**texts, **origins}


def _route(app: App) -> dict[str, str]:
    route = app.channel_route
    return {} if route is msgspec.UNSET else {"channel route": f"{route}: {_ROUTES[route]}"}


def _reports(app: App) -> dict[str, str]:
    if app.apns_reports is msgspec.UNSET:
        return {}
    return {"APNs reports": "on: pushes carry their message id" if app.apns_reports else "off"}


def _apple(app: App) -> dict[str, str]:
    """Return the APNs problems of an iOS app as text, for the output that shows one app."""
    match app.apple:
        case msgspec.UNSET:
            return {}
        case None:
            return {"Apple": "delivery does not answer, so it is not known whether Apple accepts the app's pushes"}
        case problems:
            return {"Apple": " ".join(problem.text for problem in problems) or "-"}


def _simulators(app: App) -> dict[str, str]:
    """Return the channels with a simulated service as text, if there are any, for the output that shows one app."""
    if not app.simulators:
        return {}
    return {"simulators": f"{', '.join(app.simulators)}: what they accept does not leave this installation"}


def _limits(app: App, zone: ZoneInfo) -> dict[str, str]:
    quotas = [f"{name} {value}" for name, value in msgspec.structs.asdict(app.quotas).items() if value is not None]
    old_secret_ms = app.old_secret_until_ms
    until = datetime.fromtimestamp((old_secret_ms or 0) / 1000, zone).strftime("%Y-%m-%d %H:%M:%S %Z")
    return {
        "allow from": ", ".join(app.allow_from or []) or "everywhere",
        "replay-safe": "required" if app.replay_safe_required else "optional",
        "quotas": ", ".join(quotas) or "-",
        "identity": identity_text(app),
        "old secret": f"also signs until {until}" if old_secret_ms is not None else "-",
    }


def _print_rows(rows: dict[str, str]) -> None:
    names = Listing()
    names.show_header = False
    for name, value in rows.items():
        names.add_named(name, value)
    show(names)
