"""The region that a device's locator means."""

import pytest

from services.domain.regions import REGIONS, region_name


@pytest.mark.parametrize("region", sorted(REGIONS))
def test_a_region_is_itself_with_and_without_its_kind(region: str) -> None:
    short = region
    for suffix in ("维吾尔自治区", "壮族自治区", "回族自治区", "特别行政区", "自治区", "省", "市"):
        short = short.removesuffix(suffix)
    forms = (
        region,
        short,
        f" {region}",
        f"{region} ",
        f"{region}某市",
        f"{short}某市",
        f"中国{short}",
        f"中国|{region}|某市",
    )
    assert {region_name(form) for form in forms} == {region}


@pytest.mark.parametrize(
    ("reported", "region"),
    [
        ("广东省深圳市南山区", "广东省"),
        ("中国|0|广东省|深圳市|电信", "广东省"),
        ("Guangdong", "广东省"),
        ("Guangdong Province", "广东省"),
        ("CHINA, Guangdong Sheng", "广东省"),
        ("Shanxi", "山西省"),
        ("Shaanxi", "陕西省"),
        ("Beijing Shi", "北京市"),
        ("Guangxi Zhuang Autonomous Region", "广西壮族自治区"),
        ("Inner Mongolia", "内蒙古自治区"),
        ("Hong Kong SAR", "香港特别行政区"),
        ("臺灣", "台湾省"),
        ("吉林市", "吉林省"),
        ("河南省郑州市", "河南省"),
    ],
)
def test_other_forms_of_a_region(reported: str, region: str) -> None:
    assert region_name(reported) == region


@pytest.mark.parametrize(
    "reported",
    ["", " ", "0", "内网IP", "中国", "Bavaria", "深圳市", "海南藏族自治州", "河南蒙古族自治县", "東京都", "x" * 100],
)
def test_other_places_stay_as_they_are(reported: str) -> None:
    assert region_name(reported) == reported
