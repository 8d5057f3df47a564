"""`carillon person`: export, erasure, and the list of erasures."""

from typing import Any

import click

from carillon.commands.output import as_json, device_count, print_json, print_table, say, time_text
from carillon.commands.role_calls import call_registry, command_origin
from carillon.installation.chosen import named_console
from carillon.installation.remote import ConsoleClient, console_client
from console.devices.answers import ErasedPerson, Erasure, ErasureList, Person, PersonPage
from console.devices.erasures import NOT_FORGOTTEN
from protos.registry.v1.registry_pb2 import ErasePersonRequest

_PAGE = 200


@click.group()
def person() -> None:
    """Export what is held about a person, or erase the person.

    All but `erase` on the machine need a console, and an API token of a team's administrator:
    `carillon --url https://HOST --token-file FILE person …`.
    """


@person.command()
@click.option("--app", "appkey", required=True, metavar="APPKEY", help="The app.")
@click.option("--alias", help="The person: the devices that have this alias now.")
@click.option("--token", help="The person: the device with this token, a removed one too.")
@as_json
def export(appkey: str, alias: str | None, token: str | None, as_json: bool) -> None:
    """Export everything that is held about the devices of a person: all of it with --json, else a summary.

    The audit notes who made the export, from which app and of how many devices, but not whose data it was. Everything
    that names other people is left out.
    """
    if (alias is None) == (token is None):
        raise click.UsageError("give either --alias or --token")
    found = _whole(appkey, alias or token or "")
    if as_json:
        print_json(found)
        return
    print_table(
        (
            {
                "token": device.token,
                "alias": device.alias,
                "registered": time_text(device.registered_ms),
                "events": sum(event.token == device.token for event in found.history),
                "pushes": sum(event.token == device.token and event.push is not None for event in found.history),
            }
            for device in found.devices
        ),
        "The app has no device with this alias or token.",
        ["events", "pushes"],
    )
    say(
        f"Named by {len(found.tasks)} timed pushes, {len(found.drafts)} drafts, {len(found.test_devices)} test devices"
        f" and {len(found.actions)} actions of accounts. --json prints all of it."
    )


@person.command()
@click.option("--app", "appkey", required=True, metavar="APPKEY", help="The app.")
@click.option("--alias", help="The person: the devices that have this alias now.")
@click.option("--token", help="The person: the device with this token, and its alias if no other device has it.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json
def erase(appkey: str, alias: str | None, token: str | None, yes: bool, as_json: bool) -> None:
    """Erase the devices of a person: their keys are destroyed, and stubs without anything personal are left.

    There is no way back. What is not forgotten yet is printed, and `carillon person erasures` says when every role has
    forgotten the person. With an API token, the erasure waits for another administrator where the team asks for a
    second person; an operator on the machine needs nobody.
    """
    if (alias is None) == (token is None):
        raise click.UsageError("give either --alias or --token")
    console = named_console()
    erased = (
        _erase_here(appkey, alias, token, yes) if console is None else _erase_by(console, appkey, alias, token, yes)
    )
    if as_json:
        print_json(erased)
        return
    if erased.waits_until_ms is not None:
        say(
            f"Nothing is erased yet. Erasure {erased.erasure_id} of {device_count(erased.devices)} waits until"
            f" {time_text(erased.waits_until_ms)} for another administrator, who confirms it in the console."
        )
        return
    say(
        f"Erased: {device_count(erased.devices)}, as erasure {erased.erasure_id}. Each process forgets them now, or at"
        " its next start.",
        "Not forgotten:",
        *(f"- {what}" for what in erased.not_forgotten),
    )


def _erase_by(console: ConsoleClient, appkey: str, alias: str | None, token: str | None, yes: bool) -> ErasedPerson:
    path = ("apps", appkey, "person")
    if not yes:
        _confirm(console.delete(ErasedPerson, *path, alias=alias, token=token, dry_run="true").devices)
    return console.delete(ErasedPerson, *path, alias=alias, token=token)


def _erase_here(appkey: str, alias: str | None, token: str | None, yes: bool) -> ErasedPerson:
    request = ErasePersonRequest(appkey=appkey, origin=command_origin())
    if alias is not None:
        request.alias = alias
    else:
        request.token = token or ""
    if not yes:
        request.dry_run = True
        found = call_registry(lambda registry: registry.ErasePerson(request))
        _confirm(found.devices)
        request.dry_run = False
    answer = call_registry(lambda registry: registry.ErasePerson(request))
    return ErasedPerson(answer.erasure_id, answer.devices, answer.time_ms, list(NOT_FORGOTTEN))


def _confirm(devices: int) -> None:
    click.confirm(f"Erase {device_count(devices)} of this person for ever?", abort=True, err=True)


@person.command()
@click.option("--app", "appkey", required=True, metavar="APPKEY", help="The app.")
@as_json
def erasures(appkey: str, as_json: bool) -> None:
    """List the erasures of an app, the latest first: when they were done, or the roles that they wait for.

    None says who the person was. Backups from before an erasure was done are kept until the printed time, if the
    console has CARILLON_BACKUP_DAYS.
    """
    console, found, waiting, cursor = console_client(), [], [], ""
    while True:
        page = console.get(ErasureList, "apps", appkey, "erasures", cursor=cursor, limit=_PAGE)
        found += page.erasures
        waiting += page.unconfirmed
        if not (cursor := page.next):
            break
    if as_json:
        for erasure in found:
            print_json(erasure)
        return
    for unconfirmed in waiting:
        say(
            f"Erasure {unconfirmed.erasure_id} of {device_count(unconfirmed.devices)}, by {unconfirmed.actor}, waits"
            f" until {time_text(unconfirmed.expires_ms)} for another administrator to confirm it."
        )
    print_table(
        (
            {
                "erasure": erasure.erasure_id,
                "time": time_text(erasure.time_ms),
                "devices": erasure.devices,
                "by": erasure.actor or "operator",
                "state": _state(erasure),
                "backups until": time_text(erasure.backups_until_ms) if erasure.backups_until_ms else "not known",
            }
            for erasure in found
        ),
        "Nobody was erased from the app.",
        ["devices"],
    )


def _state(erasure: Erasure) -> str:
    if erasure.done_ms is not None:
        return f"done {time_text(erasure.done_ms)}"
    return f"waiting for {', '.join(erasure.waiting_for) or 'its end to be recorded'}"


def _whole(appkey: str, name: str) -> Person:
    """Return the lists of all pages together."""
    console = console_client()
    lists: dict[str, list[Any]] = {field: [] for field in Person.__struct_fields__}
    cursor = ""
    while True:
        page = console.get(PersonPage, "apps", appkey, "person", name=name, cursor=cursor, limit=_PAGE)
        for field, entries in lists.items():
            entries += getattr(page, field)
        if not (cursor := page.next):
            return Person(**lists)
