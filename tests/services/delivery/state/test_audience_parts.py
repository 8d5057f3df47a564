"""An instance of delivery creates objects only for its own part of a push's list of targets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.push.v1.push_pb2 import SendPush
from services.delivery.state.audience_parts import listed_targets
from testkit.delivery.records import NumberedDevice, listed_audience

_DEVICES = st.builds(NumberedDevice, st.integers(0, 40), st.integers(0, 9))


@given(
    devices=st.lists(_DEVICES, max_size=120),
    wanted=st.frozensets(st.integers(0, 40)),
    own_ids=st.booleans(),
)
def test_the_wanted_partitions_have_the_targets_that_they_have_among_all(
    devices: list[NumberedDevice], wanted: frozenset[int], own_ids: bool
) -> None:
    push = SendPush(msgid=7000, audience=listed_audience(*devices, own_ids=own_ids))
    listed = listed_targets(push)
    assert listed_targets(push, wanted) == {
        partition: targets for partition, targets in listed.items() if partition in wanted
    }
    assert {(each.partition, each.number) for each in devices} == {
        (partition, number) for partition, targets in listed.items() for number in targets
    }


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize("column", ["partitions", "numbers", "id_offsets"])
def test_columns_of_unequal_length_are_refused(column: str, count: int) -> None:
    push = SendPush(msgid=7000, audience=listed_audience(*[NumberedDevice(0, number) for number in range(count)]))
    setattr(push.audience.devices, column, getattr(push.audience.devices, column)[:-1])
    with pytest.raises(ValueError, match="push 7000"):
        listed_targets(push, {0})
