"""`carillon device revoke` and `carillon app revoke-keys`: revoke device keys."""

import json
from collections.abc import Awaitable
from typing import TYPE_CHECKING

import click

from carillon.commands.origin import command_origin
from carillon.commands.output import say
from carillon.commands.role_calls import call_role
from protos.registry.v1.registry_pb2 import RevokeAppKeysRequest, RevokeDeviceKeyRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.runtime.rpc.channel import Channel

if TYPE_CHECKING:
    from protos.registry.v1.registry_pb2 import RevokeAppKeysResponse, RevokeDeviceKeyResponse

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
