"""What a proof costs: devices that set their alias with a proof, beside devices that set it without one.

    python -m bench.identity --devices 200

First the verifier alone, in this process: proofs of each kind, and a forged one that neither of two keys has signed.
Then `carillon up` on a directory of its own, with an app that accepts proofs: each device sets another alias ten times,
one after the other, without proofs and with them, in two rounds. CPU is that of all processes of the service; the
devices are in this process.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from services.domain.identity import PROOF_EVERY_MS, PROOFS_AT_ONCE, ProofError, public_key, verified
from testkit.device import VirtualDevice
from testkit.installation.processes import Installation
from testkit.proofs import ProofKey

_CALLS = 200
_ROUNDS = 10
_AT_ONCE = 50
_SETTLE_S = 8.0
"""Longer than analytics gathers a batch: its work for the requests of one kind counts among these."""

_KINDS = ("without a proof", "with a proof")

Proofs = Sequence[Sequence[str | None]]
"""The proofs of each device, None for a request without one."""


class Cost(NamedTuple):
    """What requests of one kind took."""

    per_s: float
    median_s: float
    cpu_s: float


def per_call_us(call: Callable[[], object]) -> float:
    """Return the CPU time of a call in microseconds: the median of rounds."""
    rounds = []
    for _ in range(_ROUNDS):
        started = time.process_time()
        for _ in range(_CALLS):
            call()
        rounds.append((time.process_time() - started) / _CALLS * 1e6)
    return median(rounds)


def verifier() -> dict[str, float]:
    """Return the CPU time of a verification in microseconds, for each kind of proof."""
    first, second, edwards = ProofKey(), ProofKey(), ProofKey(ed25519=True)
    keys = {key: public_key(key.public_pem) for key in (first, second, edwards)}
    forged = ProofKey().proof("1", "alice")
    genuine = {key: key.proof("1", "alice") for key in (first, edwards)}

    def accepted(key: ProofKey) -> None:
        verified(genuine[key], [keys[key]], "1", "t", time.time())

    def refused() -> None:
        try:
            verified(forged, [keys[first], keys[second]], "1", "t", time.time())
        except ProofError:
            return
        raise AssertionError("a forged proof was accepted")

    return {
        "ES256": per_call_us(lambda: accepted(first)),
        "EdDSA": per_call_us(lambda: accepted(edwards)),
        "ES256, forged, two keys": per_call_us(refused),
    }


async def set_aliases(devices: Sequence[VirtualDevice], name: str, proofs: Proofs) -> list[float]:
    """Let each device set aliases that begin with the name; return the seconds of each request."""
    took: list[float] = []
    turn = asyncio.Semaphore(_AT_ONCE)

    async def of_one(index: int) -> None:
        for number, proof in enumerate(proofs[index]):
            request = {"type": "set_alias", "alias": _alias(name, index, number)}
            async with turn:
                started = time.perf_counter()
                await devices[index].request(request if proof is None else {**request, "proof": proof})
                took.append(time.perf_counter() - started)

    await asyncio.gather(*(of_one(index) for index in range(len(devices))))
    return took


async def measured(installation: Installation, key: ProofKey, count: int) -> dict[str, Cost]:
    """Return the cost of requests of each kind, in the second round."""
    appkey = installation.create_app().appkey
    public = installation.data.parent / "public.pem"
    public.write_text(key.public_pem)
    installation.carillon("app", "set", appkey, "--identity", "accept", "--identity-key", str(public))
    devices = [VirtualDevice(installation.gateway_url, appkey) for _ in range(count)]
    for device in devices:
        await device.connect()
    found: dict[str, Cost] = {}
    for round_number in range(2):
        if round_number:
            await asyncio.sleep(PROOFS_AT_ONCE * PROOF_EVERY_MS / 1000)  # until the devices may hand in proofs again
        for kind in _KINDS:
            name = f"{round_number} {kind}"
            proofs = [
                [
                    key.proof(appkey, _alias(name, index, number)) if kind == _KINDS[1] else None
                    for number in range(PROOFS_AT_ONCE)
                ]
                for index in range(count)
            ]
            cpu_s, started = installation.cpu_s(), time.perf_counter()
            took = await set_aliases(devices, name, proofs)
            seconds = time.perf_counter() - started
            await asyncio.sleep(_SETTLE_S)
            found[kind] = Cost(len(took) / seconds, median(took), (installation.cpu_s() - cpu_s) / len(took))
    for device in devices:
        await device.close()
    return found


def service(directory: Path, count: int) -> dict[str, Cost]:
    """Measure `carillon up`."""
    installation = Installation(directory / "data", None)
    installation.env |= {
        "CARILLON_LOG_LEVEL": "WARNING",
        "CARILLON_REGISTRATIONS_PER_MINUTE": "0",
        "CARILLON_REGISTRATIONS_PER_MINUTE_PER_ADDRESS": "0",
    }
    try:
        installation.start()
        found = asyncio.run(measured(installation, ProofKey(), count))
        installation.stop()
    finally:
        installation.close()
    return found


def _alias(name: str, index: int, number: int) -> str:
    return f"{name} {index} {number}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=200)
    arguments = parser.parse_args()
    console = Console()
    alone = Table("verifier alone", "us of CPU")
    for kind, us in verifier().items():
        alone.add_row(kind, f"{us:.0f}")
    console.print(alone)
    with tempfile.TemporaryDirectory() as directory:
        served = service(Path(directory), arguments.devices)
    requests = Table("set_alias", "requests/s", "median ms", "us of CPU each, all processes")
    for kind, cost in served.items():
        requests.add_row(kind, f"{cost.per_s:,.0f}", f"{cost.median_s * 1000:.1f}", f"{cost.cpu_s * 1e6:.0f}")
    console.print(requests)


if __name__ == "__main__":
    main()
