"""`carillon app pause` and `carillon app resume`, and how other commands show a pause."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from carillon.commands.origin import command_origin
from carillon.commands.role_calls import call_role
from protos.registry.v1.apps_pb2 import App, Pause
from protos.registry.v1.registry_pb2 import (
    ListAppsRequest,
    ListAppsResponse,
    PauseAppsRequest,
    PauseAppsResponse,
    ResumeAppsRequest,
    ResumeAppsResponse,
)
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.runtime.rpc.channel import Channel

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

    New pushes and timed messages are refused with HTTP 403. What is being sent stops within two seconds, and timed
    messages that fall due wait. After the resume both go on as far as their times to live allow. Cancels, queries,
    tags and devices are not affected.

    The pause of all apps is independent of the pauses of single apps. It is safe to repeat the command.
    """
    request = PauseAppsRequest(
        appkey=_checked_target(appkey, all_apps), all_apps=all_apps, reason=reason, origin=command_origin()
    )

    async def call(channel: Channel) -> PauseAppsResponse:
        response: PauseAppsResponse = await RegistryServiceStub(channel).PauseApps(request)
        return response

    response = call_role("registry", call)
    if json_output:
        changed = not response.already_paused
        _print_json(request, changed, response.unconfirmed, paused=pause_record(response.pause))
    elif response.already_paused:
        click.echo(f"{_target(request)} already: {pause_text(response.pause)}. Nothing changed.")
    else:
        click.echo(f"{_target(request)}. `carillon app resume {appkey or '--all'}` goes on.")
    _exit_if_unconfirmed(response.unconfirmed, "pause")


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
    request = ResumeAppsRequest(
        appkey=_checked_target(appkey, all_apps), all_apps=all_apps, reason=reason, origin=command_origin()
    )

    async def call(channel: Channel) -> tuple[ResumeAppsResponse, ListAppsResponse]:
        registry = RegistryServiceStub(channel)
        return await registry.ResumeApps(request), await registry.ListApps(ListAppsRequest())

    response, listed = call_role("registry", call)
    was_paused = response.HasField("ended")
    still_paused = _still_paused(request, listed)
    if json_output:
        _print_json(request, was_paused, response.unconfirmed, still_paused=still_paused)
    else:
        click.echo(_resumed_text(request, response.ended if was_paused else None))
        _warn_of_pauses(request, still_paused)
    _exit_if_unconfirmed(response.unconfirmed, "resume")


def pause_record(pause: Pause) -> dict[str, Any]:
    """Return a pause as a JSON object; the time is in milliseconds since 1970 UTC."""
    return {"since_ms": pause.since_ms, "by": pause.origin.address, "reason": pause.reason}


def pauses_record(app: App, installation_pause: Pause | None) -> dict[str, Any]:
    """Return both pauses that hold for an app as members of its JSON object, null for none."""
    return {
        "paused": pause_record(app.pause) if app.HasField("pause") else None,
        "all_apps_paused": pause_record(installation_pause) if installation_pause else None,
    }


def pauses_text(app: App, installation_pause: Pause | None) -> str:
    """Return both pauses that hold for an app as text, `-` for none."""
    own = [pause_text(app.pause)] if app.HasField("pause") else []
    of_all = [f"all apps {pause_text(installation_pause)}"] if installation_pause else []
    return "; ".join(own + of_all) or "-"


def pause_text(pause: Pause) -> str:
    """Return a pause as text, such as `since 2026-11-22 21:00:00 by ops@host: too many complaints`."""
    since = datetime.fromtimestamp(pause.since_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    says = f" (says {pause.origin.says})" if pause.origin.says else ""
    by = f" by {pause.origin.address}{says}" if pause.origin.address else ""
    return f"since {since}{by}" + (f": {pause.reason}" if pause.reason else "")


def _checked_target(appkey: str | None, all_apps: bool) -> str:
    if bool(appkey) == all_apps:
        raise click.UsageError("name one APPKEY, or --all for all apps at once")
    return appkey or ""


def _target(request: PauseAppsRequest) -> str:
    return "All apps are paused" if request.all_apps else f"App {request.appkey} is paused"


def _resumed_text(request: ResumeAppsRequest, ended: Pause | None) -> str:
    if ended is None:
        target = "All apps were not paused at once" if request.all_apps else f"App {request.appkey} was not paused"
        return f"{target}. Nothing changed."
    who, they = ("All apps go on", "they were") if request.all_apps else (f"App {request.appkey} goes on", "it was")
    return f"{who}; {they} paused {pause_text(ended)}."


def _still_paused(request: ResumeAppsRequest, listed: ListAppsResponse) -> list[str]:
    """Return the appkeys that are still paused: by their own pauses after --all, else by the pause of all apps."""
    if request.all_apps:
        return [app.appkey for app in listed.apps if app.HasField("pause")]
    return [request.appkey] if listed.HasField("installation_pause") else []


def _warn_of_pauses(request: ResumeAppsRequest, still_paused: Sequence[str]) -> None:
    if still_paused and request.all_apps:
        click.echo(f"Still paused one by one: {', '.join(still_paused)}. Each needs its own `carillon app resume`.")
    elif still_paused:
        click.echo("All apps are paused, this one too, until `carillon app resume --all`.")


def _print_json(
    request: PauseAppsRequest | ResumeAppsRequest, changed: bool, unconfirmed: Sequence[str], **state: Any
) -> None:
    target = {"appkey": request.appkey or None, "all": request.all_apps}
    click.echo(
        json.dumps({**target, "changed": changed, **state, "unconfirmed": list(unconfirmed)}, ensure_ascii=False)
    )


def _exit_if_unconfirmed(unconfirmed: Sequence[str], command: str) -> None:
    if unconfirmed:
        raise click.ClickException(
            f"it is in the log, but {' and '.join(unconfirmed)} did not confirm it in time and will apply it as soon as"
            f" possible. Repeat `carillon app {command}` to wait for it again."
        )
