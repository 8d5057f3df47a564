"""docs/capacity.md has the tables that `python -m bench.capacity` computes, from constants that other pages have."""

import re

import pytest

from bench.capacity import measured
from bench.capacity.__main__ import PAGE, SIZES, tables, written
from bench.capacity.measured import ALL, Measured
from bench.capacity.plan import Load, plan
from testkit.repository import ROOT


def test_the_tables_of_the_page_are_computed() -> None:
    page = PAGE.read_text()
    assert written(page, tables(SIZES)) == page, "run: python -m bench.capacity --write"
    assert tables(SIZES) in page


@pytest.mark.parametrize("constant", ALL, ids=lambda constant: constant.words[:30])
def test_each_constant_is_measured_where_it_says(constant: Measured) -> None:
    assert constant.words in (ROOT / constant.page).read_text()


def test_a_plan_grows_with_its_load() -> None:
    small, large = plan(10_000_000, Load()), plan(100_000_000, Load())
    assert all(of_large >= of_small for of_small, of_large in zip(small, large, strict=True))
    assert plan(10_000_000, Load(spare=0.25)).edge_workers >= small.edge_workers
    for devices in SIZES:
        partitions = plan(devices, Load()).partitions
        assert devices / partitions <= measured.MAX_AUDIENCE_DEVICES
        assert partitions <= measured.MAX_PARTITIONS


def test_the_text_names_numbers_of_its_tables() -> None:
    billion = plan(1_000_000_000, Load())
    text = PAGE.read_text().partition("<!-- end -->")[2]
    for number in (f"{billion.gateways:,} gateway processes", f"{billion.edge_workers} edge workers"):
        assert number in text
    assert re.search(rf"needs {billion.partitions} partitions", text)
    assert (
        f"{billion.delivery} instances of delivery with {billion.delivery_memory_gb / billion.delivery:.0f} GB" in text
    )
    assert f"brokers with {billion.log_disk_tb / 3:.0f} TB each" in text
