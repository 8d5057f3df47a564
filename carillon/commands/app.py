"""`carillon app`: make apps and change them."""

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from carillon.commands.apns import apns_change, apns_options, apns_record, apns_text
from carillon.commands.connect import reach
from carillon.commands.origin import here
from carillon.commands.revoke import revoke_keys
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, PLATFORM_IOS, App
from protos.registry.v1.registry_pb2 import (
    CreateAppRequest,
    GetAppRequest,
    ListAppsRequest,
    RotateSecretRequest,
    UpdateAppRequest,
)
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.runtime.rpc.channel import Channel

if TYPE_CHECKING:
    from protos.registry.v1.registry_pb2_grpc import RegistryServiceAsyncStub

PLATFORMS = {"android": PLATFORM_ANDROID, "ios": PLATFORM_IOS}
_NAMES = {number: name for name, number in PLATFORMS.items()}
_ONCE = "The secret key is shown this once; keep it. `carillon app rotate-secret` makes a new one."

Answer = TypeVar("Answer")
as_json = click.option("--json", "json_output", is_flag=True, help="Print JSON, one object a line.")


@click.group()
def app() -> None:
    """Make apps, list and change them."""


app.add_command(revoke_keys)


@app.command()
@click.option("--platform", type=click.Choice(list(PLATFORMS)), required=True, help="What its devices run on.")
@click.option("--name", required=True, help="What people call it; up to 64 characters.")
@click.option("--package", required=True, help="Package name or bundle id, such as com.example.app.")
@click.option("--account", default="", help="The developer account it belongs to.")
@as_json
def create(platform: str, name: str, package: str, account: str, json_output: bool) -> None:
    """Make an app; prints its appkey and its secret key."""
    request = CreateAppRequest(platform=PLATFORMS[platform], name=name, package=package, account=account, origin=here())
    answer = _ask(lambda registry: registry.CreateApp(request))
    _print_with_secret(answer.app, answer.secret_key, json_output)


@app.command(name="list")
@as_json
def list_apps(json_output: bool) -> None:
    """List all apps, the oldest first."""
    apps = _ask(lambda registry: registry.ListApps(ListAppsRequest())).apps
    if json_output:
        for known in apps:
            _print_json(_record(known))
    elif apps:
        Console().print(_table(apps))
    else:
        click.echo("There is no app yet; `carillon app create --help` says how to make one.")


@app.command()
@click.argument("appkey")
@as_json
def show(appkey: str, json_output: bool) -> None:
    """Show one app."""
    answer = _ask(lambda registry: registry.GetApp(GetAppRequest(appkey=appkey)))
    _print_app(answer.app, json_output)


@app.command(name="set")
@click.argument("appkey")
@click.option("--ack-info", type=click.Choice(["on", "off"]), help="Whether its servers may read acknowledgements.")
@click.option("--default-period", type=int, metavar="SECONDS", help="Time to live of pushes that name none.")
@click.option("--name", help="A new name.")
@apns_options
@as_json
def set_app(
    appkey: str,
    ack_info: str | None,
    default_period: int | None,
    name: str | None,
    json_output: bool,
    **apns: str | None,
) -> None:
    """Change one app; what is not named stays as it is.

    An iOS app's first --apns-key needs --apns-key-id and --apns-team beside it; later each may be changed alone.
    """
    change = apns_change(**apns)
    if ack_info is None and default_period is None and name is None and change is None:
        raise click.UsageError("say what to change: --ack-info, --default-period, --name or --apns-...")
    if default_period is not None and not 0 <= default_period < 2**32:
        raise click.BadParameter("must be a number of seconds", param_hint="--default-period")
    enabled = None if ack_info is None else ack_info == "on"
    request = UpdateAppRequest(
        appkey=appkey,
        ack_info_enabled=enabled,
        default_period_s=default_period,
        name=name,
        apns=change,
        origin=here(),
    )
    answer = _ask(lambda registry: registry.UpdateApp(request))
    _print_app(answer.app, json_output)


@app.command()
@click.argument("appkey")
@as_json
def rotate_secret(appkey: str, json_output: bool) -> None:
    """Give an app a new secret key; the old one stops working at once."""
    request = RotateSecretRequest(appkey=appkey, origin=here())
    answer = _ask(lambda registry: registry.RotateSecret(request))
    _print_with_secret(answer.app, answer.secret_key, json_output)


def _ask(question: "Callable[[RegistryServiceAsyncStub], Awaitable[Answer]]") -> Answer:
    async def call(channel: Channel) -> Answer:
        return await question(RegistryServiceStub(channel))

    return reach("registry", call)


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
    _print_rows({**_readable(known), "secret key": secret})
    click.echo(_ONCE)


def _print_app(known: App, json_output: bool) -> None:
    if json_output:
        _print_json(_record(known))
    else:
        _print_rows(_readable(known))


def _record(known: App) -> dict[str, Any]:
    return {
        "appkey": known.appkey,
        "platform": _NAMES[known.platform],
        "name": known.name,
        "package": known.package,
        "account": known.account,
        "ack_info": known.ack_info_enabled,
        "default_period_s": known.default_period_s,
        "created_ms": known.created_ms,
        **({"apns": apns_record(known)} if known.platform == PLATFORM_IOS else {}),
    }


def _readable(known: App) -> dict[str, str]:
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


def _table(apps: Sequence[App]) -> Table:
    rows = [_readable(known) for known in apps]
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(Text(value) for value in row.values()))
    return table


def _print_rows(rows: dict[str, str]) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in rows.items():
        table.add_row(Text(name, style="bold"), Text(value, overflow="fold"))
    Console().print(table)


def _print_json(record: dict[str, Any]) -> None:
    click.echo(json.dumps(record, ensure_ascii=False))
