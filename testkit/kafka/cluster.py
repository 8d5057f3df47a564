"""A Kafka cluster of several brokers as child processes, from which single clients can be cut off."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from aiokafka.admin import AIOKafkaAdminClient

from testkit.faults.stalling_proxy import StallingProxy, stalling_proxy
from testkit.kafka.broker import KafkaBroker, Member, Security, new_cluster_id
from testkit.ports import free_ports

SESSION_MS = 6000
"""How long the cluster waits for a broker's heartbeat; then others lead its partitions."""

_SETTINGS = f"""\
controller.quorum.fetch.timeout.ms=5000
broker.heartbeat.interval.ms=1000
broker.session.timeout.ms={SESSION_MS}
"""


class KafkaCluster:
    """Brokers of one cluster; each has a listener behind a proxy for each name of `proxied`."""

    def __init__(self, directory: Path, count: int = 3, proxied: Sequence[str] = ()) -> None:
        cluster, controllers = new_cluster_id(), free_ports(count)
        self._proxied = [dict(zip(proxied, free_ports(len(proxied)), strict=True)) for _ in range(count)]
        self.brokers = [
            KafkaBroker(
                directory / f"broker-{node}", Security(settings=_SETTINGS), Member(cluster, node, controllers, ports)
            )
            for node, ports in enumerate(self._proxied, 1)
        ]
        self.proxied = frozenset(proxied)
        self._proxies: dict[str, list[StallingProxy]] = {name: [] for name in proxied}

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers)

    def bootstrap_of(self, name: str) -> str:
        """Return the addresses of the proxies of this name."""
        return ",".join(f"127.0.0.1:{ports[name]}" for ports in self._proxied)

    def start(self) -> None:
        """Start all brokers; return once each serves clients."""
        for broker in self.brokers:
            broker.launch()
        for broker in self.brokers:
            broker.wait_until_ready()

    def stop(self) -> None:
        """Kill the brokers that run: the data is not used again."""
        for broker in self.brokers:
            if broker.running:
                broker.kill()

    @contextlib.asynccontextmanager
    async def proxies(self) -> AsyncIterator[None]:
        """Run the proxies in this event loop."""
        async with contextlib.AsyncExitStack() as stack:
            for broker, ports in zip(self.brokers, self._proxied, strict=True):
                for name, port in ports.items():
                    target = int(broker.at(name).rpartition(":")[2])
                    self._proxies[name].append(await stack.enter_async_context(stalling_proxy(target, port)))
            yield

    def cut_off(self, name: str) -> None:
        """Stop all data between the brokers and the clients that use the proxies of this name."""
        for proxy in self._proxies[name]:
            proxy.stall()

    def connect(self, name: str) -> None:
        """Pass data on again for the clients that `cut_off` has disconnected."""
        for proxy in self._proxies[name]:
            proxy.flow()

    def leader(self, topic: str) -> KafkaBroker:
        """Return the broker that leads the first partition of a topic."""
        return self.brokers[asyncio.run(_leader(self.bootstrap, topic)) - 1]


async def _leader(bootstrap: str, topic: str) -> int:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        await admin.start()
        (described,) = await admin.describe_topics([topic])
        return int(next(each["leader"] for each in described["partitions"] if each["partition"] == 0))
    finally:
        await admin.close()
