"""`carillon app pause` and `carillon app resume`."""

import json
from collections.abc import Sequence
from typing import Any

import click
import msgspec

from carillon.commands.app.text import pause_text
from carillon.commands.installation.chosen import chosen_installation
from carillon.commands.output import say
from edge.console.api.answers.apps import Pause

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
    """Return the appkey, "" for all apps."""
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
