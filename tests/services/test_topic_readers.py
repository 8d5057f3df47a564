"""`Topic.readers` names, of each role that a caller waits for, exactly the instances that read a partition."""

from pathlib import Path
from typing import Any

import pytest

from services.domain.topics import TOPICS
from services.log.port import Partition
from services.log.sqlite.log import SqliteLog
from services.log.topics import Topic
from services.registry import main as registry
from services.registry.settings import RegistrySettings
from services.scheduling import main as scheduling
from services.scheduling.settings import SchedulingSettings
from services.targeting import main as targeting
from services.targeting.settings import TargetingSettings

PARTITIONS = 7
INSTANCES = 3
ROLES = {
    "registry": (registry, RegistrySettings),
    "scheduling": (scheduling, SchedulingSettings),
    "targeting": (targeting, TargetingSettings),
}
AWAITED = [(topic, role) for topic in TOPICS.values() if not topic.single for role in topic.answered_by]


async def partitions_read(role: str, log: SqliteLog, directory: Path, number: int) -> set[Partition]:
    main: Any
    settings: Any
    main, settings = ROLES[role]
    state = main.open_state(
        settings(data_dir=str(directory), partitions=PARTITIONS, shard=number, shards=INSTANCES), directory, log
    )
    try:
        return {partition for follower in state.followers for partition in follower.followed.partitions}
    finally:
        state.close()


@pytest.mark.parametrize(("topic", "role"), AWAITED, ids=[f"{topic.name}-{role}" for topic, role in AWAITED])
async def test_the_readers_of_a_partition_are_the_instances_that_follow_it(
    topic: Topic, role: str, tmp_path: Path
) -> None:
    log = SqliteLog(tmp_path / "log.db", TOPICS)
    read = [await partitions_read(role, log, tmp_path / str(number), number) for number in range(INSTANCES)]
    await log.close()
    for partition in range(PARTITIONS):
        following = [number for number in range(INSTANCES) if Partition(topic.name, partition) in read[number]]
        assert list(topic.readers(role, partition, INSTANCES)) == following


def test_every_instance_reads_a_topic_of_one_partition() -> None:
    for topic in TOPICS.values():
        if topic.single:
            assert all(list(topic.readers(role, 0, INSTANCES)) == [0, 1, 2] for role in topic.answered_by)
