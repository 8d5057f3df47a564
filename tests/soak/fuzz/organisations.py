"""The organisations that the fuzzer acts for as app server and device: their apps, and valid calls to these."""

import json
from collections.abc import Sequence

from analytics.acks import ReadPosition, encode
from protos.registry.v1.apps_pb2 import IDENTITY_MODE_ACCEPT
from protos.registry.v1.registry_pb2 import (
    AllowFromChange,
    IdentityChange,
    IdentityKeys,
    IdentityTags,
    QuotasChange,
    RotateSecretRequest,
    UpdateAppRequest,
)
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from testkit.edge.role import EdgeInstallation
from testkit.edge.valid_requests import ValidRequest, valid_requests
from testkit.gateway.websocket import DeviceClient
from testkit.proofs import ProofKey
from tests.soak.fuzz.cases import Names
from tests.soak.fuzz.generator import Template, device_frames, hello_frames, template
from tests.soak.fuzz.values import Object

_APPKEYS = ("7000000001", "7000000002", "7000000003")
_TASK, _MSGID = "placeholder-of-a-task", "7000000000000004"
_TOKENS = ("placeholder-of-a-token", "placeholder-of-another-token")
_KEYS = ("placeholder-of-a-key", "placeholder-of-another-key")
_POSITIONS = ("placeholder-of-a-position", "placeholder-of-many-positions")
_INVENTED_POSITIONS = (
    {0: ReadPosition(0, 2**63 - 1), 1: ReadPosition(2**63 - 1, 1), 70_000: ReadPosition(1, 1)},
    {partition: ReadPosition(partition % 2, partition) for partition in range(300)},
)
_SECRET_KEPT_S = 86_400
FRAMES = device_frames(int(_MSGID))
HELLOS = hello_frames(_APPKEYS[:2], _TOKENS, _KEYS)


async def create_organisations(
    installation: EdgeInstallation, gateway_port: int, count: int
) -> tuple[list[Names], list[Template]]:
    """Create organisations; return the names of each, and every valid call, device frames over HTTP included.

    The last three have quotas, allowed networks and proofs of aliases, and an old secret with which the fuzzer signs.
    """
    named = [await _organisation(installation, gateway_port) for _ in range(count)]
    *_, (with_quotas, _), (with_networks, _), (with_old_secret, _) = named
    registry = RegistryServiceStub(installation.context.peers.all("registry")[0])
    for appkey in with_quotas.appkeys:
        quotas = QuotasChange(
            requests_per_s=100, targets_per_s=200, broadcasts_per_day=300, devices=100, stored_task_bytes=200_000
        )
        await registry.UpdateApp(UpdateAppRequest(appkey=appkey, quotas=quotas))
    for appkey in with_networks.appkeys:
        networks = AllowFromChange(networks=["127.0.0.0/8", "10.0.0.0/8"])
        identity = IdentityChange(
            mode=IDENTITY_MODE_ACCEPT,
            keys=IdentityKeys(pems=[ProofKey().public_pem, ProofKey(ed25519=True).public_pem]),
            tags=IdentityTags(tags=["user:*", "30000..32767"]),
        )
        await registry.UpdateApp(UpdateAppRequest(appkey=appkey, allow_from=networks, identity=identity))
    for appkey in with_old_secret.appkeys:
        await registry.RotateSecret(RotateSecretRequest(appkey=appkey, keep_old_s=_SECRET_KEPT_S))
    names, valid = named[0]
    return [names for names, _ in named], _calls(installation, names, valid)


async def _organisation(installation: EdgeInstallation, gateway_port: int) -> tuple[Names, Sequence[ValidRequest]]:
    """Create three apps with devices; return their names, and the valid calls of app servers."""
    valid = await valid_requests(installation)
    appkeys = list(installation.secrets)[-len(_APPKEYS) :]
    task = next(call.body["task_key"] for call in valid if "task_key" in call.body)
    msgid = next(call.body["msgid"] for call in valid if "msgid" in call.body)
    real = dict(zip(_APPKEYS, appkeys, strict=True)) | {_TASK: task, _MSGID: str(msgid)}
    for token, key in zip(_TOKENS, _KEYS, strict=True):
        device = await DeviceClient.connect(gateway_port)
        welcome = await device.hello(appkeys[0])
        device.transport.disconnect()
        real |= {token: welcome["token"], key: welcome["key"]}
    for position, invented in zip(_POSITIONS, _INVENTED_POSITIONS, strict=True):
        real[position] = encode(appkeys[0], invented)
    secrets = {placeholder: installation.secrets[appkey] for placeholder, appkey in zip(_APPKEYS, appkeys, strict=True)}
    return Names(real, secrets), valid


def _calls(installation: EdgeInstallation, names: Names, valid: Sequence[ValidRequest]) -> list[Template]:
    appkey_of = {secret: appkey for appkey, secret in installation.secrets.items()}
    calls = [
        template(
            call.interface,
            call.method,
            call.path,
            names.taken(json.dumps(call.body)),
            tuple(names.taken(appkey_of[secret]) for secret in call.secrets),
        )
        for call in valid
    ]
    for position in _POSITIONS:
        body = Object([("appkey", _APPKEYS[0]), ("pos", position), ("reqno", 10)])
        calls.append(Template("android", "POST", "/getAckInfo", body, _APPKEYS[:1]))
    owner = [("appkey", _APPKEYS[0]), ("token", _TOKENS[0]), ("key", _KEYS[0])]
    calls += [Template("v2", "POST", "/device/v1", Object([*frame, *owner]), ()) for frame in FRAMES]
    ios_hello = Object([("type", "hello"), ("appkey", _APPKEYS[1]), ("token", "ab" * 32)])
    return [*calls, *(Template("v2", "POST", "/device/v1", hello, ()) for hello in (ios_hello, *HELLOS[:4]))]
