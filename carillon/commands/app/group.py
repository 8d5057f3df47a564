"""`carillon app`: create apps and change them."""

from typing import Any

import click

from carillon.commands.app.apns import apns_change, apns_options
from carillon.commands.app.identity import identity_change, identity_options
from carillon.commands.app.limits import Duration, allow_from_change, limit_options, quotas_change
from carillon.commands.app.pause import pause, resume
from carillon.commands.app.revoke import revoke_keys
from carillon.commands.app.text import app_table, print_alias_warning, print_app, print_secret
from carillon.commands.installation.chosen import chosen_installation
from carillon.commands.origin import command_origin
from carillon.commands.output import as_json_lines, print_json, say, show
from carillon.commands.role_calls import call_registry
from carillon.environment import environment
from edge.console.api.answers.apps import App, NewSecret, secret_answer
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, PLATFORM_IOS
from protos.registry.v1.registry_pb2 import CreateAppRequest, UpdateAppRequest
from services.domain.limits.time_to_live import MAX_PERIOD_S, MIN_PERIOD_S
from services.runtime.process.settings import Settings, load

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
@limit_options
@identity_options
@apns_options
@as_json_lines
def set_app(
    appkey: str,
    ack_info: str | None,
    default_period: int | None,
    name: str | None,
    replay_safe: str | None,
    allow_from: str | None,
    json_output: bool,
    **others: Any,
) -> None:
    """Change one app. Settings without an option stay.

    An iOS app's first --apns-key needs --apns-key-id and --apns-team too; later each may be changed alone.
    """
    quotas, networks, identity = quotas_change(others), allow_from_change(allow_from), identity_change(others)
    change = apns_change(**others)
    if all(
        given is None for given in (ack_info, default_period, name, replay_safe, quotas, networks, identity, change)
    ):
        raise click.UsageError(
            "name a change: --ack-info, --default-period, --name, --replay-safe, --allow-from, a quota such as"
            " --requests-per-s, --identity..., or --apns-..."
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
    )
    _print_app(chosen_installation().change_app(request), json_output)


@app.command()
@click.argument("appkey")
@click.option(
    "--keep-old",
    type=Duration(),
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
