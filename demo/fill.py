"""Fills the directory of the demo, or serves it again."""

import json
import random
import resource
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from demo.afternoon import EVENT_WEIGHT, HOURS, PUSHES_OF_PEOPLE, simulate_afternoon
from demo.app_servers import AppServers
from demo.device_users import DeviceUsers
from demo.history import DAY_MS, simulate_history
from demo.installation import Demo
from demo.moved_clock import ClockFile
from demo.organisation import ADMINISTRATOR, TEAMS, Installed, device_counts, set_app_settings, set_up
from demo.people import People
from demo.person import PASSWORD, ConsoleSession
from demo.population import HISTORY_DAYS, DemoDevice, known_device, populate
from demo.service import DemoService
from services.errors import CarillonError

_MARKER = "demo.json"
_IDENTITIES = "devices.json"
_HOUR_MS = 3_600_000
_PUSHES_OF_HISTORY = 3 * HISTORY_DAYS


@dataclass(frozen=True)
class DemoPlan:
    """The size, seed and directory of a demo. `is_anew`: an earlier demo in the directory is deleted first."""

    directory: Path
    devices: int
    pushes: int
    seed: int
    is_anew: bool = False


@asynccontextmanager
async def fill(plan: DemoPlan, service: DemoService) -> AsyncIterator[None]:
    """Start the service and fill it, unless that was done before; its devices stay connected meanwhile.

    CarillonError: the directory has files that are not a demo's, or a step fails.
    """
    _raise_file_limit()
    if _is_filled(plan):
        async with _served_again(plan, service):
            yield
        return
    shutil.rmtree(plan.directory, ignore_errors=True)
    plan.directory.mkdir(parents=True)
    _mark(plan, is_filled=False)
    now_ms = time.time_ns() // 1_000_000
    begins_ms = now_ms - HISTORY_DAYS * DAY_MS - HOURS * _HOUR_MS
    clock = ClockFile.create(service.clock_file, begins_ms - _HOUR_MS - now_ms)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeElapsedColumn(),
        console=Console(stderr=True),
    )  # fmt: skip
    with bar:
        task = bar.add_task("Starting the service", total=plan.devices * 1.2 + plan.pushes * EVENT_WEIGHT)

        def step(words: str) -> None:
            bar.update(task, description=words)

        def advance(work: int) -> None:
            bar.advance(task, work)

        service.start()
        admin = ConsoleSession(service.console_url, ADMINISTRATOR)
        await admin.use_link(service.first_link())
        step("Teams, people and apps")
        installed = await set_up(service, admin)
        set_app_settings(service, installed)
        demo = _demo(plan, service, clock, installed)
        people = People(service.console_url, installed)
        step(f"{HISTORY_DAYS} days before")
        await simulate_history(demo, now_ms - HOURS * _HOUR_MS, advance)
        step("The afternoon")
        await demo.move_to(now_ms - HOURS * _HOUR_MS)
        await people.log_in(admin)
        pushes = max(0, plan.pushes - _PUSHES_OF_HISTORY - PUSHES_OF_PEOPLE)
        await simulate_afternoon(demo, people, now_ms - HOURS * _HOUR_MS, pushes, advance)
        await demo.move_to(time.time_ns() // 1_000_000 + 1)
        bar.update(task, completed=bar.tasks[0].total)
    await people.close()
    await demo.servers.close()
    _mark(plan, is_filled=True)
    _remember(plan, demo)
    try:
        yield
    finally:
        await demo.users.close()


@asynccontextmanager
async def _served_again(plan: DemoPlan, service: DemoService) -> AsyncIterator[None]:
    """Start the service on the filled directory; the devices that were online at the end connect again."""
    clock = ClockFile.create(service.clock_file, 0)
    service.start()
    users = DeviceUsers(service.gateway_url, service.v2_url, clock.now_ms, random.Random(plan.seed))
    by_app: dict[str, list[DemoDevice]] = {}
    for appkey, token, key in json.loads((plan.directory / _IDENTITIES).read_text()):
        by_app.setdefault(appkey, []).append(known_device(appkey, token, key))
    try:
        for appkey, devices in by_app.items():
            await users.connect(appkey, devices, lambda _: None)
        yield
    finally:
        await users.close()


def _remember(plan: DemoPlan, demo: Demo) -> None:
    """Store the devices that are online in a file of mode 600, since it holds their keys."""
    saved = [(demo.installed.appkeys[known.app], known.storage.saved) for known in demo.users.online_devices()]
    path = plan.directory / _IDENTITIES
    path.touch(mode=0o600)
    path.write_text(json.dumps([(appkey, each.token, each.key) for appkey, each in saved]))


def summary(service: DemoService) -> str:
    """Return the addresses and log-ins, for people."""
    lines = [
        "",
        f"The console:  {service.console_url}",
        f"Password of everybody:  {PASSWORD}",
        "",
        f"  {ADMINISTRATOR:<14} administrator of the installation",
    ]
    for team in TEAMS:
        lines += [f"  {person.login:<14} {person.role} of {team.name}" for person in team.people]
    return "\n".join([*lines, "", "Ctrl-C stops it. The next start serves the same; --anew fills it again."])


def _demo(plan: DemoPlan, service: DemoService, clock: ClockFile, installed: Installed) -> Demo:
    chance = random.Random(plan.seed)
    counts = device_counts(plan.devices)
    apps = [app for team in TEAMS for app in team.apps]
    devices = {app.key: populate(app.key, counts[app.key], app.interests, chance, is_ios=app.is_ios) for app in apps}
    servers = AppServers(service.v2_url, service.android_url, service.ios_url, installed)
    users = DeviceUsers(service.gateway_url, service.v2_url, clock.now_ms, random.Random(plan.seed + 1))
    return Demo(service, clock, installed, servers, users, devices, chance)


def _is_filled(plan: DemoPlan) -> bool:
    """Return whether the directory has a complete demo that is to be kept. CarillonError: it has other files."""
    if not plan.directory.exists() or not any(plan.directory.iterdir()):
        return False
    try:
        marker = json.loads((plan.directory / _MARKER).read_text())
    except (OSError, ValueError):
        raise CarillonError(f"{plan.directory} has files that are not a demo's; name another --directory") from None
    return bool(marker["is_filled"]) and not plan.is_anew


def _mark(plan: DemoPlan, *, is_filled: bool) -> None:
    made = {"devices": plan.devices, "pushes": plan.pushes, "seed": plan.seed, "is_filled": is_filled}
    (plan.directory / _MARKER).write_text(json.dumps(made))


def _raise_file_limit() -> None:
    """Take as many open files as the host allows, one for each connected device."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
