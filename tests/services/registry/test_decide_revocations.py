"""Decisions about revocations: given revoked numbers, when a command, then the next record or none."""

from collections.abc import Sequence
from typing import Any

import pytest
from pyroaring import BitMap

from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, App, Revocations
from protos.registry.v1.devices_pb2 import (
    REGISTRATION_AUTHORITY_CODE,
    REGISTRATION_AUTHORITY_KEY,
    REGISTRATION_AUTHORITY_TOKEN,
    AddTags,
    Attributes,
    Device,
    DeviceCommand,
    NumberRegistration,
    RegisterDevice,
    RegistrationAuthority,
    ReserveNumbers,
    RevokeKey,
)
from protos.runtime.v1.log_pb2 import Origin
from services.domain.device_numbers import MAX_NUMBER
from services.domain.revocations import RevokedKeys
from services.registry.decide import (
    LOST_MARGIN,
    FreeNumber,
    decide,
    proves_lost_number,
    removed,
    reserve,
    reserve_lost,
    revoke_all,
    revoke_one,
)
from tests.services.registry.conftest import NOON_MS, command, register

APP = App(appkey="1000000001", platform=PLATFORM_ANDROID)
ALICE = Origin(interface="cli", address="alice@ops", request_id="r-1")


def requested(**what: Any) -> DeviceCommand:
    made = command(APP, "t", **what)
    made.meta.origin.CopyFrom(ALICE)
    return made


def record(below: int = 0, numbers: Sequence[int] = ()) -> Revocations:
    return Revocations(
        appkey=APP.appkey,
        partition=3,
        below=below,
        numbers=BitMap(numbers).serialize() if numbers else b"",
        revoked_ms=NOON_MS,
        reason="revoked by alice@ops",
    )


def test_a_revoked_number_is_added_to_the_record() -> None:
    revoke, device = requested(revoke_key=RevokeKey()), Device(appkey=APP.appkey, token="t", partition=3, number=9)
    assert revoke_one(revoke, device, RevokedKeys()) == record(numbers=[9])
    assert revoke_one(revoke, device, RevokedKeys(4, BitMap([7]))) == record(4, [7, 9])
    assert revoke_one(revoke, device, RevokedKeys(10)) is None
    assert revoke_one(revoke, device, RevokedKeys(0, BitMap([9]))) is None
    assert revoke_one(revoke, None, RevokedKeys()) is None


def test_revoking_all_keys_covers_every_assigned_number() -> None:
    assert revoke_all(requested(), 3, RevokedKeys(), 12) == record(12)
    assert revoke_all(requested(), 3, RevokedKeys(2, BitMap([7, 9])), 12) == record(12)
    assert revoke_all(requested(), 3, RevokedKeys(12), 12) is None
    assert revoke_all(requested(), 3, RevokedKeys(10, BitMap([10, 11])), 12) is None
    assert revoke_all(requested(), 3, RevokedKeys(), 0) is None


def test_reserving_numbers_revokes_the_next_free_ones() -> None:
    ask = requested(reserve_numbers=ReserveNumbers(count=3))
    reserved = reserve(ask, 3, RevokedKeys(2, BitMap([7])), 12)
    assert reserved is not None
    assert RevokedKeys.of(reserved) == RevokedKeys(2, BitMap([7, 12, 13, 14]), BitMap([12, 13, 14]))
    assert reserve(requested(reserve_numbers=ReserveNumbers()), 3, RevokedKeys(), 5) is None
    revoked = RevokedKeys(2, BitMap([7, 12, 13, 14]))
    assert (revoked.end, [*revoked.runs()]) == (15, [(7, 7), (12, 14)])
    assert (RevokedKeys(4).end, [*RevokedKeys(4).runs()]) == (4, [])


def test_reserving_numbers_below_a_bound_may_be_repeated() -> None:
    ask = requested(reserve_numbers=ReserveNumbers(below=15))
    reserved = reserve(ask, 3, RevokedKeys(2, BitMap([7])), 12)
    assert reserved is not None
    revoked = RevokedKeys.of(reserved)
    assert revoked == RevokedKeys(2, BitMap([7, 12, 13, 14]), BitMap([12, 13, 14]))
    assert reserve(ask, 3, revoked, revoked.end) is None
    more = reserve(requested(reserve_numbers=ReserveNumbers(count=2, below=17)), 3, revoked, revoked.end)
    assert more is not None
    assert RevokedKeys.of(more).lost == BitMap(range(12, 17))
    largest = reserve(requested(reserve_numbers=ReserveNumbers(count=9)), 3, RevokedKeys(), MAX_NUMBER - 1)
    assert largest is not None
    assert RevokedKeys.of(largest).end == MAX_NUMBER, "the state refuses larger ones"


def test_a_revocation_keeps_the_lost_numbers_and_one_of_all_keys_ends_them() -> None:
    revoked = RevokedKeys(2, BitMap([7, 12]), BitMap([12]))
    device = Device(appkey=APP.appkey, token="t", partition=3, number=9)
    one = revoke_one(requested(revoke_key=RevokeKey()), device, revoked)
    assert one is not None
    assert RevokedKeys.of(one) == RevokedKeys(2, BitMap([7, 9, 12]), BitMap([12]))
    every = revoke_all(requested(), 3, revoked, 13)
    assert every is not None
    assert (revoked | RevokedKeys.of(every)) == RevokedKeys(13)


@pytest.mark.parametrize("authority", [REGISTRATION_AUTHORITY_TOKEN, REGISTRATION_AUTHORITY_CODE])
def test_only_a_key_proves_that_the_log_lost_its_number(authority: "RegistrationAuthority.ValueType") -> None:
    register = requested(register=RegisterDevice(authority=authority, proven_number=20))
    assert not proves_lost_number(register)
    assert not proves_lost_number(requested(add_tags=AddTags(tags=[2])))
    register.register.authority = REGISTRATION_AUTHORITY_KEY
    assert proves_lost_number(register)


def test_a_lost_number_is_reserved_with_a_margin_unless_another_device_has_it() -> None:
    by_key = RegisterDevice(authority=REGISTRATION_AUTHORITY_KEY, proven_number=20)
    reserved = reserve_lost(requested(register=by_key), 3, RevokedKeys(2), 12)
    assert reserved is not None
    assert RevokedKeys.of(reserved).lost == BitMap(range(12, 21 + LOST_MARGIN))
    assert reserve_lost(requested(register=by_key), 3, RevokedKeys(2), 21) is None


def test_registering_a_revoked_device_creates_a_new_one() -> None:
    device = Device(
        appkey=APP.appkey,
        token="t",
        platform=PLATFORM_ANDROID,
        partition=3,
        number=9,
        registered_ms=5,
        alias="alice",
        tags=[1],
        former_numbers=[2],
    )
    for known in (device, removed(device, record(numbers=[9]))):
        assert decide(requested(add_tags=AddTags(tags=[2])), known, APP, FreeNumber(3, 12), is_revoked=True) is None
        made = decide(register(APP, "t"), known, APP, FreeNumber(3, 12), is_revoked=True)
        assert made == Device(
            appkey=APP.appkey,
            token="t",
            platform=PLATFORM_ANDROID,
            partition=3,
            number=12,
            registered_ms=NOON_MS,
            attributes=Attributes(),
            former_numbers=[2, 9],
            registrations=[NumberRegistration(number=9, registered_ms=5, attributes=Attributes())],
        )
