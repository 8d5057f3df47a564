"""Carriers as devices report them, mapped to the codes that filters use."""

import pytest

from services.registry.decide import carrier_code


@pytest.mark.parametrize(
    ("code", "reported"),
    [
        ("cm", ["cm", "CM", "中国移动", "中国移动 4G", "移动", "全球通", "动感地带", "神州行", "中国铁通"]),
        (
            "cm",
            [
                "China Mobile",
                "CHINA MOBILE",
                "china-mobile",
                "CMCC",
                "CMCC-LTE",
                "China  Mobile  5G",
                "Ｃｈｉｎａ Ｍｏｂｉｌｅ",
            ],
        ),
        ("cm", ["46000", "46002", "46004", "46007", "46008", "46020", "460-00", "460 02"]),
        ("cu", ["cu", "中国联通", "联通", "沃", "WO", "China Unicom", "CHN-UNICOM", "CHN-CUGSM", "中国网通", "CUCC"]),
        ("cu", ["46001", "46006", "46009", "460 01"]),
        ("ct", ["ct", "中国电信", "电信", "天翼", "天翼领航", "China Telecom", "CHINA TELECOM 4G", "CHN-CT", "CTCC"]),
        ("ct", ["46003", "46005", "46011", "460-11"]),
    ],
)
def test_sub_brands_and_network_codes_are_mapped(code: str, reported: list[str]) -> None:
    assert {name: carrier_code(name) for name in reported} == dict.fromkeys(reported, code)


@pytest.mark.parametrize(
    "reported", ["", "中国广电", "46015", "46099", "Vodafone", "T-Mobile", "中华电信", "  ", "4G", "wifi"]
)
def test_other_carriers_stay_as_they_were_reported(reported: str) -> None:
    assert carrier_code(reported) == reported
