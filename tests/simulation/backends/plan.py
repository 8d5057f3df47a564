"""Derives the plan of a world of roles from its seed: its size, its instances, and its faults."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from services.domain.role_context import ROLES_WITH_STANDBYS
from tests.simulation.backends.earlier_logs import PARTITIONS, versions
from tests.simulation.backends.situations import situation_of
from tests.simulation.kernel.fault_lists import (
    brief_faults,
    fewer_steps,
    owner_faults,
    power_faults,
    split_faults,
    swarm_faults,
)
from tests.simulation.kernel.faults import Fault
from tests.simulation.kernel.installation import process_name, standby_name
from tests.simulation.kernel.log.old_record_faults import archive_faults, is_losing, loss_faults

_SHORT = ((12.0, 0.5), (12.0, 2.0), (8.0, 4.0), (4.0, 12.0))
"""How long the load lasts, and commands a second of each client, in short worlds."""

_LONG_S = 60.0
_BRIEF = 0.8
"""Share of the worlds without a situation that are brief."""

_LONG = 0.1
"""Share of the worlds that are long."""

_OWNERS_EVERY, _OWNERS_REST = 4, 2
"""The seeds whose worlds have owners, unless they have a situation."""

_STANDBY = 0.7
"""Share of the shards that have a standby in worlds with owners."""

_SPLIT = 0.4
"""Share of the worlds with owners in which a part of the hosts does not reach a part of the log for a while."""

_ARCHIVED = 0.25
"""Share of the worlds without a situation in which old records are archived."""

_EARLIER_LOG = 0.2
"""Share of the worlds without a situation, and with as many partitions, that begin with the log of a release."""

_ACCOUNTS = 0.3
"""Share of the worlds without a situation in which people change users, teams and drafts."""

_OF_ACCOUNTS = 0.5
"""Share of the faults in these worlds that happen to accounts, if they may happen to any role."""

_OF_ANY_ROLE = frozenset(
    {
        "kill",
        "kill_after_steps",
        "kill_at_append",
        "cut_power",
        "lose_disk",
        "pause",
        "down",
        "log_cut_off",
        "set_clock",
    }
)
"""Kinds of faults that any role may have."""

_FEW_FAULTS = (0, 1, 1, 2, 3)
_ROLES = ("registry", "targeting", "scheduling", "delivery")


@dataclass(frozen=True)
class Plan:
    """One world. `shards`: the number of instances by role. `rate`: commands a second of each client.

    `slowness`: how many times longer than usual the log, the network and threads take. `tasks_due_s` and
    `has_few_devices` as for Situation. `has_owners` as for Installation, `standbys`: the second processes of shards.
    `begins_with`: the release that wrote what the log holds in the beginning; "" for an empty log.
    """

    shards: Mapping[str, int]
    partitions: int
    load_s: float
    rate: float
    snapshot_s: int
    slowness: int
    tasks_due_s: float | None = None
    has_few_devices: bool = False
    has_owners: bool = False
    standbys: Sequence[str] = ()
    begins_with: str = ""

    @property
    def has_accounts(self) -> bool:
        return "accounts" in self.shards

    @property
    def has_ios(self) -> bool:
        return False

    @property
    def hosts(self) -> Sequence[str]:
        first = [process_name(role, shard) for role, count in self.shards.items() for shard in range(count)]
        return [*first, *self.standbys]

    @property
    def owners(self) -> Sequence[str]:
        """The processes that may own a shard beside others."""
        return [name for name in self.hosts if name.partition("-")[0] in ROLES_WITH_STANDBYS]


def plan_of(seed: int) -> Plan:
    """Return the plan of a seed: most are brief and few of the others long, which finds more in the same time."""
    random = Random(f"{seed}/plan")
    is_long = random.random() < _LONG
    load_s, rate = (_LONG_S, 2.0) if is_long else random.choice(_SHORT)
    plan = Plan(
        shards={role: random.choice([1, 2]) for role in _ROLES},
        partitions=4 if is_long else random.choice((2, 4)),
        load_s=load_s,
        rate=rate,
        snapshot_s=20 if is_long else random.choice((1, 2, 5, 20)),
        slowness=random.choice((1, 1, 1, 8)),
    )
    if is_brief(seed):
        plan = _briefly(plan, Random(f"{seed}/brief plan"))
    if (situation := situation_of(seed)) is None:
        if Random(f"{seed}/accounts").random() < _ACCOUNTS:
            plan = replace(plan, shards={**plan.shards, "accounts": 1})
        plan = _with_earlier_log(plan, Random(f"{seed}/earlier log"))
        return _with_owners(plan, Random(f"{seed}/owners"), _STANDBY) if seed % _OWNERS_EVERY == _OWNERS_REST else plan
    plan = replace(
        plan,
        shards={**plan.shards, **situation.shards},
        load_s=situation.load_s,
        rate=situation.rate,
        tasks_due_s=situation.tasks_due_s,
        has_few_devices=situation.has_few_devices,
    )
    return _with_owners(plan, Random(f"{seed}/owners"), 1.0) if situation.has_owners else plan


def is_brief(seed: int) -> bool:
    return situation_of(seed) is None and Random(f"{seed}/brief").random() < _BRIEF


def _briefly(plan: Plan, random: Random) -> Plan:
    """Return the plan with few processes and a short load."""
    twice = random.choice((*_ROLES, *[""] * len(_ROLES)))
    return replace(
        plan,
        shards={role: 1 + (role == twice) for role in _ROLES},
        partitions=2,
        load_s=random.choice((1.5, 3.0)),
        rate=random.choice((4.0, 12.0)),
        snapshot_s=random.choice((1, 1, 2, 20)),
    )


def faults_of(seed: int, mean: int) -> list[Fault]:
    """Return the faults of a seed: those of its situation, up to twice the mean in a long world, else a few."""
    if (situation := situation_of(seed)) is not None:
        return list(situation.faults) if mean else []
    if not mean:
        return []
    plan = plan_of(seed)
    faults = [*_usual_faults(seed, plan, mean), *_archiving(seed, plan), *power_faults(seed, plan)]
    if plan.has_accounts:
        random = Random(f"{seed}/faults of accounts")
        faults = [_of_accounts(fault) if random.random() < _OF_ACCOUNTS else fault for fault in faults]
    faults += loss_faults(Random(f"{seed}/losses"), plan, faults) if is_losing(seed) else []
    return sorted(faults, key=lambda fault: fault.at_s)


def _of_accounts(fault: Fault) -> Fault:
    return replace(fault, target=process_name("accounts", 0)) if fault.kind in _OF_ANY_ROLE else fault


def _archiving(seed: int, plan: Plan) -> list[Fault]:
    random = Random(f"{seed}/archive")
    return archive_faults(random, plan) if random.random() < _ARCHIVED else []


def _usual_faults(seed: int, plan: Plan, mean: int) -> list[Fault]:
    random = Random(f"{seed}/faults")
    if is_brief(seed):
        return _brief_faults(plan, random)
    count = random.randrange(2 * mean + 1) if plan.load_s == _LONG_S else min(random.choice(_FEW_FAULTS), 2 * mean)
    if not plan.has_owners:
        return swarm_faults(random, plan, plan.hosts, count)
    changes = owner_faults(random, plan, random.choice((1, 2, 4)))
    others = swarm_faults(random, plan, plan.hosts, random.choice((0, 0, count)))
    others += split_faults(random, plan) if random.random() < _SPLIT else []
    return [*changes, *others]


def _brief_faults(plan: Plan, random: Random) -> list[Fault]:
    if not plan.has_owners:
        return brief_faults(random, plan)
    return [fewer_steps(fault) for fault in owner_faults(random, plan, random.choice((1, 2)))]


def _with_earlier_log(plan: Plan, random: Random) -> Plan:
    if plan.partitions != PARTITIONS or not versions() or random.random() >= _EARLIER_LOG:
        return plan
    return replace(plan, begins_with=random.choice(versions()))


def _with_owners(plan: Plan, random: Random, share: float) -> Plan:
    """Return the plan with owners, and with standbys for this share of their shards."""
    shards = [(role, shard) for role in sorted(ROLES_WITH_STANDBYS) for shard in range(plan.shards[role])]
    standbys = [standby_name(role, shard) for role, shard in shards if random.random() < share]
    return replace(plan, has_owners=True, standbys=standbys)
