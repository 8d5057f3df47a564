"""Each kind of fault takes effect, and worlds find a service that does not tolerate it."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from edge.core import message_ids
from edge.core.signature import AppRef, Secrets, SignatureVerifier
from protos.runtime.v1.claims_pb2 import MessageIdClaim
from services.domain.apps import AppDirectory
from services.domain.settings import Settings
from services.errors import UnavailableError
from services.log.port import Partition
from services.process.crashpoint import Point
from services.replica import sqlite_store
from services.replica.fencing import Fencing
from services.replica.snapshot import SnapshotFile
from services.replica.sqlite_store import SqliteStore
from tests.simulation.backends import plan as roles
from tests.simulation.backends.world import Backends
from tests.simulation.kernel.disk import Disk
from tests.simulation.kernel.fault_lists import Setting, _point
from tests.simulation.kernel.faults import Fault
from tests.simulation.kernel.running import Kind, run_world
from tests.simulation.kernel.world import World
from tests.simulation.world.run import InstallationWorld
from tests.simulation.world.seeds import faults as installation_faults
from tests.simulation.world.seeds.plans import plan_of as installation_plan_of

PART = Partition("offsets", 0)
DDL = "CREATE TABLE rows (number INTEGER);"


def committed(store: SqliteStore, number: int) -> None:
    store.begin()
    store.rows.execute("INSERT INTO rows VALUES (?)", (number,))
    store.commit({PART: number})


def test_only_the_process_with_a_full_disk_cannot_write_and_it_writes_again_later(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        is_full = False

        async def write(name: str, number: int) -> None:
            store = SqliteStore(tmp_path / name, DDL)
            committed(store, number)
            store.close()

        process, other = world.process("full", lambda: is_full), world.process("other")
        await process.start(write("state", 1))
        snapshot = SnapshotFile(tmp_path / "snapshot", 1)
        is_full = True

        async def fail() -> None:
            with pytest.raises(UnavailableError, match="database or disk is full"):
                await write("state", 2)
            with pytest.raises(UnavailableError, match="database or disk is full"):
                snapshot.save({}, [])
            with pytest.raises(UnavailableError, match="database or disk is full"):
                await write("new", 1)

        await process.start(fail())
        await other.start(write("state of another", 2))
        is_full = False
        await process.start(write("state", 3))
        store = SqliteStore(tmp_path / "state", DDL)
        assert store.rows.execute("SELECT number FROM rows ORDER BY number").fetchall() == [(1,), (3,)]
        assert store.offsets() == {PART: 3}
        assert not (tmp_path / "snapshot").exists()

    World(1, tmp_path).run(scenario)


def test_a_clock_is_set_and_drifts_without_jumping(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        right, wrong = world.clock(), world.clock()
        wrong.set_by(-5000)
        assert wrong.now_ms() - right.now_ms() == -5000
        await asyncio.sleep(100)
        wrong.drift(0.05)
        assert abs(wrong.now_ms() - right.now_ms() + 5000) <= 1
        await asyncio.sleep(100)
        assert abs(wrong.now_ms() - right.now_ms()) <= 1
        wrong.drift(0)
        await asyncio.sleep(100)
        assert abs(wrong.now_ms() - right.now_ms()) <= 1

    World(1, tmp_path).run(scenario)


def test_files_of_another_version_are_not_used(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "machine", Random(1))
    store = SqliteStore(disk.path / "state", DDL)
    committed(store, 1)
    SnapshotFile(disk.path / "snapshot", 1).save({PART: 1}, [(b"key", b"value")])
    disk.after_upgrade()
    with sqlite3.connect(disk.path / "state") as file:
        assert file.execute("SELECT next, (SELECT count(*) FROM rows) FROM offsets").fetchall() == [(1, 0)]
    assert SqliteStore(disk.path / "state", DDL).offsets() == {}
    assert SnapshotFile(disk.path / "snapshot", 1).load() is None


BRIEF = roles.Plan(
    dict.fromkeys(("registry", "targeting", "scheduling", "delivery"), 1),
    partitions=2,
    load_s=3.0,
    rate=4.0,
    snapshot_s=1,
    slowness=1,
)

OF_FILES = ("cut_power", "lose_disk", "fill_disk", "upgrade")


def test_chosen_faults_can_take_effect() -> None:
    chosen: list[tuple[Setting, list[Fault]]] = [
        *((roles.plan_of(seed), roles.faults_of(seed, 10)) for seed in range(500)),
        *((installation_plan_of(seed), installation_faults.faults_of(seed)) for seed in range(500)),
    ]
    for plan, faults in chosen:
        for fault in faults:
            role = fault.target.partition("-")[0]
            assert fault.at_s < plan.load_s
            assert fault.kind != "block" or fault.target != fault.other
            assert fault.kind not in ("archive", "archive_twice") or fault.amount <= fault.at_s
            assert fault.kind not in OF_FILES or role not in ("edge", "gateway")
            assert (fault.kind, role, plan.has_owners) != ("kill_at_append", "targeting", False)


def test_only_plans_with_ios_devices_have_crash_points_of_apns() -> None:
    plan = installation_plan_of(1)
    without, with_ios = (
        {_point(Random(seed), "delivery-0", replace(plan, has_ios=has_ios)) for seed in range(300)}
        for has_ios in (False, True)
    )
    assert with_ios - without == {Point.SERVICE_SENDING, Point.SERVICE_ANSWERED}


def test_a_process_that_has_lost_its_files_ends_until_lost_records_are_back() -> None:
    faults = [Fault(1.0, "lose_disk", "delivery-0"), Fault(2.0, "log_trimmed", amount=6.0)]
    outcome = run_world(Backends(plan=BRIEF), 1, faults, keeps_trace=True)
    assert not outcome.findings
    assert outcome.effects == {"lose_disk": 1, "log_trimmed": 1}
    assert sum("a rebuild would miss them too" in line for line in outcome.lines) > 1


def test_faults_that_heal_takes_back_do_not_count() -> None:
    faults = [
        Fault(1.0, "kill_after_steps", "delivery-0", 1_000_000.0),
        Fault(1.0, "kill_at_point", "delivery-0", other="service-sending"),
        Fault(2.0, "kill", "delivery-0"),
        Fault(2.1, "kill", "delivery-0"),  # no process runs
        Fault(6, "kill", "registry-0"),  # the load is over
    ]
    outcome = run_world(Backends(plan=BRIEF), 1, faults)
    assert not outcome.findings
    assert outcome.effects == {"kill": 1}
    assert outcome.faults == faults


def test_all_hosts_lose_their_power_at_once() -> None:
    outcome = run_world(Backends(plan=BRIEF), 1, [Fault(2.0, "cut_all_power")], keeps_trace=True)
    assert not outcome.findings
    assert outcome.effects == {"cut_all_power": 1}
    begun = Counter(line.split("named=")[1].strip() for line in outcome.lines if " process named=" in line)
    assert {begun[host] for host in BRIEF.hosts} == {2}


def never_refused(commit: Callable[..., None]) -> Callable[..., None]:
    """Let a state that cannot be written count as written."""

    def tried(store: SqliteStore, *arguments: Any) -> None:
        try:
            commit(store, *arguments)
        except UnavailableError:
            store.rollback()

    return tried


def of_any_version(_: Callable[..., None]) -> Callable[..., None]:
    """Open a store without a look at the version of its schema."""

    def opened(store: SqliteStore, path: Path, ddl: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        store.rows = sqlite_store._open(path)
        store.rows.executescript(sqlite_store._POSITIONS + ddl.replace("CREATE TABLE ", "CREATE TABLE IF NOT EXISTS "))

    return opened


def of_one_slot(_: Callable[..., Any]) -> Callable[..., Any]:
    """Give every claim of message ids the same ids of each second."""

    def slot(earlier: object, claim: MessageIdClaim, offset: int) -> tuple[int, int, int]:
        return message_ids._Slot(0, claim.from_s, claim.until_s)

    return slot


def never_paused(_: Callable[..., bool]) -> Callable[..., bool]:
    return lambda apps, appkey: False


def never_revoked(_: Callable[..., bool]) -> Callable[..., bool]:
    return lambda apps, appkey, partition, number: False


def without_the_former_secret(secrets: Callable[..., Secrets]) -> Callable[..., Secrets]:
    return lambda signatures, signer: Secrets(secrets(signatures, signer).current, None)


def with_the_former_secret_for_ever(secrets: Callable[..., Secrets]) -> Callable[..., Secrets]:
    def opened(signatures: SignatureVerifier, signer: AppRef) -> Secrets:
        app = signatures._apps.get(signer.appkey)
        if app is not None:
            app.old_secret_until_ms = 2**62
        return secrets(signatures, signer)

    return opened


def never_superseded(_: Callable[..., None]) -> Callable[..., None]:
    """Let a process of scheduling decide on beside its successor."""
    return lambda fencing, record: None


def whatever_the_shards(_: Callable[..., Path]) -> Callable[..., Path]:
    """Let an instance go on with the state that it had beside another number of instances."""
    return lambda settings, role: settings.data / role


WRONG: list[tuple[type, str, Callable[..., Any], Kind, list[Fault]]] = [
    (
        SqliteStore,
        "commit",
        never_refused,
        Backends(),
        [Fault(5, "fill_disk", "registry-0", 20), Fault(15, "kill", "registry-0")],
    ),
    (SqliteStore, "_make", of_any_version, Backends(), [Fault(30, "upgrade", "registry-0")]),
    (
        message_ids._EarlierClaims,
        "slot",
        of_one_slot,
        InstallationWorld(),
        [Fault(5, "set_clock", "edge-0", -4), Fault(5.1, "kill", "edge-0")],
    ),
    (AppDirectory, "is_paused", never_paused, InstallationWorld(), [Fault(1, "pause_app", amount=30)]),
    (AppDirectory, "is_revoked", never_revoked, InstallationWorld(), [Fault(1, "revoke_key")]),
    (SignatureVerifier, "_secrets", without_the_former_secret, InstallationWorld(), [Fault(1, "rotate_secret")]),
    (SignatureVerifier, "_secrets", with_the_former_secret_for_ever, InstallationWorld(), [Fault(1, "rotate_secret")]),
    (Fencing, "check", never_superseded, InstallationWorld(), [Fault(4, "run_second", "scheduling-0", 12)]),
    (
        Settings,
        "state_dir",
        whatever_the_shards,
        InstallationWorld(),
        [Fault(3, "reshard", "registry", 2), Fault(9, "reshard", "registry", 1)],
    ),
]


_LONGER = 7
"""The seed of a world that is not brief: its load lasts until the second process has begun."""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_of_two_processes_of_one_instance_the_former_one_stops() -> None:
    outcome = run_world(InstallationWorld(), _LONGER, [Fault(4, "run_second", "scheduling-0", 12)], keeps_trace=True)
    assert not outcome.findings
    assert any("exit error=SupersededError" in line for line in outcome.lines)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("owner", "name", "bug", "kind", "faults"), WRONG, ids=[each[2].__name__ for each in WRONG])
def test_a_service_that_does_not_tolerate_a_fault_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, bug: Callable[..., Any], kind: Kind, faults: list[Fault]
) -> None:
    assert not any(run_world(kind, seed, faults).findings for seed in range(4))
    monkeypatch.setattr(owner, name, bug(getattr(owner, name)))
    assert any(run_world(kind, seed, faults).findings for seed in range(20))
