"""The receiver of `bench.webhooks`, a process: answers each line with what it has taken, and how late it came."""

import asyncio
import sys
import time
from datetime import datetime

from testkit.webhook_receiver import Posted, WebhookReceiver, answering


class Taken:
    """The events that a receiver took. `late_ms`: the time from each event to its first arrival."""

    def __init__(self) -> None:
        self.late_ms: dict[str, float] = {}
        self.requests = 0
        self.repeated = 0
        self._answer = answering(204)

    async def take(self, posted: Posted, writer: asyncio.StreamWriter) -> bool:
        now_ms = time.time() * 1000
        self.requests += 1
        for event in posted.events:
            if event["id"] in self.late_ms:
                self.repeated += 1
            else:
                happened = datetime.fromisoformat(event["timestamp"])
                self.late_ms[event["id"]] = now_ms - happened.timestamp() * 1000
        await self._answer(posted, writer)
        return False  # the events are counted: the requests themselves would fill the memory

    def line(self) -> str:
        """Return the numbers of events, requests and repetitions, and p50, p99 and the most of `late_ms`."""
        late = sorted(self.late_ms.values()) or [0.0]
        at = (late[len(late) // 2], late[len(late) * 99 // 100], late[-1])
        return " ".join(str(round(each)) for each in (len(self.late_ms), self.requests, self.repeated, *at))


async def main(port: int) -> None:
    taken = Taken()
    receiver = WebhookReceiver(port)
    receiver.always = taken.take
    await receiver.start()
    print(0, flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        receiver.posted.clear()
        print(taken.line(), flush=True)
    await receiver.stop()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
