"""`carillon app set`: quotas and allowed networks; `carillon app rotate-secret --keep-old`: durations."""

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from protos.registry.v1.apps_pb2 import Quotas
from protos.registry.v1.registry_pb2 import AllowFromChange, QuotasChange

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

Command = TypeVar("Command", bound=Callable[..., Any])


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


class Duration(click.ParamType[int]):
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
