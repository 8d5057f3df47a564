"""One run of the ledger test on a cluster, with a row of figures for each fault."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from testkit.installation.cluster import PROXIED, ClusterInstallation
from testkit.installation.former_version import code_of
from testkit.kafka.cluster import KafkaCluster
from tests.soak.cluster.disk import SmallDisk, can_mount, small_disk
from tests.soak.cluster.errors import errors
from tests.soak.cluster.fault_rows import Row, rows
from tests.soak.cluster.faults import CUT_OFF, ClusterFaults, cut_off, full_disk, is_wanted
from tests.soak.cluster.measured_interface import MeasuredInterface, MeasuredRequest
from tests.soak.ledger import Ledger
from tests.soak.plan import Plan, Verdict
from tests.soak.pushes import Mixture
from tests.soak.run import Soak

UNICASTS = 20
"""Pushes to single devices for each push to many, unless another number is given."""

BROKERS = 3
"""Kafka brokers, unless another number is given; with one, faults of brokers are left out."""

_SPEEDS = (50, 1000)
_IN_FLIGHT = 400
_ACTING = 20
_DISKS = ("registry", "delivery")


class ClusterVerdict(NamedTuple):
    """The result of a run: that of the ledger test, the figures of each fault, and a line for each wrong answer."""

    verdict: Verdict
    rows: Sequence[Row]
    errors: Sequence[str]


def plan(seconds: float, devices: int, rate: float, seed: int, unicasts: int = UNICASTS) -> Plan:
    """Return a plan with `unicasts` unicasts for each push to many, and with mostly steady devices."""
    acting = min(_ACTING, devices)
    return Plan(seconds, acting, rate, seed, devices - acting, _IN_FLIGHT, Mixture(unicasts, _SPEEDS))


async def run(
    plan: Plan,
    directory: Path,
    wanted: Sequence[str] = (),
    former_commit: str | None = None,
    brokers: int = BROKERS,
) -> ClusterVerdict:
    """Run all faults, or those whose names begin with one of `wanted`.

    With a `former_commit` all processes begin with its code, and are upgraded first.
    """
    requests: list[MeasuredRequest] = []
    injectors: list[ClusterFaults] = []
    proxied = any(is_wanted(cut_off(role), wanted) for role in CUT_OFF)  # proxies use CPU time
    cluster = KafkaCluster(directory / "kafka", brokers, tuple(PROXIED.values()) if proxied else ())
    with contextlib.ExitStack() as stack:
        stack.callback(cluster.stop)
        await asyncio.to_thread(cluster.start)
        former = await asyncio.to_thread(code_of, former_commit, directory / "former") if former_commit else None
        installation = ClusterInstallation(directory / "data", cluster, former)
        stack.callback(installation.close)
        disks = _disks(installation, wanted, stack)
        installation.start_balancer()

        def faults(ledger: Ledger) -> ClusterFaults:
            injectors.append(ClusterFaults(installation, cluster, disks, ledger, wanted))
            return injectors[0]

        soak = Soak(plan, directory, installation, faults, lambda url: MeasuredInterface(url, requests))
        async with cluster.proxies(), injectors[0].supervised():
            verdict = await soak.run()
        lines = list(errors(requests, directory / "data"))
    return ClusterVerdict(verdict, rows(verdict.observed, injectors[0].phases, requests), lines)


def _disks(
    installation: ClusterInstallation, wanted: Sequence[str], stack: contextlib.ExitStack
) -> Mapping[str, SmallDisk]:
    """Return a small disk for the state of each role whose disk is to be filled, if this user can mount any."""
    roles = [role for role in _DISKS if can_mount() and is_wanted(full_disk(role), wanted)]
    return {role: stack.enter_context(small_disk(installation.state_directory(role))) for role in roles}
