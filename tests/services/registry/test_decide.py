"""Decisions about devices: given a device, when a command, then its next record or none."""

from typing import Any

import pytest

from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, PLATFORM_IOS, App
from protos.registry.v1.devices_pb2 import (
    REGISTRATION_AUTHORITY_APP_SERVER,
    REGISTRATION_AUTHORITY_CODE,
    REGISTRATION_AUTHORITY_KEY,
    REGISTRATION_AUTHORITY_TOKEN,
    AddStags,
    AddTags,
    AliasLost,
    AliasTaken,
    Attributes,
    ClearAlias,
    Device,
    DeviceCommand,
    RegisterDevice,
    RegistrationAuthority,
    RemoveDevice,
    RemoveStags,
    RemoveTags,
    SetAlias,
    SetAttributes,
)
from services.registry.decide import MAX_DEVICE_BYTES, MAX_FORMER_NUMBERS, FreeNumber, decide
from tests.services.registry.conftest import NOON_MS, clear_alias, command, register, set_alias

APP = App(appkey="1000000001", platform=PLATFORM_ANDROID)
IOS_APP = App(appkey="1000000002", platform=PLATFORM_IOS)
FREE = FreeNumber(partition=3, number=7)
LATER_MS = NOON_MS + 60_000
HOUR_MS = 3_600_000


def when(device: Device | None, what: DeviceCommand, app: App | None = APP) -> Device | None:
    return without_history(decide(what, device, app, FREE))


def without_history(device: Device | None) -> Device | None:
    """Return the record without what it keeps for statistics, which test_attribute_changes.py is about."""
    if device is not None:
        device.ClearField("registrations")
        device.ClearField("attributes_revision")
    return device


def requested(**what: Any) -> DeviceCommand:
    return command(APP, "t", at_ms=LATER_MS, **what)


def given(**fields: Any) -> Device:
    """Return a newly registered device with some fields set."""
    device = when(None, register(APP, "t"))
    assert device is not None
    device.MergeFrom(Device(**fields))
    return device


def then(device: Device, **fields: Any) -> Device:
    """Return the device with some fields replaced."""
    changed = Device()
    changed.CopyFrom(device)
    for name in fields:
        changed.ClearField(name)  # type: ignore[arg-type]
    changed.MergeFrom(Device(**fields))
    return changed


def test_a_proof_is_noted_with_the_alias_and_stays_until_another_alias() -> None:
    proven = then(given(), alias="alice", alias_set_ms=LATER_MS, alias_proven=True)
    assert when(given(), requested(set_alias=SetAlias(alias="alice", proven=True))) == proven
    unproven = then(given(), alias="alice", alias_set_ms=NOON_MS)
    upgraded = then(unproven, alias_proven=True)
    assert when(unproven, requested(set_alias=SetAlias(alias="alice", proven=True))) == upgraded
    assert when(proven, requested(set_alias=SetAlias(alias="alice"))) is None
    other = then(given(), alias="bob", alias_set_ms=LATER_MS)
    assert when(proven, requested(set_alias=SetAlias(alias="bob"))) == other
    assert when(proven, requested(clear_alias=ClearAlias())) == given()
    assert when(proven, requested(clear_alias=ClearAlias(only_alias="alice", only_unproven=True))) is None
    assert when(unproven, requested(clear_alias=ClearAlias(only_alias="alice", only_unproven=True))) == given()


def test_an_alias_that_another_device_takes_is_recorded_as_lost() -> None:
    device = then(given(), alias="alice", alias_set_ms=NOON_MS, alias_proven=True)
    taken = ClearAlias(only_alias="alice", taken=AliasTaken(token="thief", proven=True))
    loss = AliasLost(alias="alice", lost_ms=LATER_MS, to_token="thief", to_proven=True, was_proven=True)
    lost = then(given(), alias_lost=loss)
    assert when(device, requested(clear_alias=taken)) == lost
    assert when(lost, requested(clear_alias=taken)) is None
    again = then(given(), alias="alice", alias_set_ms=LATER_MS)
    assert when(lost, requested(set_alias=SetAlias(alias="alice"))) == again


def test_proven_identity_tags_are_noted_among_the_tags() -> None:
    tagged = when(given(tags=[1]), requested(add_tags=AddTags(tags=[7, 2], proven=[7])))
    assert tagged == then(given(), tags=[1, 2, 7], proven_tags=[7])
    assert when(tagged, requested(add_tags=AddTags(tags=[7]))) is None
    assert when(tagged, requested(remove_tags=RemoveTags(tags=[7, 1]))) == then(given(), tags=[2])
    named = when(given(), requested(add_stags=AddStags(stags=["user:a", "x"], proven=["user:a"])))
    assert named == then(given(), stags=["user:a", "x"], proven_stags=["user:a"])
    assert when(named, requested(remove_stags=RemoveStags(stags=["user:a"]))) == then(given(), stags=["x"])


def test_registering_creates_a_device_with_the_free_number() -> None:
    assert when(None, register(APP, "t", model="X1", carrier="China Mobile")) == Device(
        appkey=APP.appkey,
        token="t",
        platform=PLATFORM_ANDROID,
        partition=3,
        number=7,
        registered_ms=NOON_MS,
        attributes=Attributes(model="X1", carrier="cm"),
    )


def test_registering_again_changes_nothing_but_newer_attributes() -> None:
    device = given(attributes=Attributes(model="X1", brand="Acme"), tags=[1])
    assert when(device, register(APP, "t", LATER_MS)) is None
    assert when(device, register(APP, "t", LATER_MS, model="X1")) is None
    newer = when(device, register(APP, "t", LATER_MS, model="X2"))
    assert newer == then(device, attributes=Attributes(model="X2", brand="Acme"))


def test_a_removed_device_registers_anew_under_its_number() -> None:
    device = given(
        **{"number": 2, "former_numbers": [0], "alias": "alice", "alias_set_ms": NOON_MS, "tags": [1], "stags": ["a"]},
        **{"attributes": Attributes(model="X1"), "removed_ms": LATER_MS, "removed_reason": "gone"},
    )
    again = when(device, register(APP, "t", LATER_MS + 1, brand="Acme"))
    attributes = Attributes(brand="Acme")
    assert again == given(number=2, former_numbers=[0], registered_ms=LATER_MS + 1, attributes=attributes)


@pytest.mark.parametrize(
    "what",
    [
        set_alias(APP, "t", "alice"),
        clear_alias(APP, "t"),
        requested(add_tags=AddTags(tags=[1])),
        requested(remove_tags=RemoveTags(tags=[1])),
        requested(add_stags=AddStags(stags=["a"])),
        requested(remove_stags=RemoveStags(stags=["a"])),
        requested(set_attributes=SetAttributes(attributes=Attributes(model="X2"))),
        requested(remove=RemoveDevice()),
        requested(),
    ],
    ids=lambda what: str(what.WhichOneof("command")),
)
def test_only_registering_affects_an_unknown_or_a_removed_device(what: DeviceCommand) -> None:
    assert when(None, what) is None
    assert when(given(removed_ms=LATER_MS, alias="bob", tags=[1], stags=["a"]), what) is None
    assert when(given(alias="bob", tags=[1], stags=["a"]), what, app=None) is None


def test_nothing_is_registered_for_an_unknown_app_or_on_another_platform() -> None:
    assert when(None, register(APP, "t"), app=None) is None
    assert when(None, requested(register=RegisterDevice(platform=PLATFORM_IOS))) is None
    assert when(None, requested(register=RegisterDevice())) is None


def test_an_alias_is_set_replaced_and_cleared() -> None:
    device = given()
    named = when(device, set_alias(APP, "t", "alice", LATER_MS))
    assert named == then(device, alias="alice", alias_set_ms=LATER_MS)
    assert when(named, set_alias(APP, "t", "alice", LATER_MS + 1)) is None
    renamed = when(named, set_alias(APP, "t", "bob", LATER_MS + 1))
    assert renamed == then(device, alias="bob", alias_set_ms=LATER_MS + 1)
    assert when(renamed, clear_alias(APP, "t")) == device
    assert when(device, clear_alias(APP, "t")) is None
    assert when(device, set_alias(APP, "t", "")) is None


def test_only_the_alias_named_is_cleared() -> None:
    named = given(alias="alice", alias_set_ms=NOON_MS)
    assert when(named, clear_alias(APP, "t", only="bob")) is None
    assert when(named, clear_alias(APP, "t", only="alice")) == given()
    assert when(given(), clear_alias(APP, "t", only="")) is None


def test_a_request_over_an_earlier_connection_than_the_latest_is_ignored() -> None:
    device = given()
    first = when(device, over(3, set_alias(APP, "t", "alice", LATER_MS)))
    assert first == then(device, alias="alice", alias_set_ms=LATER_MS, session=3)
    later = when(first, over(7, requested(add_tags=AddTags(tags=[1]))))
    assert later == then(first, tags=[1], session=7)
    assert when(later, over(3, set_alias(APP, "t", "bob", LATER_MS))) is None
    assert when(later, over(7, clear_alias(APP, "t"))) == then(device, tags=[1], session=7)
    assert when(later, clear_alias(APP, "t")) == then(device, tags=[1], session=7), "it has no place in the order"
    unchanged = when(later, over(9, requested(add_tags=AddTags(tags=[1]))))
    assert unchanged == then(later, session=9), "what is unchanged is still later than a request over connection 7"


def over(session: int, what: DeviceCommand) -> DeviceCommand:
    """Return the command as one that came over the connection at this place in the order."""
    what.session = session
    return what


def test_tags_are_ascending_and_unique() -> None:
    device = given()
    tagged = when(device, requested(add_tags=AddTags(tags=[5, -3, 5, 9])))
    assert tagged == then(device, tags=[-3, 5, 9])
    assert when(tagged, requested(add_tags=AddTags(tags=[9, 5]))) is None
    assert when(tagged, requested(add_tags=AddTags())) is None
    assert when(tagged, requested(remove_tags=RemoveTags(tags=[5, 77]))) == then(device, tags=[-3, 9])
    assert when(tagged, requested(remove_tags=RemoveTags(tags=[77]))) is None


def test_string_tags_are_ascending_and_unique() -> None:
    device = given()
    tagged = when(device, requested(add_stags=AddStags(stags=["sport", "新闻", "art", "art"])))
    assert tagged == then(device, stags=["art", "sport", "新闻"])
    assert when(tagged, requested(add_stags=AddStags(stags=["sport"]))) is None
    assert when(tagged, requested(remove_stags=RemoveStags(stags=["art", "none"]))) == then(
        device, stags=["sport", "新闻"]
    )
    assert when(tagged, requested(remove_stags=RemoveStags(stags=["none"]))) is None


def test_attributes_that_are_not_empty_replace_the_known_ones() -> None:
    device = given(attributes=Attributes(region="北京市", carrier="cm", model="X1"))
    moved = when(
        device, requested(set_attributes=SetAttributes(attributes=Attributes(region="上海市", carrier="46001")))
    )
    assert moved == then(device, attributes=Attributes(region="上海市", carrier="cu", model="X1"))
    assert when(moved, requested(set_attributes=SetAttributes(attributes=Attributes(carrier="联通")))) is None
    assert when(moved, requested(set_attributes=SetAttributes())) is None


def test_a_device_is_removed_with_its_reason() -> None:
    device = given(alias="alice", tags=[1])
    gone = when(device, requested(remove=RemoveDevice(reason="Unregistered")))
    assert gone == then(device, removed_ms=LATER_MS, removed_reason="Unregistered")
    plain = when(device, requested(remove=RemoveDevice()))
    assert plain is not None
    assert plain.removed_reason == "unregistered"


def test_a_device_that_registered_since_is_not_removed() -> None:
    device = given()
    assert when(device, requested(remove=RemoveDevice(reason="Unregistered", registered_before_ms=NOON_MS))) is None
    assert when(device, requested(remove=RemoveDevice(reason="Unregistered", registered_before_ms=NOON_MS - 1))) is None
    assert when(device, requested(remove=RemoveDevice(reason="Unregistered", registered_before_ms=NOON_MS + 1)))


def test_a_repeated_registration_of_an_ios_token_is_noted_once_an_hour() -> None:
    device = ios_registered(None, NOON_MS)
    assert device.registered_again_ms == 0
    assert when_ios(device, ios_register(NOON_MS)) is None, "the same command, twice in the log"
    again = ios_registered(device, LATER_MS)
    assert again == then(device, registered_again_ms=LATER_MS), "the time of the first registration stays"
    assert when_ios(again, ios_register(LATER_MS + HOUR_MS - 1)) is None
    assert when_ios(again, ios_register(LATER_MS - HOUR_MS)) is None, "a clock that is behind"
    next_noted = ios_registered(again, LATER_MS + HOUR_MS)
    assert next_noted == then(device, registered_again_ms=LATER_MS + HOUR_MS)
    newer = ios_registered(again, LATER_MS + 1, model="X2")
    assert newer == then(again, attributes=Attributes(model="X2"))


def test_a_removed_ios_token_registers_anew_without_the_time_of_earlier_repetitions() -> None:
    again = ios_registered(ios_registered(None, NOON_MS), LATER_MS)
    removed = when_ios(again, ios_removal(0, LATER_MS + 1))
    assert ios_registered(removed, LATER_MS + 2) == ios_registered(None, LATER_MS + 2)


def test_an_ios_token_that_registered_again_since_is_not_removed() -> None:
    again = ios_registered(ios_registered(None, NOON_MS), LATER_MS)
    days_later_ms = LATER_MS + 30 * HOUR_MS
    assert when_ios(again, ios_removal(NOON_MS + 1, LATER_MS + 5)) is None
    assert when_ios(again, ios_removal(NOON_MS + 1, days_later_ms)) is None
    gone = when_ios(again, ios_removal(days_later_ms - 1, days_later_ms))
    assert gone == then(again, removed_ms=days_later_ms, removed_reason="Unregistered")


def test_an_ios_token_whose_latest_registration_may_not_be_noted_is_kept_for_two_hours() -> None:
    again = ios_registered(ios_registered(None, NOON_MS), LATER_MS)
    assert when_ios(again, ios_removal(LATER_MS + 1, LATER_MS + 2)) is None
    assert when_ios(again, ios_removal(LATER_MS + HOUR_MS - 1, LATER_MS + 2 * HOUR_MS - 1)) is None
    assert when_ios(again, ios_removal(LATER_MS + HOUR_MS, LATER_MS + HOUR_MS)), "from then on each one is noted"
    assert when_ios(again, ios_removal(LATER_MS + 1, LATER_MS + 2 * HOUR_MS)), "Apple refuses it still"
    assert when_ios(again, ios_removal(0, LATER_MS + 2)), "whenever it registered"


def test_an_ios_token_that_registered_once_is_removed_at_once() -> None:
    device = ios_registered(None, NOON_MS)
    assert when_ios(device, ios_removal(NOON_MS, LATER_MS)) is None
    assert when_ios(device, ios_removal(NOON_MS + 1, LATER_MS))


def when_ios(device: Device | None, what: DeviceCommand) -> Device | None:
    return without_history(decide(what, device, IOS_APP, FREE))


def ios_register(at_ms: int, **attributes: str) -> DeviceCommand:
    registration = RegisterDevice(platform=PLATFORM_IOS, attributes=Attributes(**attributes))
    return command(IOS_APP, "t", at_ms=at_ms, register=registration)


def ios_registered(device: Device | None, at_ms: int, **attributes: str) -> Device:
    """Return the next record of an iOS device that registers."""
    registered = when_ios(device, ios_register(at_ms, **attributes))
    assert registered is not None
    return registered


def ios_removal(registered_before_ms: int, at_ms: int) -> DeviceCommand:
    """Return the removal of a token that Apple has refused, with the time of Apple's answer."""
    remove = RemoveDevice(reason="Unregistered", registered_before_ms=registered_before_ms)
    return command(IOS_APP, "t", at_ms=at_ms, remove=remove)


def of_ios(**fields: Any) -> Device:
    """Return an iOS device with number 2, an alias and tags."""
    device = ios_registered(None, NOON_MS, model="X1")
    known = {"number": 2, "former_numbers": [0], "alias": "alice", "alias_set_ms": NOON_MS, "tags": [1], "stags": ["a"]}
    return then(device, **{**known, **fields})


def with_authority(
    authority: RegistrationAuthority.ValueType, proven: int = 0, at_ms: int = LATER_MS, **attributes: str
) -> DeviceCommand:
    registration = RegisterDevice(
        platform=PLATFORM_IOS, attributes=Attributes(**attributes), authority=authority, proven_number=proven
    )
    return command(IOS_APP, "t", at_ms=at_ms, register=registration)


TOKEN_ALONE = with_authority(REGISTRATION_AUTHORITY_TOKEN, model="taken")
KEY = with_authority(REGISTRATION_AUTHORITY_KEY, proven=2)
CODE = with_authority(REGISTRATION_AUTHORITY_CODE, proven=2)
APP_SERVER = with_authority(REGISTRATION_AUTHORITY_APP_SERVER)
OLD_KEY = with_authority(REGISTRATION_AUTHORITY_KEY, proven=0, model="taken")
OLD_CODE = with_authority(REGISTRATION_AUTHORITY_CODE, proven=0, model="taken")


@pytest.mark.parametrize("what", [TOKEN_ALONE, OLD_KEY, OLD_CODE], ids=["token", "former key", "former code"])
def test_a_token_or_a_former_key_changes_nothing_of_a_registered_device(what: DeviceCommand) -> None:
    assert when_ios(of_ios(), what) is None


@pytest.mark.parametrize("what", [KEY, APP_SERVER], ids=["key", "app server"])
def test_a_registered_device_keeps_its_number_where_its_key_or_the_apps_server_registers_it(
    what: DeviceCommand,
) -> None:
    assert when_ios(of_ios(), what) == of_ios(registered_again_ms=LATER_MS)


def test_a_code_gives_the_registered_device_another_number_and_leaves_the_rest() -> None:
    changed = when_ios(of_ios(), CODE)
    assert changed == of_ios(number=FREE.number, former_numbers=[0, 2], registered_again_ms=LATER_MS)
    assert changed is not None
    assert when_ios(changed, CODE) is None, "a code serves once"


@pytest.mark.parametrize(
    ("what", "number", "former"),
    [
        (TOKEN_ALONE, FREE.number, [0, 2]),
        (OLD_KEY, FREE.number, [0, 2]),
        (CODE, FREE.number, [0, 2]),
        (KEY, 2, [0]),
        (APP_SERVER, 2, [0]),
    ],
    ids=["token", "former key", "code", "key", "app server"],
)
def test_a_removed_device_keeps_its_number_only_for_its_key_or_the_apps_server(
    what: DeviceCommand, number: int, former: list[int]
) -> None:
    again = when_ios(of_ios(removed_ms=LATER_MS, removed_reason="BadDeviceToken"), what)
    assert again is not None
    assert (again.number, list(again.former_numbers)) == (number, former)
    assert (again.HasField("alias"), list(again.tags), list(again.stags)) == (False, [], [])


@pytest.mark.parametrize("removed_ms", [0, LATER_MS])
def test_a_device_whose_key_was_revoked_is_registered_by_the_apps_server_alone(removed_ms: int) -> None:
    revoked = of_ios(removed_ms=removed_ms)
    for what in (TOKEN_ALONE, KEY, CODE, OLD_KEY):
        assert decide(what, revoked, IOS_APP, FREE, is_revoked=True) is None
    anew = decide(APP_SERVER, revoked, IOS_APP, FREE, is_revoked=True)
    assert anew is not None
    assert (anew.number, list(anew.former_numbers), anew.HasField("alias")) == (FREE.number, [0, 2], False)


def test_a_device_keeps_a_bounded_number_of_former_numbers() -> None:
    device = of_ios(number=MAX_FORMER_NUMBERS, former_numbers=range(MAX_FORMER_NUMBERS))
    changed = when_ios(device, with_authority(REGISTRATION_AUTHORITY_CODE, proven=MAX_FORMER_NUMBERS))
    assert changed is not None
    assert list(changed.former_numbers) == [*range(1, MAX_FORMER_NUMBERS + 1)]


def test_a_command_of_a_newer_writer_changes_nothing() -> None:
    assert when(given(), requested()) is None


def test_a_record_never_exceeds_the_largest_size() -> None:
    device = given(stags=[f"{number:040}" for number in range(MAX_DEVICE_BYTES // 42 - 20)])
    assert when(device, requested(add_stags=AddStags(stags=["one more"]))) is not None
    many = [f"x{number:039}" for number in range(100)]
    assert when(device, requested(add_stags=AddStags(stags=many))) is None


def test_what_shrinks_a_device_changes_it_though_its_record_is_full() -> None:
    device = given(alias="a", tags=[1], stags=[f"{number:040}" for number in range(MAX_DEVICE_BYTES // 42 - 4)])
    device.attributes.model = "m" * (MAX_DEVICE_BYTES - device.ByteSize() - 10)
    assert MAX_DEVICE_BYTES - 10 < device.ByteSize() <= MAX_DEVICE_BYTES
    for growing in (
        register(APP, "t", brand="b" * 20),
        requested(add_tags=AddTags(tags=range(20))),
        requested(add_stags=AddStags(stags=["x" * 20])),
        requested(set_attributes=SetAttributes(attributes=Attributes(brand="b" * 20))),
        set_alias(APP, "t", "a" * 20),
    ):
        assert when(device, growing) is None
    untagged = requested(remove_tags=RemoveTags(tags=[1])), requested(remove_stags=RemoveStags(stags=[f"{0:040}"]))
    for change in (clear_alias(APP, "t"), *untagged, requested(remove=RemoveDevice())):
        change.session = 1 << 60
        assert when(device, change) is not None


def test_deciding_does_not_change_the_known_device() -> None:
    device, before = given(tags=[1]), given(tags=[1])
    when(device, requested(add_tags=AddTags(tags=[2])))
    when(device, register(APP, "t", LATER_MS, model="X9"))
    assert device == before
