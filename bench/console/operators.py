"""Simulates operators of the console: each opens a page, reads it for some seconds, and opens the next.

Every second page is one with live parts, whose stream of events stays open while the page is read.

Real operators' browsers run on other machines. So that it delays the pushes little, this process takes the priority and
the long slices of the processors that the service's own children have.

Reads the commands `start` and `stop`, one a line. Each is answered by three numbers: the answers 200, the answers 503,
and all answers since the latest `start`.
"""

import asyncio
import contextlib
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Sequence
from html import unescape
from typing import Any

from bench.console.client import ConsoleClient
from services.net.child import lower_priority

_STREAM = re.compile(r'sse-connect="([^"]+)"')


class Operator:
    """A person who reads pages, about `read_s` seconds each; `opened` counts the answers by their status."""

    def __init__(self, about: dict[str, Any], number: int, opened: Counter[int]) -> None:
        self._client = ConsoleClient(about["url"], about["cookie"])
        self._paths: tuple[Sequence[str], Sequence[str]] = (about["live_paths"], about["other_paths"])
        self._read_s: float = about["read_s"]
        self._random = random.Random(number)
        self._opened = opened

    async def run(self) -> None:
        """Open pages until cancelled; the first after a part of the time for which a page is read."""
        await asyncio.sleep(self._random.uniform(0, self._read_s))
        while True:
            answer = await self._client.get(self._random.choice(self._random.choice(self._paths)))
            self._opened[answer.status_code] += 1
            stream = _STREAM.search(answer.text)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._read_s * self._random.uniform(0.5, 1.5)):
                    if stream is not None:
                        await self._client.follow(unescape(stream[1]))
                    await asyncio.Event().wait()


async def operate(about: dict[str, Any]) -> None:
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    print(0, flush=True)
    opened: Counter[int] = Counter()
    tasks: list[asyncio.Task[None]] = []
    while line := (await commands.readline()).decode().strip():
        if line == "start":
            opened.clear()
            operators = [Operator(about, number, opened) for number in range(about["operators"])]
            tasks = [asyncio.create_task(operator.run()) for operator in operators]
        else:
            for task in tasks:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        print(opened[200], opened[503], sum(opened.values()), flush=True)


if __name__ == "__main__":
    lower_priority()
    asyncio.run(operate(json.loads(sys.argv[1])))
