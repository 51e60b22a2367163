"""Which types are named beside an unknown one."""

import pytest

from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.planning.fit import KnownType, successors


@pytest.mark.parametrize("name", ["z9.mega", "q1.huge", "c9x.large"])
def test_an_unknown_name_is_beside_types_of_its_letter_only(name):
    types = [KnownType(hardware=hardware, price=None) for hardware in Catalog()]
    assert {near.hardware.name[0] for near in successors(name, types)} <= {name[0]}
