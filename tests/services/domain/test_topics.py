"""Topics and partitions: values that must never change, because stored logs depend on them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.domain.topics import TOPICS, device_key
from services.log.topics import owned, partition_of


@pytest.mark.parametrize(
    ("key", "of_1", "of_7", "of_32", "of_1024"),
    [
        (b"", 0, 0, 0, 0),
        (b"123456789", 0, 5, 6, 294),
        (device_key("1000000001", "token-1"), 0, 0, 4, 196),
        (device_key("2147483647", "0f" * 16), 0, 0, 13, 717),
        (device_key("1234567890", "设备"), 0, 6, 0, 96),
    ],
)
def test_a_key_keeps_its_partition_for_ever(key: bytes, of_1: int, of_7: int, of_32: int, of_1024: int) -> None:
    assert [partition_of(key, count) for count in (1, 7, 32, 1024)] == [of_1, of_7, of_32, of_1024]


def test_a_device_key_is_its_app_and_its_token() -> None:
    assert device_key("1000000001", "设备") == b"1000000001/\xe8\xae\xbe\xe5\xa4\x87"


@given(partitions=st.integers(1, 1024), shards=st.integers(1, 64))
def test_every_partition_has_one_owner(partitions: int, shards: int) -> None:
    shares = [owned(partitions, shard, shards) for shard in range(shards)]
    assert sorted(partition for share in shares for partition in share) == list(range(partitions))
    assert all(partition % shards == shard for shard, share in enumerate(shares) for partition in share)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_the_names_and_shapes_of_the_topics_never_change() -> None:
    assert {name: (topic.single, topic.compacted) for name, topic in TOPICS.items()} == {
        "device-commands": (False, False),
        "push-commands": (True, False),
        "task-commands": (False, False),
        "apps": (True, True),
        "keys": (True, True),
        "devices": (False, True),
        "sessions": (False, False),
        "tasks": (False, False),
        "pushes": (False, False),
        "deliveries": (False, False),
        "message-ids": (True, False),
        "request-nonces": (True, False),
        "refusals": (True, False),
        "instances": (True, True),
        "accounts": (True, False),
        "log-ins": (True, False),
        "drafts": (True, False),
        "push-ends": (True, False),
        "processes": (True, True),
        "erasures": (True, False),
    }
    assert [topic.partitions(32) for topic in TOPICS.values()] == [
        32,
        1,
        32,
        1,
        1,
        32,
        32,
        32,
        32,
        32,
        1,
        1,
        1,
        1,
        1,
        1,
        1,
        1,
        1,
        1,
    ]
