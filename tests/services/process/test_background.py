"""Background tasks that are begun anew after an error."""

import asyncio

import pytest
from structlog.testing import capture_logs

from services.process import background
from services.process.metrics import BACKGROUND_FAILURES


async def test_lasting_work_is_begun_anew_until_it_ends_and_the_process_stays_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(background, "RESTART_S", 0)
    attempts = 0

    async def work() -> None:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise TypeError("a bug")

    before = BACKGROUND_FAILURES._value.get()
    with capture_logs() as logs:
        await asyncio.wait_for(background.start_lasting("work", work), 10)
    assert attempts == 3
    assert [line["log_level"] for line in logs] == ["error", "error"]
    assert BACKGROUND_FAILURES._value.get() == before + 2
    assert "work" not in background.ended()


async def test_lasting_work_ends_when_it_is_cancelled() -> None:
    task = background.start_lasting("work", asyncio.Event().wait)  # type: ignore[arg-type]
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert "work" not in background.ended()
