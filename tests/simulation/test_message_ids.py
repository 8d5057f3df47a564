"""Message ids of simulated edges that are killed and paused, on a log that loses, repeats and delays appends."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from edge.core import message_ids
from edge.core.message_ids import MessageIds
from services.domain.topics import TOPICS
from services.errors import CarillonError
from tests.simulation.kernel.log.behaviour import Behaviour
from tests.simulation.kernel.log.broker import Broker
from tests.simulation.kernel.log.client import SimulatedLog
from tests.simulation.kernel.world import World

_EDGES = 5
_LIVES = 4


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.long] * (seed > 1)) for seed in range(4)])
def test_edges_that_are_killed_and_paused_repeat_no_id(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are so few slots that all of them are claimed again and again."""
    monkeypatch.setattr(message_ids, "SLOTS", 8)

    async def scenario(world: World) -> list[int]:
        given: list[int] = []
        behaviour = Behaviour(world.random("log"), typical_s=0.05)
        behaviour.fault_rate = 0.3
        broker, random = Broker(TOPICS, 4, behaviour), world.random("edges")

        async def give_out(own: MessageIds) -> None:
            while True:
                with suppress(CarillonError):
                    given.append(await own.take())
                await asyncio.sleep(random.choice([0.02, 0.2, 60]))

        async def live(number: int) -> None:
            clock = world.clock(random.choice([0, -86_400_000, 7_200_000]))
            for _ in range(_LIVES):
                process = world.process(f"edge-{number}")
                process.start(give_out(MessageIds("edge", SimulatedLog(broker), clock)))
                await asyncio.sleep(random.random() * 600)
                process.pause(random.random() * 1800)
                clock.set_by(random.choice([0, 0, -600_000]))
                await asyncio.sleep(random.random() * 1860)
                process.kill()

        await asyncio.gather(*(live(number) for number in range(_EDGES)))
        return given

    given = World(seed, tmp_path).run(scenario)
    assert len(given) > 100
    assert len(set(given)) == len(given)
