"""The page of the audit: who sees what, filters, pages and CSV; and reading personal data, which is in the log."""

import csv
import io

from protos.accounts.v1.accounts_pb2 import DataRead
from protos.analytics.v1.analytics_pb2 import ActionEntry, ActionScope, AuditActionsRequest
from services.domain.topics import LOG_INS, decode
from services.runtime.log.port import Partition
from testkit.faults.crashing_log import records_of
from tests.roles.console.conftest import START_MS, ConsoleInstallation, text_of

DAY_MS = 86_400_000


def last_asked(console: ConsoleInstallation) -> AuditActionsRequest:
    asked = console.analytics.asked[-1]
    assert isinstance(asked, AuditActionsRequest)
    return asked


async def test_the_audit_is_filtered_paged_and_exported(console: ConsoleInstallation) -> None:
    team_id = await console.team("News", viewer="viewer")
    other_id = await console.team("Others")
    appkey, foreign = await console.app("Weather", team_id), await console.app("Foreign", other_id)
    user_id = await console.user("root", administrator=True)
    console.analytics.actions = [
        ActionEntry(time_ms=START_MS, actor=f"user/{user_id}", action="app paused", appkey=appkey, detail="<storm>"),
        ActionEntry(time_ms=START_MS, action="team created", team_id=team_id, detail="=1+1", door="cli"),
        ActionEntry(time_ms=START_MS, actor="user/gone", action="log-in"),
    ]
    root, viewer = await console.logged_in("root"), await console.logged_in("viewer")
    page = await root.get("/audit")
    assert "2026-09-21 22:13:20 root app paused – Weather <storm>" in text_of(page)
    assert "an operator team created News" in text_of(page)
    assert not last_asked(console).HasField("scope")
    assert (last_asked(console).to_ms - START_MS) // DAY_MS == 0
    assert "pos=2" in page.text
    assert "user/gone log-in" in text_of(await root.get("/audit?pos=2"))
    file = await root.get("/audit.csv?first=2026-09-01&last=2026-09-21")
    assert file.headers["content-disposition"] == 'attachment; filename="audit-2026-09-01-2026-09-21.csv"'
    rows = list(csv.DictReader(io.StringIO(file.content.decode("utf-8-sig"))))
    assert [(row["who"], row["action"], row["detail"]) for row in rows] == [
        ("root", "app paused", "<storm>"),
        ("", "team created", "'=1+1"),
        ("user/gone", "log-in", ""),
    ]
    assert rows[0]["time"] == "2026-09-21T22:13:20.000+08:00"

    await root.get(f"/audit?team={team_id}&who=VIEWER&subject=push&first=2026-09-20&last=2026-09-20")
    asked = last_asked(console)
    assert asked.scope == ActionScope(team_ids=[team_id], appkeys=[appkey])
    assert (asked.subject, asked.to_ms - asked.from_ms) == ("push", DAY_MS)
    assert asked.actor.startswith("user/")
    for path in ("/audit", "/audit.csv"):
        await viewer.get(path)
        assert last_asked(console).scope == ActionScope(team_ids=[team_id], appkeys=[appkey])
        for others in (f"team={other_id}", f"app={foreign}"):
            await viewer.get(f"{path}?{others}")
            assert last_asked(console).scope == ActionScope()
        for wrong in ("who=mallory", "first=yesterday", "last=9999-12-31"):
            assert (await viewer.get(f"{path}?{wrong}")).status_code == 400


async def test_reading_the_data_of_a_device_is_in_the_log(console: ConsoleInstallation) -> None:
    appkey = await console.app(team_id=await console.team("News", viewer="viewer"))
    viewer = await console.logged_in("viewer")
    assert (await viewer.get(f"/apps/{appkey}/device?name=alice")).status_code == 404
    assert (await viewer.get(f"/apps/{appkey}/why?name=bob&push=7")).status_code == 404
    facts = [decode(record) for record in await records_of(console.log, Partition(LOG_INS.name, 0))]
    reads = [fact for fact in facts if fact.HasField("data_read")]
    assert [fact.data_read for fact in reads] == [
        DataRead(appkey=appkey, name="alice"),
        DataRead(appkey=appkey, name="bob", msgid=7),
    ]
    assert all(fact.meta.origin.actor.startswith("user/") for fact in reads)
