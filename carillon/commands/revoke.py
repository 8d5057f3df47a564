"""`carillon device revoke` and `carillon app revoke-keys`: device keys that are refused from now on."""

import json
from collections.abc import Awaitable
from typing import TYPE_CHECKING

import click

from carillon.commands.connect import reach
from carillon.commands.origin import here
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
    """End a device and refuse its key, for ever. Its app may register the device anew."""
    request = RevokeDeviceKeyRequest(appkey=appkey, token=token, origin=here())

    def ask(channel: Channel) -> "Awaitable[RevokeDeviceKeyResponse]":
        return RegistryServiceStub(channel).RevokeDeviceKey(request)

    reach("registry", ask)
    if json_output:
        click.echo(json.dumps({"appkey": appkey, "token": token, "revoked": True}))
    else:
        click.echo("The device is removed and its key is refused.")


@click.command()
@click.argument("appkey")
@_as_json
def revoke_keys(appkey: str, json_output: bool) -> None:
    """Refuse every device key of an app handed out so far. All its devices have to register anew."""
    request = RevokeAppKeysRequest(appkey=appkey, origin=here())

    def ask(channel: Channel) -> "Awaitable[RevokeAppKeysResponse]":
        return RegistryServiceStub(channel).RevokeAppKeys(request)

    reach("registry", ask)
    if json_output:
        click.echo(json.dumps({"appkey": appkey, "revoked": True}))
    else:
        click.echo("All device keys handed out so far are refused; their devices are being removed.")
