"""Timed tasks after the erasure of a person: names and no contents, live as in a state built again from the log."""

from pathlib import Path

import msgspec
import pytest

from protos.push.v1.push_pb2 import Aliases, Audience, Message, SendPush, Tokens
from protos.registry.v1.devices_pb2 import Device
from services.domain.recorded_reasons import FixedReason
from services.domain.sealed_log import SealedLog
from services.domain.sealing import Sealer
from testkit.persons import applied_erasures, erasure, key_ring
from testkit.waiting import until
from tests.services.scheduling.conftest import APP, SchedulingHarness, push
from tests.services.scheduling.test_timer import assert_replays

CANARY = "canary-51c9"
TOKEN, ALIAS = f"{CANARY}-token", f"{CANARY}-alias"
FEW = Audience(tokens=Tokens(tokens=[TOKEN, "other"]))
MANY = Audience(tokens=Tokens(tokens=[TOKEN, *(f"t{number}" for number in range(20))]))
BY_ALIAS = Audience(aliases=Aliases(aliases=[ALIAS]))
DEVICE = Device(appkey=APP, token=TOKEN, alias=ALIAS, partition=3, number=7)


@pytest.fixture
def sealed(harness: SchedulingHarness, tmp_path: Path) -> SealedLog:
    sealed = SealedLog(harness.log, Sealer(key_ring(tmp_path / "keys" / "persons")), seals=True)
    harness.log = sealed  # type: ignore[assignment]
    return sealed


def about(msgid: int, audience: Audience, text: str) -> SendPush:
    made = push(msgid, audience=audience, id_count=len(audience.tokens.tokens) or 1)
    made.message.CopyFrom(Message(content=text, extra=text))
    made.request_json = f'{{"to": "{text}"}}'
    return made


async def erase(harness: SchedulingHarness, sealed: SealedLog, key: str) -> SendPush:
    """Erase the person; return the push of a task that names it, once scheduling has forgotten it."""
    await sealed.append([erasure(sealed.sealer, APP, [DEVICE], [ALIAS], time_ms=harness.clock.now_ms())])

    async def without() -> SendPush | None:
        (found,) = (await harness.task(key)).pushes
        return found if CANARY not in str(found) else None

    return await until(without)


def state_bytes(harness: SchedulingHarness) -> bytes:
    return b"".join(path.read_bytes() for path in harness.settings.state_dir("scheduling").iterdir())


async def test_tasks_forget_a_person(harness: SchedulingHarness, sealed: SealedLog) -> None:
    harness.settings = msgspec.structs.replace(harness.settings, erasure_batch_s=1)
    async with harness.running():
        await harness.create("few", about(1, FEW, f"{CANARY}-text"))
        await harness.create("alias", about(5, BY_ALIAS, f"{CANARY}-text"))
        await harness.create("many", about(10, MANY, "for many"))
        await harness.create("others", about(50, Audience(tokens=Tokens(tokens=["other"])), "for another"))
        assert CANARY.encode() in state_bytes(harness)
        assert sealed.sealer is not None
        left = await erase(harness, sealed, "few")
        name = sealed.sealer.ring.name("token", APP, TOKEN)
        assert (list(left.audience.tokens.tokens), left.message.content) == ([name, "other"], "")
        (many,) = (await harness.task("many")).pushes
        assert (many.audience.tokens.tokens[0], many.message.content) == (name, "for many")
        (others,) = (await harness.task("others")).pushes
        assert others.message.content == "for another"
        await assert_replays(harness)

        async def is_purged() -> bool:
            harness.clock.move(harness.settings.erasure_batch_s)
            return applied_erasures("scheduling", "files") == 1

        await until(is_purged)
        assert CANARY.encode() not in state_bytes(harness)
    async with harness.running():
        assert (await harness.task("few")).pushes[0] == left
        await assert_replays(harness)


async def test_a_task_for_an_erased_person_is_not_sent(harness: SchedulingHarness, sealed: SealedLog) -> None:
    async with harness.running():
        await harness.create("few", about(1, FEW, f"{CANARY}-text"))
        await erase(harness, sealed, "few")
        harness.clock.move(60)

        async def failed() -> bool:
            return await harness.status("few") == "FAILED"

        await until(failed)
        (fact,) = await harness.facts("failed")
        assert fact.failed.reason == FixedReason.ERASED
        assert await harness.sent_pushes() == []


async def test_a_later_task_may_name_who_has_the_token_then(harness: SchedulingHarness, sealed: SealedLog) -> None:
    async with harness.running():
        await harness.create("before", about(1, FEW, f"{CANARY}-text"))
        await erase(harness, sealed, "before")
        harness.clock.move(10)
        await harness.create("after", about(9, FEW, "anew"))
        (after,) = (await harness.task("after")).pushes
        assert (list(after.audience.tokens.tokens), after.message.content) == ([TOKEN, "other"], "anew")
        await assert_replays(harness)
