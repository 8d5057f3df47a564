"""Charts, as Chromium draws them: what can be read of them without a pointer."""

from protos.analytics.v1.analytics_pb2 import ConnectionsRow, LoginsRow, StatisticsResponse
from tests.console.browser.chromium import chromium_page
from tests.console.conftest import ConsoleInstallation
from tests.console.statistics.test_pages import viewer_of_app


async def test_the_legend_of_a_chart_has_the_last_numbers(console: ConsoleInstallation) -> None:
    appkey, viewer = await viewer_of_app(console)
    rows = [
        ConnectionsRow(date="2026-09-20", average=1, maximum=2, minimum=0),
        ConnectionsRow(date="2026-09-21", average=0.2, maximum=1, minimum=0),
    ]
    console.analytics.statistics[appkey] = StatisticsResponse(connections=rows)
    async with chromium_page(viewer) as page:
        await page.goto("/statistics")
        legend = page.locator(".chart .u-legend")
        last = "Day2026-09-21Average0.2Maximum1Minimum0"

        async def words() -> str:
            return "".join((await legend.inner_text()).replace(":", "").split())

        assert await words() == last
        box = await page.locator(".chart .u-over").bounding_box()
        assert box is not None
        await page.mouse.move(box["x"] + 5, box["y"] + 50)
        await page.wait_for_function("document.querySelector('.u-legend').innerText.includes('2026-09-20')")
        await page.mouse.move(0, 0)
        await page.wait_for_function("document.querySelector('.u-legend').innerText.includes('2026-09-21')")
        assert await words() == last


async def test_lines_of_a_chart_differ_and_its_axis_counts_whole_devices(console: ConsoleInstallation) -> None:
    appkey, viewer = await viewer_of_app(console)
    rows = [LoginsRow(date=f"2026-09-2{day}", counts={1: day, 30: 1}) for day in range(2)]
    console.analytics.statistics[appkey] = StatisticsResponse(logins=rows)
    async with chromium_page(viewer) as page:
        await page.goto("/statistics?kind=logins")
        lines, label, ticks = await page.evaluate(
            """() => {
              const [chart] = drawn.values();
              return [chart.series.slice(1).map((line) => [line.stroke(), `${line.dash}`]),
                chart.axes[1].label, chart.axes[1]._splits];
            }"""
        )
        assert len({stroke for stroke, _ in lines}) == len(lines) == 8
        assert len({dash for _, dash in lines}) > 1
        assert label == "Devices"
        assert all(tick == int(tick) for tick in ticks)
