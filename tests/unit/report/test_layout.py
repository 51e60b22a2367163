"""Tables within a terminal: no number or name is broken, optional columns appear where there is room."""

from dlcloud.model.cluster import Leftover
from dlcloud.report.account import PricedLeftover, leftovers_report
from dlcloud.report.table import NARROWEST, WIDEST, Format, render, terminal_width
from tests.fakes.clock import START
from tests.fakes.samples import instance


def test_the_width_is_that_of_the_terminal_within_limits(monkeypatch):
    for columns, width in (("20", NARROWEST), ("120", 120), ("999", WIDEST), ("", NARROWEST)):
        monkeypatch.setenv("COLUMNS", columns)
        assert terminal_width() == width


def test_ids_of_ec2_stay_whole_at_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    names = {
        "instance": "i-bf48a39b280ae523d",
        "fleet": "fleet-1e6828d5-1ea6-35c5-a274-c6a07fbefa33",
        "launch-template": "lt-42582855eed2eb063",
        "security-group": "sg-a0686f4e352863185",
    }
    left = [
        PricedLeftover(
            leftover=Leftover(
                kind=kind,
                resource_id=name,
                cluster_id="929afeb15a0e",
                name="",
                region="us-west-2",
                instance=instance() if kind == "instance" else None,
            ),
            hourly_usd=None,
        )
        for kind, name in names.items()
    ]
    text = render(leftovers_report(left, now=START), Format.TABLE)
    assert max(map(len, text.splitlines())) <= 80
    assert all(name in text for kind, name in names.items() if kind != "fleet")
