"""Single events of the afternoon: drafts and their approval, timed pushes, a pause, a lost device, look-ups."""

import asyncio
from collections.abc import Awaitable, Callable

from demo.content import BROADCASTS, Text
from demo.installation import Demo
from demo.organisation import NEWS, OPERATIONS, SHOP
from demo.people import People

PlannedEvent = Callable[[], Awaitable[object]]
FAMOUS = "alice"
"""The alias of a device that the staff looks up."""

LOST = "zoe"
"""The alias of a device that stays offline while more messages come than are kept."""

_KEPT = 100
_BLACK_FRIDAY = Text("", "黑五清仓最后两小时", "全场最低 3 折，售完即止。", "https://shop.example.com/bf")
_SURVEY = Text("", "How was your order?", "Two questions, one minute. Your answer helps us to improve.")
_MIDNIGHT = Text("", "Midnight sale for everybody", "A push at night to all devices.")


def planned_events(demo: Demo, people: People) -> list[tuple[float, PlannedEvent]]:
    """Return the actions of the staff at the console, each with its minute of the afternoon."""
    acts = _StaffActions(demo, people)
    return [
        (3, acts.approved_broadcast),
        (21, acts.push_to_a_test_device),
        (38, acts.timed_pushes),
        (52, acts.lost_device),
        (66, acts.rejected_broadcast),
        (81, acts.cancelled_broadcast),
        (97, acts.pause),
        (109, acts.resume),
        (124, acts.rotated_secret),
        (140, acts.cancelled_tasks),
        (151, acts.withdrawn_draft),
        (163, acts.questions),
        (188, acts.pushes_of_people),
        (214, acts.second_approval),
        (236, acts.new_colleague),
        (252, acts.more_questions),
        (281, acts.waiting_tasks),
        (292, acts.waiting_drafts),
    ]


class _StaffActions:
    """The actions of the staff; each method is one planned event."""

    def __init__(self, demo: Demo, people: People) -> None:
        self._demo, self._people = demo, people
        self._servers = demo.servers
        self._tasks: list[str] = []

    def _app(self, app: str) -> str:
        return f"/apps/{self._demo.installed.appkeys[app]}"

    async def approved_broadcast(self) -> None:
        draft = await self._people.send("sofia.meyer", "shop", BROADCASTS["shop"][0], audience="everyone")
        await asyncio.sleep(0.2)
        await self._people.approve("wang.lei", draft)

    async def second_approval(self) -> None:
        both = {"other": self._demo.installed.appkeys["shop_ios"], "audience": "everyone"}
        draft = await self._people.send("sofia.meyer", "shop", BROADCASTS["shop"][1], **both)
        await self._people.approve("wang.lei", draft)

    async def push_to_a_test_device(self) -> None:
        await self._people.send_to_test_device("sofia.meyer", "shop", _SURVEY, FAMOUS)

    async def timed_pushes(self) -> None:
        for text, minutes in ((BROADCASTS["news"][1], 47), (BROADCASTS["news"][0], 600)):
            send_to = {"userScope": 6, "stag": [["breaking"]]}
            option = {"timed": 2, "send_time_interval": minutes * 60}
            answer = await self._servers.push(text, ["news"], send_to, **option)
            self._tasks.append(answer["task_key"])

    async def lost_device(self) -> None:
        """Send more messages to a device that is offline than are kept for it."""
        lost = next(device for device in self._demo.devices["shop"] if device.alias == LOST)
        await self._demo.users.disconnect([lost])
        text = Text("", "价格提醒", "您关注的商品降价了。")
        send_to = {"userScope": 5, "token": {"android": lost.storage.saved.token}}
        await asyncio.gather(*(self._servers.push(text, ["shop"], send_to) for _ in range(_KEPT + 6)))

    async def rejected_broadcast(self) -> None:
        draft = await self._people.send("sofia.meyer", "shop", _MIDNIGHT, audience="everyone")
        reason = "Not at night: please send it at 10:00, and to those who follow deals."
        await self._people.decide("wang.lei", draft, "rejection", reason=reason)

    async def cancelled_broadcast(self) -> None:
        text = Text("", "Test: please ignore", "This push went out by mistake.")
        sent = await self._servers.push(text, ["news"], {"userScope": 1})
        await self._servers.cancel("news", int(sent["id"]))

    async def pause(self) -> None:
        await self._people.pause("ivan.petrov", "rounds", "pause", "Wrong template in the monitoring")

    async def resume(self) -> None:
        await self._people.pause("ivan.petrov", "rounds", "resume", "The template is mended")

    async def rotated_secret(self) -> None:
        await self._people.rotate_secret("zhang.min", "news")

    async def cancelled_tasks(self) -> None:
        await self._servers.cancel_task("news", self._tasks[1])
        path = await self._people.send(
            "tom.baker", "news", BROADCASTS["news"][1], stag="sport", when="after", after="90"
        )
        assert path.startswith("/tasks"), path
        page = self._people.person("tom.baker").page
        form = page.split(f'action="{self._app("news")}/tasks/', 1)[1].partition('"')[0]
        await self._people.submit("tom.baker", "/tasks", f"{self._app('news')}/tasks/{form}", {})

    async def withdrawn_draft(self) -> None:
        draft = await self._people.send("sofia.meyer", "shop", _SURVEY, audience="everyone")
        await self._people.decide("sofia.meyer", draft, "withdrawal")

    async def questions(self) -> None:
        shop = self._app("shop")
        await self._people.look("amara.okafor", f"{self._app('rounds')}/why?name={FAMOUS}")
        await self._people.look("sofia.meyer", f"/devices?appkey={shop[6:]}&name={FAMOUS}", f"{shop}/why?name={LOST}")

    async def pushes_of_people(self) -> None:
        text = Text("", "Snow on the northern routes", "Fit winter tyres before you leave the yard.")
        await self._people.send("amara.okafor", "rounds", text, stag="drivers")
        text = Text("", "周末特刊上线", "深度报道三篇，附播客。", "https://news.example.com/weekend")
        await self._people.send("chen.jing", "news", text, stag="culture, lang:zh")
        await self._people.send("tom.baker", "news", BROADCASTS["news"][2], locate="福建省, 台湾省, 浙江省")
        await self._people.send("sofia.meyer", "shop", _SURVEY, audience="alias", alias=f"{FAMOUS}, ben, nobody")

    async def new_colleague(self) -> None:
        form = {"login": "nora.weiss", "display_name": "Nora Weiss", "role": "sender"}
        team_id = self._demo.installed.team_ids[SHOP.name]
        await self._people.submit("admin", "/users/new", "/users/new", {**form, "team_id": team_id})
        path = f"/teams/{self._demo.installed.team_ids[OPERATIONS.name]}"
        token = {"token_name": "night-shift", "token_role": "viewer", "expires": "30d"}
        await self._people.submit("ivan.petrov", path, f"{path}/tokens", token)

    async def more_questions(self) -> None:
        await self._people.look("lin.wei", "/audit.csv", "/statistics.csv", f"/teams/{self._team(SHOP.name)}")
        await self._people.look("zhang.min", f"{self._app('news')}/why?name=leo", f"/teams/{self._team(NEWS.name)}")

    async def waiting_tasks(self) -> None:
        day = {"userScope": 6, "stag": [["weather"]]}
        for hours in (14, 20, 38):
            option = {"timed": 2, "send_time_interval": hours * 3600}
            await self._servers.push(BROADCASTS["news"][hours % 2], ["news", "news_ios"], day, **option)
        await self._people.send(
            "amara.okafor", "rounds", BROADCASTS["rounds"][0], when="after", after="960", stag="on-call"
        )

    async def waiting_drafts(self) -> None:
        await self._people.send("sofia.meyer", "shop", _BLACK_FRIDAY, audience="everyone")
        await self._people.send(
            "lin.wei", "shop", BROADCASTS["shop"][1], audience="everyone", when="after", after="120"
        )

    def _team(self, name: str) -> str:
        return self._demo.installed.team_ids[name]
