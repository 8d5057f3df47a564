"""Keys in rotation: which one is in force by the records of the topic, and what a process accepts and issues by two."""

import itertools
from pathlib import Path

import pytest

from protos.registry.v1.apps_pb2 import KeyFingerprint
from services.domain.device_protocol.possession import possession_code, proves_possession
from services.domain.master_key import (
    KeyChain,
    KeyPurpose,
    Keys,
    MasterKey,
    derive,
    extended,
    load_keys,
    next_master_file,
)
from services.domain.settings import Settings
from services.errors import CarillonError, UnavailableError

DEVICES, SECRETS = KeyPurpose.DEVICES, KeyPurpose.SECRETS
MASTERS = [bytes([number] * 32) for number in range(4)]
SINGLE = [MasterKey(master) for master in MASTERS]
PRINTS = [keys.fingerprint(DEVICES) for keys in SINGLE]
DEVICE = ("1000000001", "t", 7)
NOW_MS = 1_800_000_000_000


def keys_of(*numbers: int) -> Keys:
    """Return the keys of a process that has those of these master keys."""
    return Keys({purpose: [derive(MASTERS[number], purpose) for number in numbers] for purpose in KeyPurpose})


def noted(number: int, predecessor: int | None = None, *, dropped: bool = False) -> KeyFingerprint:
    return KeyFingerprint(
        purpose="DEVICES",
        fingerprint=PRINTS[number],
        predecessor=b"" if predecessor is None else PRINTS[predecessor],
        switched_ms=0 if predecessor is None else number,
        predecessor_dropped=dropped,
    )


def folded(*records: KeyFingerprint) -> KeyChain:
    chain = None
    for record in records:
        chain = extended(chain, record)
    assert chain is not None
    return chain


def test_a_rotation_and_its_end() -> None:
    assert folded(noted(0), noted(1)) == KeyChain(PRINTS[0]), "the first key counts"
    switched = folded(noted(0), noted(1, 0))
    assert switched == KeyChain(PRINTS[1], PRINTS[0], 1, frozenset([PRINTS[0]]))
    assert extended(switched, noted(1, 0)) == switched, "a repeated record"
    ended = extended(switched, noted(1, 0, dropped=True))
    assert ended == KeyChain(PRINTS[1], b"", 1, frozenset([PRINTS[0]]), frozenset([PRINTS[0]]))
    assert extended(ended, noted(1, 0)).former == b"", "a dropped key stays so"
    assert extended(ended, noted(0, 1)).in_force == PRINTS[1], "and never comes back"
    assert extended(switched, noted(2, 0)).in_force == PRINTS[1], "of two successors the first counts"


def test_the_chain_is_the_same_in_each_order_of_the_latest_records() -> None:
    """Compaction keeps the last record of a key, and the registry may write one again behind the others."""
    latest = [noted(0), noted(1, 0, dropped=True), noted(2, 1, dropped=True), noted(3, 2)]
    for order in itertools.permutations(latest):
        if order[0] == latest[0]:
            chain = folded(*order)
            assert (chain.in_force, chain.former) == (PRINTS[3], PRINTS[2])
            assert chain.dropped == {PRINTS[0], PRINTS[1]}
    without_first = folded(*latest[1:])
    assert (without_first.in_force, without_first.former) == (PRINTS[3], PRINTS[2])


def test_two_keys_are_accepted_and_the_one_in_force_issues_and_seals() -> None:
    old, new, both = SINGLE[0], SINGLE[1], keys_of(0, 1)
    sealed = [each.seal("s", "1") for each in (old, new)]
    for in_force, former, issuing in ((0, None, old), (1, 0, new)):
        for purpose in KeyPurpose:
            former_print = b"" if former is None else SINGLE[former].fingerprint(purpose)
            assert both.switch(purpose, SINGLE[in_force].fingerprint(purpose), former_print)
        assert both.device_key(*DEVICE) == issuing.device_key(*DEVICE)
        assert issuing.open(both.seal("s", "1"), "1") == "s"
        assert [both.open(each, "1") for each in sealed] == ["s", "s"]
        assert [both.device_number(*DEVICE[:2], each.device_key(*DEVICE)) for each in (old, new)] == [7, 7]
        for each in (old, new):
            assert proves_possession(both, possession_code(each, *DEVICE, NOW_MS), *DEVICE, NOW_MS)
        assert proves_possession(issuing, possession_code(both, *DEVICE, NOW_MS), *DEVICE, NOW_MS)
    anew = both.sealed_anew(sealed[0], "1")
    assert anew is not None
    assert new.open(anew, "1") == "s"
    assert both.sealed_anew(sealed[1], "1") is None


def test_a_dropped_key_opens_and_proves_nothing() -> None:
    both = keys_of(0, 1)
    for purpose in KeyPurpose:
        assert both.switch(purpose, SINGLE[1].fingerprint(purpose), b"", {SINGLE[0].fingerprint(purpose)})
    assert both.device_number(*DEVICE[:2], SINGLE[0].device_key(*DEVICE)) is None
    assert not proves_possession(both, possession_code(SINGLE[0], *DEVICE, NOW_MS), *DEVICE, NOW_MS)
    with pytest.raises(CarillonError, match="sealed with another master key"):
        both.open(SINGLE[0].seal("s", "1"), "1")


def test_a_process_that_lags_keeps_the_key_that_another_has_given_out_already() -> None:
    """Else it would give the device back the former key, which is refused one day."""
    old, new, both = SINGLE[0], SINGLE[1], keys_of(0, 1)
    assert both.switch(DEVICES, PRINTS[0])
    assert both.device_key(*DEVICE, shown=new.device_key(*DEVICE)) == new.device_key(*DEVICE)
    assert both.device_key(*DEVICE, shown=old.device_key(*DEVICE)) == old.device_key(*DEVICE)
    assert both.switch(DEVICES, PRINTS[1], PRINTS[0])
    assert both.device_key(*DEVICE, shown=old.device_key(*DEVICE)) == new.device_key(*DEVICE)
    assert both.device_key(*DEVICE, shown="no key") == new.device_key(*DEVICE)


@pytest.mark.parametrize("held", [0, 1], ids=["only the former key", "only the new key"])
def test_a_process_without_one_of_the_keys_issues_seals_and_judges_nothing(held: int) -> None:
    lacking = keys_of(held)
    for purpose in KeyPurpose:
        assert not lacking.switch(purpose, SINGLE[1].fingerprint(purpose), SINGLE[0].fingerprint(purpose))
    assert lacking.device_number(*DEVICE[:2], SINGLE[held].device_key(*DEVICE)) == 7, "what it can tell it tells"
    other = SINGLE[1 - held]
    for impossible in (
        lambda: lacking.device_key(*DEVICE),
        lambda: lacking.seal("s", "1"),
        lambda: lacking.device_number(*DEVICE[:2], other.device_key(*DEVICE)),
        lambda: lacking.open(other.seal("s", "1"), "1"),
        lambda: possession_code(lacking, *DEVICE, NOW_MS),
    ):
        with pytest.raises(UnavailableError, match="not been given all keys"):
            impossible()


def test_a_key_that_comes_into_force_is_looked_for_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "master.key"
    file.write_bytes(MASTERS[0])
    keys = load_keys(Settings(master_key_file=str(file)), list(KeyPurpose))
    assert not keys.has(DEVICES, PRINTS[1])
    next_master_file(file).write_bytes(MASTERS[1])
    assert keys.switch(DEVICES, PRINTS[1], PRINTS[0])
    assert keys.device_key(*DEVICE) == SINGLE[1].device_key(*DEVICE)
    assert keys.switch(DEVICES, PRINTS[1], b"", {PRINTS[0]})
    assert not keys.has(DEVICES, PRINTS[2])
    assert keys.device_number(*DEVICE[:2], SINGLE[0].device_key(*DEVICE)) is None, (
        "the file still holds the dropped key"
    )
