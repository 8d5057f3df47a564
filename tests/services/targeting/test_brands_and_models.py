"""Brands and models of `optfilter`, from the request to the devices that match."""

from typing import Any

import msgspec
import pytest

from edge.core.parsing import targets
from protos.registry.v1.devices_pb2 import Attributes, Device
from tests.services.targeting.model import APP, device_record
from tests.services.targeting.test_filters import _state, fold, found

PHONES = ("X M1", "X M2", "X ", "Y M1", "Y M9", "Z M1", " ")
"""Brand and model of each device; some report no model, one reports neither."""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"model": {"X": "M1"}}, {"X M1"}),
        ({"phone": ["X"], "model": {"X": "M1"}}, {"X M1"}),
        ({"phone": ["X", "Y"], "model": {"X": "M1"}}, {"X M1", "Y M1", "Y M9"}),
        ({"phone": ["X", "Y"], "model": [{"X": ["M1", "M2"]}, {"Y": "M9"}]}, {"X M1", "X M2", "Y M9"}),
        ({"phone": ["Y"], "model": {"X": "M1"}}, {"Y M1", "Y M9"}),
        ({"model_not": {"X": "M1"}}, set(PHONES) - {"X M1"}),
        ({"phone_not": ["X"], "model_not": {"X": "M1"}}, set(PHONES) - {"X M1"}),
        ({"phone_not": ["X", "Y"], "model_not": {"X": "M1"}}, set(PHONES) - {"X M1", "Y M1", "Y M9"}),
        ({"phone_not": ["Y"], "model_not": {"X": "M1"}}, set(PHONES) - {"X M1", "Y M1", "Y M9"}),
        ({"phone": ["X", "Y"], "model": {"X": "M2"}, "phone_not": ["Y"], "model_not": {"Y": "M1"}}, {"X M2", "Y M9"}),
    ],
)
def test_a_model_narrows_the_brand_it_names_and_no_other(options: dict[str, Any], expected: set[str]) -> None:
    wanted = targets.read(msgspec.Raw(msgspec.json.encode(options)), "optfilter")
    state = _state()
    for number, (brand, model) in enumerate(phone.split(" ") for phone in PHONES):
        device = Device(appkey=APP, number=number, attributes=Attributes(brand=brand, model=model))
        fold(state, [device_record(device)])
    assert {PHONES[number] for _, number in found(state, wanted)} == expected
