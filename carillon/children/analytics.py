"""`carillon up-analytics`: the analytics of `carillon up`, which starts it as its child process.

The command is in no help text: only its parent starts it.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.abc import MetaPathFinder
from typing import Any

import click

from analytics.settings import ROLE_NAME, AnalyticsSettings
from carillon.children.process import Progress, run_as_child
from carillon.roles import role_definition
from services.domain.apps import AppDirectory
from services.domain.master_key import Keys
from services.domain.role import BuiltRole, RoleContext
from services.domain.role_context import open_log, signed_log
from services.domain.signing_keys import load_signing_keys
from services.domain.topics import TOPICS
from services.runtime.log.monitored import MonitoredLog
from services.runtime.process.clock import SystemClock
from services.runtime.process.retries import retry_until_available
from services.runtime.rpc.peers import Peers

COMMAND = "up-analytics"
_POLL_S = 1.0


@click.command(name=COMMAND, hidden=True)
@click.option("--parent", type=int, required=True)
def up_analytics(parent: int) -> None:
    """Run the analytics of `carillon up`, the process PARENT."""
    sys.meta_path.insert(0, _WithoutPandas())
    run_as_child(parent, ROLE_NAME, _role, AnalyticsSettings)


class _WithoutPandas(MetaPathFinder):
    """Makes pandas count as not installed: pyarrow imports it where it is, and nothing here uses it.

    It takes 30 to 40 MiB and half a second of the start.
    """

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is left out", name=fullname)


@asynccontextmanager
async def _role(settings: AnalyticsSettings) -> AsyncIterator[tuple[BuiltRole, Progress]]:
    """Yield the role, and a function that returns how much it has read. The role calls no other one and has no key."""
    opened = await retry_until_available(
        "the log cannot be reached yet", lambda: open_log(settings, read_only=True, poll_s=_POLL_S)
    )
    monitored = MonitoredLog(opened, SystemClock())
    try:
        log = signed_log(settings, load_signing_keys(settings, ROLE_NAME, reads_master=False), monitored)
        context = RoleContext(log, SystemClock(), Peers({}, TOPICS), Keys({}), AppDirectory(log))
        yield role_definition(ROLE_NAME).build(settings, context), lambda: monitored.records_read
    finally:
        await monitored.close()
