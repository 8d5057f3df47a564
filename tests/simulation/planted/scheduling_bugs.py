"""Planted bugs of timed tasks."""

from collections.abc import Sequence

from tests.simulation.planted.bug import PlantedBug, planted_bug

SCHEDULING_BUGS: Sequence[PlantedBug] = (
    planted_bug(
        "lost-wake-up",
        "tasks that fall due while a page of their app's tasks is being sent wait for the next one that falls due",
        "backends",
        ("services.scheduling.app_sender:AppTaskSender.run", "        self._woken.clear()\n", ""),
        (
            "services.scheduling.app_sender:AppTaskSender.run",
            "        await self._send_all()",
            "        await self._send_all()\n        self._woken.clear()",
        ),
        (
            "services.scheduling.app_sender:AppTaskSender._send_all",
            "now_ms() + RETRY_MS\n            return",
            "now_ms() + RETRY_MS\n        return",
        ),
    ),
    planted_bug(
        "task-forgotten",
        "a task that had fallen due at a crash is not sent after the restart",
        "backends",
        (
            "services.scheduling.task_sender:TaskSender.run",
            "self._wake_up(await self._follower.query(self._tasks.apps_with, Status.FELL_DUE))",
            "pass",
        ),
    ),
    planted_bug(
        "time-of-another-clock-awaited",
        "a push that goes out at once waits until the clock of scheduling has reached the time that the edge gave it",
        "installation",
        ("services.scheduling.store:TaskTable.due", '_DUE.format("")', '_DUE.format("AND due_ms <= :now_ms")'),
        (
            "services.scheduling.store:TaskTable.next_due_ms",
            "SELECT falls_due_ms FROM tasks WHERE status = 1 ORDER BY falls_due_ms LIMIT 1",
            "SELECT due_ms FROM tasks WHERE status = 1 ORDER BY due_ms LIMIT 1",
        ),
    ),
    planted_bug(
        "sent-without-append",
        "a task that could not be sent at first counts as sent once it is tried again, and its pushes are not appended",
        "backends",
        (
            "services.scheduling.app_sender:AppTaskSender._send",
            "await self._writer.append(commands)",
            "task.task_key in self._retries or await self._writer.append(commands)",
        ),
    ),
)
"""Part of catalogue.BUGS."""
