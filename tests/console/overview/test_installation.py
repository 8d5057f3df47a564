"""The overview: the announced state of processes in words, only for accounts that may see it."""

from protos.runtime.v1.processes_pb2 import (
    AppDevices,
    ProcessCounts,
    ProcessProblem,
    ProcessStage,
    ProcessStatus,
    ResultCount,
    RoleStatus,
)
from services.domain.call_permissions import EVERY_ROLE
from services.replica.own_status import STATUS_INTERVAL_S
from services.replica.status_board import SILENT_MS
from tests.console.announcements import READY, announce, everything_works, some_time_later, status_of
from tests.console.conftest import Browser, ConsoleInstallation, text_of


async def overview_says(browser: Browser, *expected: str) -> str:
    """Assert that the overview has all of these texts; return its words."""
    words = text_of(await browser.get("/"))
    missing = [text for text in expected if text not in words]
    assert not missing, words
    return words


async def test_the_overview_shows_the_state_of_each_role(console: ConsoleInstallation) -> None:
    await console.user("root", administrator=True)
    root = await console.logged_in("root")
    assert "not heard of yet" in text_of(await root.get("/"))
    some_time_later(console)
    everything_works(console)
    words = await overview_says(root, "Everything works.")
    assert [words.count(f"{role} works") for role in EVERY_ROLE] == [1] * len(EVERY_ROLE)
    console.clock.move(1)
    shard = RoleStatus(role="delivery", shards=2, lag_records=70, lag_ms=42_000)
    behind = RoleStatus(role="analytics", shards=1, lag_records=7_000, lag_ms=61_000)
    standby = RoleStatus(role="targeting", shards=1, stands_by=True)
    announce(
        console,
        registry=status_of("registry", problems=[ProcessProblem(part="log", text="the disk is full")]),
        delivery=ProcessStatus(host="delivery-host", stage=READY, roles=[shard]),
        scheduling=None,
        analytics=ProcessStatus(stage=READY, roles=[behind]),
        standby=ProcessStatus(host="standby-host", stage=READY, roles=[standby]),
        gateway=status_of("gateway", stage=ProcessStage.PROCESS_STAGE_STARTING),
    )
    words = await overview_says(
        root,
        "scheduling – away",
        "registry – not ready",
        "delivery – partly away",
        "analytics – behind the log",
        "No process owns shard 1 of 2.",
        "log: the disk is full",
        "7,000 61",
        "1 process stands by.",
        "gateway starts",
        "standby-host",
    )
    assert "targeting –" not in words
    console.clock.move(SILENT_MS / 1000 + 1)
    await overview_says(
        root, "the event log does not answer the console. The last report of a process came at 2026-09-21"
    )


async def test_rates_are_shown_and_a_silent_process_is_named(console: ConsoleInstallation) -> None:
    await console.user("root", administrator=True)
    root = await console.logged_in("root")
    for second in (0, STATUS_INTERVAL_S):
        requests = [ResultCount(count=100 * second), ResultCount(result=401, count=2 * second)]
        counts = ProcessCounts(requests=requests, pushes=90 * second, sent=1200 * second, received=11 * second)
        everything_works(
            console,
            edge=status_of("edge", counts=counts, work=102 * second),
            gateway=status_of("gateway", connected_devices=12_345, work=300 * second),
            **({} if second else {"edge2": status_of("edge")}),
        )
        console.clock.move(STATUS_INTERVAL_S)
    await overview_says(
        root,
        "12,345 devices online",
        "102 requests a second",
        "90 pushes a second",
        "1,200 sent a second",
        "11 acknowledged a second",
        "2 requests refused a second 401: 2",
        "0 faults a second",
    )
    console.clock.move(SILENT_MS / 1000 - STATUS_INTERVAL_S)
    everything_works(console)
    words = await overview_says(root, "edge – 1 process is silent", "edge-host is silent since 2026-09-21 22:13:20")
    assert "Not everything works" in words


async def test_the_overview_says_which_apps_are_paused_and_not_that_everything_works(
    console: ConsoleInstallation,
) -> None:
    await console.user("root", administrator=True)
    appkey = await console.app("News", await console.team("News", head="administrator"))
    await console.app("Weather")
    head, root = await console.logged_in("head"), await console.logged_in("root")
    some_time_later(console)
    everything_works(console)
    await head.post(f"/apps/{appkey}/pause", change="pause", reason="storm")
    words = await overview_says(root, "Nothing is sent of apps that are paused: News (storm).")
    assert "Everything works" not in words
    announce(console, delivery=None)
    await overview_says(root, "delivery – away", "Nothing is sent of apps that are paused: News (storm).")
    await head.post(f"/apps/{appkey}/pause", change="resume")
    everything_works(console)
    await overview_says(root, "Everything works.")


async def test_the_overview_names_some_of_many_paused_apps(console: ConsoleInstallation) -> None:
    await console.user("root", administrator=True)
    root = await console.logged_in("root")
    for number in range(11):
        appkey = await console.app(f"App {number}")
        await root.get(f"/apps/{appkey}")
        await root.post(f"/apps/{appkey}/pause", change="pause", reason="")
    page = await root.get("/")
    assert page.text.count('<a href="/apps/') == 10
    assert '<a href="/apps">…</a>' in page.text


async def test_members_see_the_devices_of_their_apps_and_nothing_of_processes(console: ConsoleInstallation) -> None:
    own = await console.app("News", await console.team("News", viewer="viewer"))
    foreign = await console.app("Foreign")
    viewer = await console.logged_in("viewer")
    some_time_later(console)
    everything_works(console)
    devices = [AppDevices(appkey=own, count=41), AppDevices(appkey=foreign, count=77)]
    announce(
        console, gateway2=status_of("gateway", devices=devices), gateway3=status_of("gateway", devices=devices[:1])
    )
    words = await overview_says(viewer, "Everything works.", "News active 82")
    for hidden in ("Foreign", "77", "gateway", "host", "a second"):
        assert hidden not in words
    announce(console, scheduling=None)
    words = await overview_says(viewer, "A part of the service is away or late")
    assert "scheduling" not in words
    chinese = await viewer.http.get("/", headers={"Accept-Language": "zh-CN"})
    assert "服务的一部分" in text_of(chinese)


async def test_before_the_first_push_the_overview_says_what_comes_next(console: ConsoleInstallation) -> None:
    await console.app("News", await console.team("News", sender="sender"))
    sender = await console.logged_in("sender")
    assert 'hx-get="/pushes?latest=5"' in (await sender.get("/")).text
    rows = await sender.get("/pushes?latest=5", **{"HX-Request": "true"})
    assert "What next: Connect a device:" in text_of(rows)
    for path in ("/apps", "/send"):
        assert f'href="{path}"' in rows.text
