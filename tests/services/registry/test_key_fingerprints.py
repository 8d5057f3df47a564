"""The fingerprints of the installation's keys: roles that may not write `apps` have the registry note theirs."""

import asyncio
from dataclasses import replace

import pytest

from protos.registry.v1.apps_pb2 import KeyFingerprint
from protos.registry.v1.registry_pb2 import NoteKeyFingerprintRequest
from services.domain.apps import AppDirectory
from services.domain.master_key import KeyPurpose, MasterKey
from services.domain.role_context import check_keys
from services.domain.topics import APPS, decode
from services.errors import CarillonError, InputError
from services.log.port import DelegatingLog
from tests.services.registry.conftest import RunningRegistry, records


class OnlyRead(DelegatingLog):
    """A log as a user without any right to write sees it."""

    async def append(self, new_records: object) -> list[int]:
        raise AssertionError(f"a role other than the registry appends {new_records}")


async def check(registry: RunningRegistry, keys: MasterKey) -> None:
    """Check the device key as a gateway does at its start."""
    apps = AppDirectory(registry.log)
    following = asyncio.create_task(apps.run(ready := asyncio.Event()))
    await ready.wait()
    own = keys.only([KeyPurpose.DEVICES])
    try:
        await check_keys(replace(registry.context, log=OnlyRead(registry.log), apps=apps, keys=own), "gateway")
    finally:
        following.cancel()
        await asyncio.wait([following])


async def test_the_registry_notes_the_first_fingerprint_for_a_role_that_may_not(registry: RunningRegistry) -> None:
    first, other = MasterKey(bytes(32)), MasterKey(bytes([1] * 32))
    for _ in range(2):
        await check(registry, first)
    with pytest.raises(CarillonError, match="the key of device keys is not the one with which this installation began"):
        await check(registry, other)
    facts = [decode(record) for record in await records(registry.log, APPS.name, 1)]
    noted = [fact.key_fingerprint for fact in facts if fact.HasField("key_fingerprint")]
    purpose = KeyPurpose.DEVICES
    assert noted == [KeyFingerprint(purpose=purpose.name, fingerprint=first.fingerprint(purpose))]


async def test_two_that_come_at_once_get_the_same_answer(registry: RunningRegistry) -> None:
    keys = [MasterKey(bytes([number] * 32)).fingerprint(KeyPurpose.DEVICES) for number in range(3)]
    requests = [KeyFingerprint(purpose="DEVICES", fingerprint=key) for key in keys]
    answers = await asyncio.gather(
        *(registry.stub.NoteKeyFingerprint(NoteKeyFingerprintRequest(fingerprint=each)) for each in requests)
    )
    assert {answer.fingerprint for answer in answers} == {keys[0]}


@pytest.mark.parametrize("wrong", [KeyFingerprint(purpose="OTHER", fingerprint=bytes(16)), KeyFingerprint()])
async def test_what_is_no_fingerprint_is_refused(registry: RunningRegistry, wrong: KeyFingerprint) -> None:
    with pytest.raises(InputError, match="16 bytes of the key"):
        await registry.stub.NoteKeyFingerprint(NoteKeyFingerprintRequest(fingerprint=wrong))
