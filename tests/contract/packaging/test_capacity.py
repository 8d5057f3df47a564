"""docs/capacity.md has the tables that `python -m bench.capacity` computes, from constants that other pages have."""

import itertools
import json
import re
import subprocess
import sys
from typing import Any

import pytest

from testkit.repository import ROOT

PAGE = (ROOT / "docs/capacity.md").read_text()


@pytest.fixture(scope="module")
def computed() -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.capacity", "--json"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_the_tables_of_the_page_are_computed(computed: dict[str, Any]) -> None:
    (table,) = re.findall(r"<!-- python -m bench.capacity --write -->\n\n(.*?)\n<!-- end -->", PAGE, re.DOTALL)
    assert table == computed["tables"], "run: python -m bench.capacity --write"


def test_the_page_named_for_each_constant_has_its_measurement(computed: dict[str, Any]) -> None:
    assert len(computed["measured"]) > 15
    for constant in computed["measured"]:
        assert constant["words"] in (ROOT / constant["page"]).read_text(), constant


def test_a_plan_grows_with_its_devices_and_fits_the_partitions(computed: dict[str, Any]) -> None:
    plans = computed["plans"]
    for small, large in itertools.pairwise(plans):
        assert all(large[name] >= small[name] for name in small)
    for one in plans:
        assert one["devices"] / one["partitions"] <= computed["devices_of_a_partition"]
        assert one["partitions"] <= 1024


def test_the_text_has_the_numbers_of_its_tables(computed: dict[str, Any]) -> None:
    billion = computed["plans"][-1]
    text = PAGE.partition("<!-- end -->")[2]
    each_gb = billion["delivery_memory_gb"] / billion["delivery"]
    for words in (
        f"{billion['gateways']:,} gateway processes",
        f"{billion['edge_workers']} edge workers",
        f"needs {billion['partitions']} partitions",
        f"{billion['delivery']} instances of delivery with {each_gb:.0f} GB",
        f"brokers with {billion['log_disk_tb'] / 3:.0f} TB each",
    ):
        assert words in text
