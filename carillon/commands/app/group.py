"""`carillon app`: create apps and change them."""

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.table import Table
from rich.text import Text

from carillon.commands.app.apns import apns_change, apns_options, apns_record, apns_text
from carillon.commands.app.limits import (
    Duration,
    allow_from_change,
    limit_options,
    limits_record,
    limits_text,
    quotas_change,
)
from carillon.commands.app.pause import pause, pauses_record, pauses_text, resume
from carillon.commands.app.revoke import revoke_keys
from carillon.commands.origin import command_origin
from carillon.commands.role_calls import call_role
from carillon.commands.tables import show, table
from carillon.environment import environment
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, PLATFORM_IOS, App, Pause
from protos.registry.v1.registry_pb2 import (
    CreateAppRequest,
    GetAppRequest,
    GetAppResponse,
    ListAppsRequest,
    ListAppsResponse,
    RotateSecretRequest,
    UpdateAppRequest,
    UpdateAppResponse,
)
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.runtime.process.settings import Settings, load
from services.runtime.rpc.channel import Channel

if TYPE_CHECKING:
    from protos.registry.v1.registry_pb2_grpc import RegistryServiceAsyncStub

PLATFORMS = {"android": PLATFORM_ANDROID, "ios": PLATFORM_IOS}
_NAMES = {number: name for name, number in PLATFORMS.items()}
_SHOWN_ONCE = "Store the secret key: it is not shown again. `carillon app rotate-secret` makes a new one."

Answer = TypeVar("Answer")
as_json = click.option("--json", "json_output", is_flag=True, help="Print JSON, one object a line.")


@click.group()
def app() -> None:
    """Create, list and change apps."""


app.add_command(revoke_keys)
app.add_command(pause)
app.add_command(resume)


@app.command()
@click.option("--platform", type=click.Choice(list(PLATFORMS)), required=True, help="The platform of its devices.")
@click.option("--name", required=True, help="The name for people, up to 64 characters.")
@click.option("--package", required=True, help="Package name or bundle id, such as com.example.app.")
@click.option("--account", default="", help="The developer account it belongs to.")
@as_json
def create(platform: str, name: str, package: str, account: str, json_output: bool) -> None:
    """Create an app and print its appkey and secret key."""
    request = CreateAppRequest(
        platform=PLATFORMS[platform], name=name, package=package, account=account, origin=command_origin()
    )
    answer = _call(lambda registry: registry.CreateApp(request))
    _print_with_secret(answer.app, answer.secret_key, json_output)


@app.command(name="list")
@as_json
def list_apps(json_output: bool) -> None:
    """List all apps, the oldest first."""
    answer: ListAppsResponse = _call(lambda registry: registry.ListApps(ListAppsRequest()))
    if json_output:
        for known in answer.apps:
            _print_json(_record(known, _installation_pause(answer)))
    elif answer.apps:
        show(app_table(answer.apps, _installation_pause(answer)))
    else:
        click.echo("There is no app yet; see `carillon app create --help`.")


@app.command(name="show")
@click.argument("appkey")
@as_json
def show_app(appkey: str, json_output: bool) -> None:
    """Show one app."""
    answer = _call(lambda registry: registry.GetApp(GetAppRequest(appkey=appkey)))
    _print_app(answer, json_output)


@app.command(name="set")
@click.argument("appkey")
@click.option("--ack-info", type=click.Choice(["on", "off"]), help="Whether its app servers may read acknowledgements.")
@click.option("--default-period", type=int, metavar="SECONDS", help="Time to live of pushes without one.")
@click.option("--name", help="A new name.")
@limit_options
@apns_options
@as_json
def set_app(
    appkey: str,
    ack_info: str | None,
    default_period: int | None,
    name: str | None,
    allow_from: str | None,
    json_output: bool,
    **others: Any,
) -> None:
    """Change one app. Settings without an option stay.

    An iOS app's first --apns-key needs --apns-key-id and --apns-team too; later each may be changed alone.
    """
    quotas, networks = quotas_change(others), allow_from_change(allow_from)
    change = apns_change(**others)
    if all(given is None for given in (ack_info, default_period, name, quotas, networks, change)):
        raise click.UsageError(
            "name a change: --ack-info, --default-period, --name, --allow-from, a quota such as --requests-per-s, or"
            " --apns-..."
        )
    if default_period is not None and not 0 <= default_period < 2**32:
        raise click.BadParameter("must be a number of seconds", param_hint="--default-period")
    enabled = None if ack_info is None else ack_info == "on"
    request = UpdateAppRequest(
        appkey=appkey,
        ack_info_enabled=enabled,
        default_period_s=default_period,
        name=name,
        apns=change,
        quotas=quotas,
        allow_from=networks,
        origin=command_origin(),
    )
    answer = _call(lambda registry: registry.UpdateApp(request))
    _print_app(answer, json_output)


@app.command()
@click.argument("appkey")
@click.option(
    "--keep-old",
    type=Duration(),
    default="0",
    help="How long the old secret key signs beside the new one: 24h, 30m, 7d, up to 90d. Default: not at all.",
)
@as_json
def rotate_secret(appkey: str, keep_old: int, json_output: bool) -> None:
    """Give an app a new secret key. The old one ends at once or after --keep-old, one from before it in any case."""
    request = RotateSecretRequest(appkey=appkey, keep_old_s=keep_old, origin=command_origin())
    answer = _call(lambda registry: registry.RotateSecret(request))
    _print_with_secret(answer.app, answer.secret_key, json_output)


@app.command()
@click.argument("appkey")
@as_json
def drop_old_secret(appkey: str, json_output: bool) -> None:
    """End the validity of the secret key that the last rotation kept."""
    request = UpdateAppRequest(appkey=appkey, drop_old_secret=True, origin=command_origin())
    _print_app(_call(lambda registry: registry.UpdateApp(request)), json_output)


def _call(call: "Callable[[RegistryServiceAsyncStub], Awaitable[Answer]]") -> Answer:
    async def with_stub(channel: Channel) -> Answer:
        return await call(RegistryServiceStub(channel))

    return call_role("registry", with_stub)


def _print_with_secret(known: App, secret: str, json_output: bool) -> None:
    if json_output:
        _print_json(
            {
                "appkey": known.appkey,
                "secret_key": secret,
                "platform": _NAMES[known.platform],
                "name": known.name,
                "package": known.package,
            }
        )
        return
    _print_rows({**_text_fields(known), "secret key": secret})
    click.echo(_SHOWN_ONCE)


def _print_app(answer: GetAppResponse | UpdateAppResponse, json_output: bool) -> None:
    installation_pause = _installation_pause(answer)
    if json_output:
        _print_json(_record(answer.app, installation_pause))
    else:
        limits = limits_text(answer.app, load(Settings, environment()).zone())
        paused = pauses_text(answer.app, installation_pause)
        _print_rows({**_text_fields(answer.app), **limits, "paused": paused})


def _installation_pause(answer: GetAppResponse | ListAppsResponse | UpdateAppResponse) -> Pause | None:
    return answer.installation_pause if answer.HasField("installation_pause") else None


def _record(known: App, installation_pause: Pause | None) -> dict[str, Any]:
    return {
        "appkey": known.appkey,
        "platform": _NAMES[known.platform],
        "name": known.name,
        "package": known.package,
        "account": known.account,
        "ack_info": known.ack_info_enabled,
        "default_period_s": known.default_period_s,
        "created_ms": known.created_ms,
        **pauses_record(known, installation_pause),
        **limits_record(known),
        **({"apns": apns_record(known)} if known.platform == PLATFORM_IOS else {}),
    }


def _text_fields(known: App) -> dict[str, str]:
    return {
        "appkey": known.appkey,
        "platform": _NAMES[known.platform],
        "name": known.name,
        "package": known.package,
        "account": known.account or "-",
        "ack info": "on" if known.ack_info_enabled else "off",
        "default period": f"{known.default_period_s} s",
        "APNs": apns_text(known) if known.platform == PLATFORM_IOS else "-",
    }


def app_table(apps: Sequence[App], installation_pause: Pause | None) -> Table:
    """Return a row for each app. A narrow terminal folds its other columns, never the appkeys."""
    rows = [{**_text_fields(known), "paused": pauses_text(known, installation_pause)} for known in apps]
    listed = table()
    for name in rows[0]:
        listed.add_column(name, no_wrap=name in ("appkey", "platform"), overflow="fold")
    for row in rows:
        listed.add_row(*(Text(value) for value in row.values()))
    return listed


def _print_rows(rows: dict[str, str]) -> None:
    names = table()
    names.show_header = False
    for name, value in rows.items():
        names.add_row(Text(name, style="bold"), Text(value, overflow="fold"))
    show(names)


def _print_json(record: dict[str, Any]) -> None:
    click.echo(json.dumps(record, ensure_ascii=False))
