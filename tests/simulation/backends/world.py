"""A world of registry, targeting, scheduling, delivery and accounts under a driver's load and faults."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from services.accounts.main import ROLE as ACCOUNTS
from services.delivery.main import ROLE as DELIVERY
from services.delivery.settings import INTERNET
from services.domain.topics import TOPICS
from services.registry.main import ROLE as REGISTRY
from services.scheduling.main import ROLE as SCHEDULING
from services.targeting.main import ROLE as TARGETING
from testkit.delivery.settings import NO_VENDORS
from tests.simulation.backends import earlier_logs
from tests.simulation.backends.accounts.checks import AccountHistory, account_findings, final_accounts, undone_drafts
from tests.simulation.backends.accounts.ledger import AccountsLedger
from tests.simulation.backends.accounts.people import People
from tests.simulation.backends.audience_checks import missing_devices
from tests.simulation.backends.checks import answered_and_lost, replays_unequal, until_settled
from tests.simulation.backends.driver import Driver
from tests.simulation.backends.fact_checks import BOUND_MS, StoredFacts, fact_findings, failed_while_calm
from tests.simulation.backends.final_states import final_states
from tests.simulation.backends.plan import Plan, faults_of, plan_of
from tests.simulation.backends.successions import not_taken_over
from tests.simulation.kernel.faults import Fault, Faults, latest_end_s, needs_archive
from tests.simulation.kernel.hosts import RoleHost, is_superseded
from tests.simulation.kernel.installation import Installation, process_name, standby_name
from tests.simulation.kernel.latency import Latency
from tests.simulation.kernel.log.behaviour import Behaviour
from tests.simulation.kernel.log.broker import Broker
from tests.simulation.kernel.log.losses import KINDS, is_explained
from tests.simulation.kernel.network.channels import Network
from tests.simulation.kernel.world import THREAD_S, LoggedError, World
from tests.simulation.model.outages import Outages
from tests.simulation.model.rival_owners import RivalOwners

ROLES = (REGISTRY, TARGETING, SCHEDULING, DELIVERY, ACCOUNTS)
SETTLE_S = 180.0
"""How long the roles may take, once all faults are over, until nothing is left to do."""

_LOG_S, _NETWORK_S = 0.001, 0.0005
"""What a step of a request to the log and a message between roles usually take."""

_TAIL_S = 12.0
"""How long after an outage things may still take longer: attempts are repeated after up to 10 s."""

_NO_SIMULATORS = {"delivery": {**NO_VENDORS, "webpush": INTERNET}}
"""There are no iOS devices, and no app has credentials of a channel; so set, delivery starts no simulators."""


class Backends:
    """The kind of world with these roles; see running.Kind. `faults_per_world` is the mean number in a long world.

    `on_end` is called with the log in the end. `plan` None: the one that the seed chooses.
    """

    def __init__(
        self,
        faults_per_world: int = 10,
        on_end: Callable[[Broker], object] = lambda broker: None,
        plan: Plan | None = None,
    ) -> None:
        self._mean = faults_per_world
        self._on_end = on_end
        self._plan = plan

    def faults(self, seed: int) -> list[Fault]:
        return faults_of(seed, self._mean)

    async def run(self, world: World, faults: Sequence[Fault]) -> list[str]:
        plan = self._plan or plan_of(world.seed)
        behaviour = Behaviour(world.random("log"), plan.slowness * _LOG_S)
        history = AccountHistory(world.note_stored)
        stored = StoredFacts(history.note)
        rivals = RivalOwners(stored.note, world.loop.time, lambda: broker)
        broker = Broker(TOPICS, plan.partitions, behaviour, rivals.note)
        if plan.begins_with:
            earlier_logs.fill(broker, plan.begins_with)
        network = Network(world, Latency(world.random("network delays"), plan.slowness * _NETWORK_S))
        world.loop.threads.delay_s = Latency(world.random("slow threads"), plan.slowness * THREAD_S)
        installation = Installation(
            world,
            broker,
            network,
            dict(plan.shards),
            has_owners=plan.has_owners,
            has_archive=needs_archive(faults),
        )
        hosts = [
            RoleHost(installation, role, shard, name, snapshot_s=plan.snapshot_s, **_NO_SIMULATORS.get(role.name, {}))
            for role in ROLES
            for shard in range(installation.shards.get(role.name, 0))
            for name in (process_name(role.name, shard), standby_name(role.name, shard))
            if name in plan.hosts
        ]
        following = asyncio.create_task(installation.follow_owners()) if plan.has_owners else None
        running = [asyncio.create_task(host.run(), name=host.name) for host in hosts]
        injected = Faults(installation, hosts)
        driver = Driver(installation, world.random("driver"), plan.rate, few_devices=plan.has_few_devices)
        await driver.begin()
        begun_s = world.loop.time()
        dated = [replace(fault, at_s=begun_s + fault.at_s) for fault in faults]
        injected.inject(dated)
        until_s, answered = begun_s + plan.load_s, AccountsLedger()
        people = [
            People(installation, appkey, driver.new_push, (driver.ledger, answered), world.random(f"people {number}"))
            for number, appkey in enumerate(driver.apps if plan.has_accounts else ())
        ]
        await asyncio.gather(driver.run(until_s, plan.tasks_due_s), *(each.run(until_s, plan.rate) for each in people))
        injected.heal()
        restored_s = latest_end_s(fault for fault in dated if fault.kind in KINDS)
        await asyncio.sleep(max(0, restored_s - world.loop.time()))
        findings = await until_settled(installation, hosts, SETTLE_S, lambda: undone_drafts(history))
        findings += [] if findings else await final_states(installation)
        findings += await final_accounts(installation, history) if plan.has_accounts and not findings else []
        findings += [] if findings else await not_taken_over(installation, hosts)
        if plan.has_owners and not findings:
            findings += await final_states(installation)  # of the processes that have taken over
        await asyncio.gather(*(host.stop() for host in reversed(hosts)))
        await asyncio.gather(*running)
        if following:
            following.cancel()
        findings += [*answered_and_lost(installation, driver.ledger), *account_findings(history, answered)]
        outages = Outages(hosts, dated, _TAIL_S)
        findings += fact_findings(installation, driver.ledger, stored, faults, outages, plan.slowness * BOUND_MS)
        findings += failed_while_calm(driver.ledger, outages) if plan.slowness == 1 else []
        findings += missing_devices(broker, driver.ledger)
        findings += [f"owners: {each}" for each in rivals.found(dated, plan.slowness, injected.healed_s)]
        findings += await replays_unequal(installation, hosts)
        self._on_end(broker)
        return findings + [
            f"error: {each.process}: {each.text} {each.details}"
            for each in world.errors
            if not (_expected(each) or is_explained(each, (fault.kind for fault in faults)))
        ]


def _expected(error: LoggedError) -> bool:
    """Return whether faults explain the error: a push fails when its time to live is over before it can start, and an
    owner of delivery ends when it has a successor."""
    return is_superseded(error) or (error.text == "a push failed" and "its time to live was over" in error.details)
