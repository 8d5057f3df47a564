"""What the instances of one simulated installation share, and how they and their callers find each other."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from services.domain.master_key import MasterKey
from services.domain.role_context import HAZARDOUS, ROLES_WITH_STANDBYS
from services.domain.topics import TOPICS
from services.log.archive.directory import ArchiveDirectory
from services.log.archive.log import ArchivedLog
from services.log.port import Log, Partition
from services.net.rpc.channel import Channel
from services.replica.instances import InstanceDirectory
from services.replica.owner_channel import OwnerChannel
from services.replica.peers import Peers
from tests.simulation.kernel.log.broker import Broker
from tests.simulation.kernel.log.client import SimulatedLog
from tests.simulation.kernel.network.channels import Network
from tests.simulation.kernel.world import World


@dataclass
class Installation:
    """What the instances of one simulated installation share. `shards` is the number of instances by role.

    With `has_owners` processes of roles with standbys own their partitions by the log, and callers find them there.
    With `has_archive` all of them read the archive of the log too.
    """

    world: World
    broker: Broker
    network: Network
    shards: dict[str, int]
    keys: MasterKey = field(default_factory=lambda: MasterKey(bytes(32)))
    has_owners: bool = False
    has_archive: bool = False

    def __post_init__(self) -> None:
        self._directory = InstanceDirectory()

    def peers(self) -> Peers:
        """Return channels of a process to all roles; the directory of the owners, if there is one, has to be run."""
        return self._peers(InstanceDirectory())

    def client_peers(self) -> Peers:
        """Return channels of the world's own code to all roles; `follow_owners` has to be run."""
        return self._peers(self._directory)

    async def follow_owners(self) -> None:
        """Find the owners for the world's own code, until cancelled."""
        await self._directory.run(self.log())

    def log(self) -> Log:
        """Return a client of the log, for a process or for the world's own code."""
        return self.archived_log() if self.has_archive else SimulatedLog(self.broker)

    def archived_log(self) -> ArchivedLog:
        return ArchivedLog(SimulatedLog(self.broker), ArchiveDirectory(self.archive_path))

    @property
    def archive_path(self) -> Path:
        return self.world.directory / "archive"

    def partitions(self) -> list[Partition]:
        """Return all partitions of the log."""
        count = self.broker.partitions
        return [Partition(topic.name, number) for topic in TOPICS.values() for number in range(topic.partitions(count))]

    def _peers(self, directory: InstanceDirectory) -> Peers:
        def channel(role: str, shard: int) -> Channel:
            name = process_name(role, shard)
            if not self.has_owners or role not in ROLES_WITH_STANDBYS:
                return self.network.channel(name)
            return cast(Channel, OwnerChannel(directory, role, shard, name, self.network.channel, HAZARDOUS))

        channels = {role: [channel(role, shard) for shard in range(count)] for role, count in self.shards.items()}
        return Peers(channels, TOPICS, directory if self.has_owners else None)


def process_name(role: str, shard: int) -> str:
    return f"{role}-{shard}"


def standby_name(role: str, shard: int) -> str:
    """Return the name of the second process of a shard: which of the two owns it follows from the log."""
    return f"{process_name(role, shard)}b"


def shard_of(name: str) -> str:
    """Return the name of the first process of the shard that the process of this name has."""
    return name.removesuffix("b")
