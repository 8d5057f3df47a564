"""The regions that a device filter may name, and the normalisation of what devices' locators report.

Locators write a region in several forms: 广东, 广东省, 广东省深圳市, 中国|广东省|深圳市, Guangdong Province.
"""

import unicodedata
from collections.abc import Mapping
from types import MappingProxyType

REGIONS = frozenset(
    {
        "上海市",
        "云南省",
        "内蒙古自治区",
        "北京市",
        "台湾省",
        "吉林省",
        "四川省",
        "天津市",
        "宁夏回族自治区",
        "安徽省",
        "山东省",
        "山西省",
        "广东省",
        "广西壮族自治区",
        "新疆维吾尔自治区",
        "江苏省",
        "江西省",
        "河北省",
        "河南省",
        "浙江省",
        "海南省",
        "湖北省",
        "湖南省",
        "澳门特别行政区",
        "甘肃省",
        "福建省",
        "西藏自治区",
        "贵州省",
        "辽宁省",
        "重庆市",
        "陕西省",
        "青海省",
        "香港特别行政区",
        "黑龙江省",
    }
)

_SUFFIXES = ("维吾尔自治区", "壮族自治区", "回族自治区", "特别行政区", "自治区", "省", "市")
_COUNTRY = ("中华人民共和国", "中国", "china")
_OTHERS = ("海南藏族", "河南蒙古族")
"""Beginnings of names of prefectures and counties that begin as a region's name and lie in another region."""

_LATIN = {
    "上海市": "shanghai",
    "云南省": "yunnan",
    "内蒙古自治区": "innermongolia neimenggu neimongol",
    "北京市": "beijing",
    "台湾省": "taiwan 臺灣",
    "吉林省": "jilin",
    "四川省": "sichuan",
    "天津市": "tianjin",
    "宁夏回族自治区": "ningxia",
    "安徽省": "anhui",
    "山东省": "shandong",
    "山西省": "shanxi",
    "广东省": "guangdong",
    "广西壮族自治区": "guangxi",
    "新疆维吾尔自治区": "xinjiang",
    "江苏省": "jiangsu",
    "江西省": "jiangxi",
    "河北省": "hebei",
    "河南省": "henan",
    "浙江省": "zhejiang",
    "海南省": "hainan",
    "湖北省": "hubei",
    "湖南省": "hunan",
    "澳门特别行政区": "macau macao 澳門",
    "甘肃省": "gansu",
    "福建省": "fujian",
    "西藏自治区": "tibet xizang",
    "贵州省": "guizhou",
    "辽宁省": "liaoning",
    "重庆市": "chongqing",
    "陕西省": "shaanxi",
    "青海省": "qinghai",
    "香港特别行政区": "hongkong",
    "黑龙江省": "heilongjiang",
}
_LATIN_SUFFIXES = (
    *("zhuangautonomousregion", "huiautonomousregion", "uyghurautonomousregion", "uygurautonomousregion"),
    *("autonomousregion", "specialadministrativeregion", "municipality", "province", "sheng", "city", "shi", "sar"),
)


def _short(region: str) -> str:
    """Return a region's name without its suffix, which says of which kind it is."""
    suffix = next(suffix for suffix in _SUFFIXES if region.endswith(suffix))
    return region.removesuffix(suffix)


_CHINESE: Mapping[str, str] = MappingProxyType({_short(region): region for region in REGIONS})
_NAMES: Mapping[str, str] = MappingProxyType({name: region for region in _LATIN for name in _LATIN[region].split()})
"""Regions by their names in Latin letters and in traditional characters."""


def region_name(reported: str) -> str:
    """Return the region of REGIONS that a locator means, or what the device reported if it names another place."""
    letters = "".join(c for c in unicodedata.normalize("NFKC", reported).casefold() if c.isalpha())
    for country in _COUNTRY:
        letters = letters.removeprefix(country)
    if not letters.startswith(_OTHERS):
        for length in (2, 3):  # of the short names in Chinese
            if region := _CHINESE.get(letters[:length]) or _NAMES.get(letters[:length]):
                return region
    short = next((letters.removesuffix(end) for end in _LATIN_SUFFIXES if letters.endswith(end)), letters)
    return _NAMES.get(short) or _NAMES.get(letters) or reported
