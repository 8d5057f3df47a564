"""The byte budget of request bodies before their sign is verified: the largest sender is refused, others are served."""

import asyncio
import json
from pathlib import Path

import falcon
import pytest

import edge.interfaces
from edge.core.parsing.body import BodyBudget
from testkit.edge.role import BACKENDS, EdgeInstallation, edge_installation
from testkit.edge.v2_bodies import broadcast
from testkit.signing import signed
from testkit.waiting import until_holds
from tests.services.net.http.serving import Client

HEAD = b"POST /v2/push HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"


class Sender:
    """A request that has sent `size` bytes of its body and waits. `error`: the error that ended it."""

    def __init__(self, budget: BodyBudget, address: str, size: int) -> None:
        self.error: falcon.HTTPError | None = None
        self._body = budget.body(address)
        self._size = size
        self._task = asyncio.create_task(self._send())

    async def _send(self) -> None:
        try:
            with self._body as body:
                body.add(self._size)
                await asyncio.Event().wait()
        except falcon.HTTPError as error:
            self.error = error

    def stop(self) -> None:
        self._task.cancel()


async def sent(budget: BodyBudget, *sizes: tuple[str, int]) -> list[Sender]:
    senders = []
    for address, size in sizes:
        senders.append(Sender(budget, address, size))
        await steps()
    return senders


async def steps() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("bodies", "refused"),
    [
        ([("a", 60), ("b", 40)], []),
        ([("a", 60), ("b", 50)], [0]),
        ([("a", 30), ("a", 40), ("b", 31)], [1]),
        ([("a", 40), ("a", 40), ("b", 30)], [1]),
        ([("a", 20), ("a", 20), ("a", 20), ("b", 50)], [2]),
        ([("b", 1), ("a", 50), ("a", 50)], [2]),
        ([("a", 101)], [0]),
        ([("a", 30), ("a", 30), ("b", 30), ("c", 95)], [3]),
        ([("a", 34), ("b", 33), ("c", 33), ("d", 1), ("e", 1)], [0]),
    ],
)
async def test_the_heaviest_address_loses_its_largest_and_newest_body(
    bodies: list[tuple[str, int]], refused: list[int]
) -> None:
    budget = BodyBudget(100)
    senders = await sent(budget, *bodies)
    errors = {index: sender.error for index, sender in enumerate(senders) if sender.error}
    assert list(errors) == refused
    for error in errors.values():
        assert (error.status_code, error.headers) == (503, {"Retry-After": "1"})
    assert budget.held_bytes == sum(size for index, (_, size) in enumerate(bodies) if index not in refused)
    for sender in senders:
        sender.stop()
    await steps()
    assert budget.held_bytes == 0
    assert not budget._bodies
    assert not budget._by_address


async def test_a_cancelled_request_is_not_taken_for_a_refused_one() -> None:
    budget = BodyBudget(100)
    (sender,) = await sent(budget, ("a", 50))
    sender.stop()
    with pytest.raises(asyncio.CancelledError):
        await sender._task


async def test_a_flood_of_unsigned_bodies_is_refused_and_another_address_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three bodies that do not end, and one of another address, need more than 1 MiB."""
    budgets: list[BodyBudget] = []
    monkeypatch.setattr(edge.interfaces, "BodyBudget", lambda limit_bytes: made(budgets, limit_bytes))
    async with edge_installation(tmp_path, BACKENDS, edge_unverified_mib=1) as installation:
        (budget,) = budgets
        app = await installation.app()
        flood = [await connect(installation, "127.0.0.2") for _ in range(3)]
        for client, held_bytes in zip(flood, (450_000, 900_000, 900_000), strict=True):
            client.send(HEAD + b"[" * 450_000)
            await until_holds(lambda held_bytes=held_bytes: budget.held_bytes == held_bytes)  # type: ignore[misc]
        await check_refused(flood[1])
        good = signed({**broadcast(app), "unread": "x" * 200_000}, installation.secrets[app.appkey])
        assert (await installation.post(good))["result"] == 0
        await check_refused(flood[2])
        flood[0].send(b"[" * 550_000)
        assert json.loads((await flood[0].answer())[1])["result"] == 400
        for client in flood:
            client.writer.close()


def made(budgets: list[BodyBudget], limit_bytes: int) -> BodyBudget:
    budgets.append(BodyBudget(limit_bytes))
    return budgets[-1]


async def check_refused(client: Client) -> None:
    status, body = await client.answer()
    assert status == 503
    assert json.loads(body) == {"result": 503, "desc": "too many request bodies at once; repeat the request"}


async def connect(installation: EdgeInstallation, address: str) -> Client:
    url = installation.http.base_url
    return Client(*await asyncio.open_connection(url.host, url.port, local_addr=(address, 0)))
