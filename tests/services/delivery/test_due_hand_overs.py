"""What is due costs nothing for connected devices, and large audiences are looked at in slices."""

from types import SimpleNamespace
from typing import Any

import pytest
from pyroaring import BitMap

from protos.push.v1.push_pb2 import Audience, Everyone, Message, SendPush
from services.delivery import due_hand_overs
from services.delivery.due_hand_overs import Claim, DueHandOvers
from services.delivery.settings import DeliverySettings
from services.delivery.state.audience_parts import BitmapAudience, DeviceAddress, ListedAudience
from services.delivery.state.delivery_state import DeliveryState
from services.delivery.state.pushes import PackedPushes, SinglePush, StartedPush
from services.domain.settings import SettingsError, load
from testkit.delivery.records import APP, OTHER_APP, START_MS

GRACE_MS = 15_000
MANY = 100_000
APP_PARTITION = (APP, 0)


class Setup:
    """The decision with one channel, and a presence and a recorder that a test sets."""

    def __init__(self, addressed: BitMap) -> None:
        self.state = DeliveryState([0])
        self.connections: dict[int, Any] = {}
        self.claimed: dict[int, BitMap] = {}
        self.free = MANY
        presence: Any = SimpleNamespace(connections=lambda _: self.connections)
        recorder: Any = SimpleNamespace(
            has_unwritten_claims=False,
            unwritten_claims=lambda _, msgid: self.claimed.get(msgid, BitMap()),
            has_unwritten_final=lambda *_: False,
        )
        channels: Any = SimpleNamespace(
            is_any_usable=True,
            of_app=lambda appkey: (1,) if appkey == APP else (),
            usable=lambda appkey: (1,) if appkey == APP else (),
            can_carry=lambda *_: True,
            addressed=lambda *_: addressed,
            route=lambda _: 0,
        )
        self.due = DueHandOvers(self.state, presence, recorder, lambda _: False, channels, GRACE_MS)

    def broadcast(self, devices: BitMap) -> StartedPush:
        send = SendPush(msgid=1000, appkey=APP, audience=Audience(everyone=Everyone()), message=Message(content="x"))
        push = StartedPush(send, 0, START_MS + 10**9, {0: BitmapAudience(1000, devices, BitMap())})
        self.state.restore(push)
        self.due.start(push, [0])
        return push

    def take(self, now_ms: int) -> list[Claim]:
        claims = self.due.take(now_ms, lambda *_: self.free)
        for claim in claims:
            self.claimed[claim.msgid] = self.claimed.get(claim.msgid, BitMap()) | claim.numbers
        return claims

    def take_all(self, now_ms: int) -> list[BitMap]:
        """Take until nothing is left at this time; return the devices of each call."""
        taken = []
        while (self.due.next_ms(now_ms) or now_ms + 1) <= now_ms:
            taken.append(BitMap().union(*(claim.numbers for claim in self.take(now_ms))))
        return taken


def test_ten_thousand_phones_that_come_back_within_the_grace_cause_nothing_and_leave_nothing() -> None:
    phones = BitMap(range(10_000))
    made = Setup(phones)
    made.due.begin(START_MS)
    made.connections = dict.fromkeys(phones)
    made.broadcast(phones)
    now_ms = START_MS + GRACE_MS
    assert not any(made.take_all(now_ms))
    for _ in range(3):
        now_ms += 30_000
        for number in phones:
            del made.connections[number]
            made.due.left(DeviceAddress(APP, 0, number), now_ms)
        assert not any(made.take_all(now_ms + GRACE_MS - 1))
        for number in phones:
            made.connections[number] = None
            made.due.came(DeviceAddress(APP, 0, number))
        assert not any(made.take_all(now_ms + 2 * GRACE_MS))
    assert not made.due._absent
    assert not made.due._graces
    assert not made.due._work


def test_phones_whose_grace_is_over_get_it_and_the_connected_do_not() -> None:
    phones = BitMap(range(3000))
    made = Setup(phones)
    made.due.begin(START_MS)
    made.connections = dict.fromkeys(phones)
    made.broadcast(phones)
    left = BitMap(range(0, 3000, 2))
    for number in left:
        del made.connections[number]
        made.due.left(DeviceAddress(APP, 0, number), START_MS)
    assert made.take(START_MS + GRACE_MS - 1) == []
    assert BitMap().union(*made.take_all(START_MS + GRACE_MS)) == left


def test_a_phone_whose_address_becomes_known_after_it_has_left_gets_nothing_within_the_grace() -> None:
    addressed = BitMap()
    made = Setup(addressed)
    made.due.begin(START_MS - GRACE_MS)
    made.broadcast(BitMap([1, 2]))
    made.due.left(DeviceAddress(APP, 0, 1), START_MS)
    made.due.left(DeviceAddress(APP, 0, 2), START_MS)
    addressed.add(1)
    made.due.look_at_devices(APP_PARTITION, addressed)
    assert not any(made.take_all(START_MS + GRACE_MS - 1))
    assert BitMap().union(*made.take_all(START_MS + GRACE_MS)) == addressed


def test_a_phone_of_an_app_without_channels_leaves_nothing() -> None:
    made = Setup(BitMap())
    made.due.left(DeviceAddress(OTHER_APP, 0, 1), START_MS)
    assert not made.due._absent
    assert not made.due._graces


def test_a_broadcast_to_many_addresses_is_looked_at_in_slices() -> None:
    made = Setup(BitMap(range(MANY)))
    made.due.begin(START_MS)
    made.broadcast(BitMap(range(MANY)))
    taken = made.take_all(START_MS + GRACE_MS)
    assert max(map(len, taken)) == due_hand_overs._SLICE
    assert BitMap().union(*taken) == BitMap(range(MANY))
    assert sum(map(len, taken)) == MANY


def test_without_room_the_rest_waits_and_costs_nothing() -> None:
    made = Setup(BitMap(range(MANY)))
    made.due.begin(START_MS)
    made.broadcast(BitMap(range(MANY)))
    made.free = 7
    now_ms = START_MS + GRACE_MS
    assert [len(claim.numbers) for claim in made.take(now_ms)] == [7]
    made.free = 0
    assert made.take(now_ms) == []
    assert made.due.next_ms(now_ms) is None
    made.free = 5
    assert [len(claim.numbers) for claim in made.take(now_ms)] == [5]
    made.free = MANY
    while claims := made.take(now_ms):
        assert len(claims[0].numbers) <= due_hand_overs._SLICE
    assert made.claimed[1000] == BitMap(range(MANY))


@pytest.mark.parametrize(("appkey", "number", "is_unpacked"), [(APP, 1, True), (APP, 2, False), (OTHER_APP, 1, False)])
def test_a_push_from_a_snapshot_is_unpacked_only_where_a_channel_reaches_its_device(
    appkey: str, number: int, is_unpacked: bool
) -> None:
    made = Setup(BitMap([1]))
    send = SendPush(msgid=1000, appkey=appkey, message=Message(content="x"))
    send.audience.devices.SetInParent()
    single = SinglePush(1000, appkey, 0, number, 0, START_MS + 10**9, send.SerializeToString())
    made.state.restore_packed(PackedPushes([single]))
    made.due.begin(START_MS)
    taken = made.take_all(START_MS + GRACE_MS)
    assert any(taken) == is_unpacked
    assert (made.state.started.packed(1000) is None) == is_unpacked
    if is_unpacked:
        assert isinstance(made.state.started[1000].active_parts[0], ListedAudience)


@pytest.mark.parametrize("seconds", [-1, 0, 1, 4, 3601])
def test_a_grace_in_which_a_message_may_still_be_on_its_way_is_refused(seconds: int) -> None:
    """With 1 s a device showed messages that a channel was given too."""
    with pytest.raises(SettingsError, match=f"^CARILLON_CHANNEL_GRACE_S is {seconds}; it must be 5 to 3600 seconds, "):
        load(DeliverySettings, {"CARILLON_CHANNEL_GRACE_S": str(seconds)})


def test_the_shortest_and_the_longest_grace_are_accepted() -> None:
    for seconds in (5, 3600):
        assert load(DeliverySettings, {"CARILLON_CHANNEL_GRACE_S": str(seconds)}).channel_grace_s == seconds
