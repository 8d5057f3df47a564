"""What the three teams write to their users, in Chinese and English."""

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

Each = TypeVar("Each")


class Text(NamedTuple):
    """A notification. `stag`: the string tag of its audience. `url`: the page that a click opens; "": the app."""

    stag: str
    title: str
    content: str
    url: str = ""


_GOODS = (
    ("跑步鞋", "Running shoes"), ("羊毛围巾", "Wool scarves"), ("手冲咖啡壶", "Pour-over kettles"),
    ("蓝牙耳机", "Wireless earbuds"), ("亚麻床品", "Linen bedding"), ("登山背包", "Hiking packs"),
    ("护手霜礼盒", "Hand cream sets"), ("陶瓷餐具", "Stoneware"), ("儿童绘本", "Picture books"),
    ("保温杯", "Thermos cups"), ("瑜伽垫", "Yoga mats"), ("香薰蜡烛", "Scented candles"),
)  # fmt: skip
_STAGS_OF_GOODS = ("sneakers", "home", "beauty", "new-in", "deals", "vip")
_SHOP = (
    ("限时优惠：{zh}低至 {n} 折", "今晚 22:00 前下单，满 199 元包邮。"),
    ("{en}: {off}% off until midnight", "Free delivery from 199 yuan. While stocks last."),
    ("新品上架：{zh}", "秋冬系列已经到店，会员可提前选购。"),
    ("Just in: {en}", "The winter collection is here. Members shop first."),
    ("{zh}补货啦", "您关注的商品重新有货，数量有限。"),
    ("Back in stock: {en}", "The colours you looked for are here again."),
)
_HEADLINES = (
    Text("breaking", "长江口今起实施大雾黄色预警", "能见度不足 500 米，部分轮渡停航，请合理安排出行。"),
    Text("business", "央行公布三季度货币政策报告", "报告称将保持流动性合理充裕，促进物价温和回升。"),
    Text("sport", "女排 3 比 1 逆转取胜", "全场最高得分 27 分，下一轮对阵意大利队。"),
    Text("weather", "冷空气周三抵达华东", "气温将下降 8 至 10 度，沿海有 7 级大风。"),
    Text("culture", "上海双年展本周六开幕", "七十位艺术家参展，展期至明年三月。"),
    Text("breaking", "Metro line 4 resumes service", "Trains run normally again after the signal fault this morning."),
    Text("business", "Chip maker opens plant in Chengdu", "The factory is to employ 2,400 people by next spring."),
    Text("sport", "Marathon: course record in Guangzhou", "The winner finished in 2:06:18, forty seconds faster."),
    Text("culture", "A week of silent films with piano", "The film archive shows nine restored prints from Friday."),
    Text("puzzles", "今日数独：难度四星", "平均用时 11 分钟，昨天有 3,812 人完成。"),
    Text("weather", "Air quality: good until Thursday", "Wind from the north-east keeps the air clear in the delta."),
    Text("breaking", "高铁沪蓉沿江段提前通车", "上海至南京南最快 58 分钟，车票今日 15 时开售。"),
    Text(
        "business", "Freight rates fall for the third week", "Routes to Europe are 6 percent cheaper than last month."
    ),
    Text("sport", "CBA：上海队客场险胜", "最后三秒命中三分，104 比 102。"),
)
_PLACES = ("Warehouse 2", "Dock 7", "Cold store", "North gate", "Sorting hall", "Yard C", "三号库", "分拣中心")
_ROUNDS = (
    ("drivers", "Route {n} changed", "Use the {place} entrance; the ring road is closed until 18:00."),
    ("warehouse", "Stock count at {place}", "Please close open picks before 16:30."),
    ("on-call", "Temperature alarm: {place}", "Sensor {n} reads 9.4 °C, limit 8.0 °C. Acknowledge in the app."),
    ("line-4", "四号线停机 {n} 分钟", "更换传送带，恢复后另行通知。"),
    ("drivers", "车辆 {n} 请返回{place}", "轮胎压力低，请在交班前检查。"),
)
BROADCASTS = {
    "shop": (
        Text("", "双十二预热开始", "全场满 300 减 50，领券入口在首页。", "https://shop.example.com/1212"),
        Text("", "Bluebird turns five", "Five days of gifts, starting now. Thank you for being with us."),
    ),
    "news": (
        Text("", "晨报：今日要闻", "十条新闻，五分钟读完。", "https://news.example.com/today"),
        Text("", "Evening briefing", "Ten stories from the afternoon, in five minutes."),
        Text("", "台风路径更新", "“木棉”中心今晚经过台湾海峡，沿海列车部分停运。"),
    ),
    "rounds": (Text("", "Drill at 15:00", "The fire drill concerns all sites. Assemble at the north gate."),),
}
FOR_PEOPLE = {
    "shop": (
        ("订单已发货", "您的包裹预计明天 18:00 前送达。"),
        ("Your parcel is out for delivery", "The courier arrives between 14:00 and 16:00."),
        ("退款已到账", "退款 128.00 元已退回原支付方式。"),
        ("购物车里还有商品", "其中 1 件只剩 3 件库存。"),
    ),
    "news": (
        ("有人回复了您的评论", "“写得很好，期待下一篇。”"),
        ("Your subscription renews tomorrow", "Nothing to do. You can change it in your account."),
    ),
    "rounds": (
        ("New task for you", "Inspect the forklift at dock 7 and sign it off."),
        ("班次变更", "您明天的班次改为 06:00 至 14:00。"),
    ),
}


def shop_texts(chance: random.Random) -> Iterator[Text]:
    """Yield notifications of the shop for users who follow a topic, without end."""
    while True:
        for title, content in _mixed(_SHOP, chance):
            zh, en = chance.choice(_GOODS)
            filled = title.format(zh=zh, en=en, n=chance.randint(3, 8), off=chance.choice((15, 20, 30, 40)))
            url = f"https://shop.example.com/p/{chance.randint(1000, 9999)}" if chance.random() < 0.6 else ""
            yield Text(chance.choice(_STAGS_OF_GOODS), filled, content, url)


def news_texts(chance: random.Random) -> Iterator[Text]:
    while True:
        for text in _mixed(_HEADLINES, chance):
            yield text._replace(url=f"https://news.example.com/a/{chance.randint(20_000, 29_999)}")


def rounds_texts(chance: random.Random) -> Iterator[Text]:
    while True:
        for stag, title, content in _mixed(_ROUNDS, chance):
            place, number = chance.choice(_PLACES), chance.randint(11, 48)
            yield Text(stag, title.format(place=place, n=number), content.format(place=place, n=number))


def _mixed(texts: Sequence[Each], chance: random.Random) -> list[Each]:
    return chance.sample(texts, len(texts))
