"""Maps the carrier names that devices report to the three codes of filters: cm, cu and ct.

Devices report a name in Chinese or English, often a sub-brand, or a network code (mobile country code 460 and the
network's two digits). Other carriers stay as reported.
"""

import re
import unicodedata
from collections.abc import Mapping
from types import MappingProxyType

_NAMES = {
    "cm": (
        "中国移动 中国移动通信 中国移动通信集团 移动 移动通信 中移 中移动 全球通 动感地带 神州行 大众卡 和多号"
        " 中国铁通 铁通"
        " cmcc chinamobile chinamobilecommunications chncm chnmobile gotone mzone easyown chinatietong tietong"
        " 46000 46002 46004 46007 46008 46013 46020"
    ),
    "cu": (
        "中国联通 中国联合通信 中国联合网络通信 中国联合网络通信集团 联通 中国网通 网通 沃 世界风 新势力 如意通 新时空"
        " cucc chinaunicom chinaunicomgsm unicom unicomgsm chnunicom chncu chncugsm chinanetcom wo"
        " 46001 46006 46009 46010"
    ),
    "ct": (
        "中国电信 中国电信集团 中国电信天翼 电信 天翼 天翼通 天翼领航 天翼e家 商务领航 我的e家"
        " ctcc chinatelecom chinatelecomcdma chntelecom chnct ctnet surfing esurfing"
        " 46003 46005 46011 46012"
    ),
}
_GENERATION = re.compile("(?:[2-6]g|lte|volte|nr)+$")


def _normalized(name: str) -> str:
    """Normalize width and case; drop spaces, punctuation and generation: "CHINA-MOBILE 4G" is "chinamobile"."""
    letters = "".join(c for c in unicodedata.normalize("NFKC", name).casefold() if c.isalnum())
    return _GENERATION.sub("", letters) or letters


CODES: Mapping[str, str] = MappingProxyType(
    {_normalized(name): code for code, names in _NAMES.items() for name in (code, *names.split())}
)
"""cm, cu or ct by the normalized name, sub-brand or network code."""


def carrier_code(reported: str) -> str:
    """Return cm, cu or ct, or the reported carrier if it is another one."""
    return CODES.get(_normalized(reported), reported)
