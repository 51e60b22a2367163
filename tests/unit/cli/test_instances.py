"""`dlcloud instances`: filters, prices with their dates, retired types with their successors."""

import csv
import io
from dataclasses import replace

import pytest
from click.testing import CliRunner

from dlcloud.cli.account import instances as command
from dlcloud.model.errors import RecipeError
from dlcloud.model.instance import Accelerator, Market
from dlcloud.report.instances import TypeOffer, instances_report
from dlcloud.report.table import Format, render
from tests.fakes.samples import hardware, price


@pytest.fixture
def listed(tmp_path, monkeypatch):
    monkeypatch.setenv("DLCLOUD_HOME", str(tmp_path))

    def run(*arguments):
        done = CliRunner().invoke(command, [*arguments, "-o", "csv"], catch_exceptions=False)
        assert done.exit_code == 0
        return list(csv.DictReader(io.StringIO(done.stdout)))

    return run


def test_g4_gives_more_tensor_tflops_for_a_dollar_than_p3(listed):
    rows = {row["instance_type"]: row for row in listed("g4dn.xlarge", "p3.2xlarge")}
    g4, p3 = rows["g4dn.xlarge"], rows["p3.2xlarge"]
    # 65 TFLOPS for 0.526 USD against 125 for 3.06, the comparison that made a team choose G4.
    assert float(g4["tflops_per_usd"]) == pytest.approx(65 / 0.526, rel=1e-3)
    assert float(p3["tflops_per_usd"]) == pytest.approx(125 / 3.06, rel=1e-3)
    assert list(rows) == ["g4dn.xlarge", "p3.2xlarge"]


def test_a_retired_type_has_its_last_price_dated_and_current_successors(listed):
    (row,) = listed("p3.2xlarge")
    assert (row["status"], row["hourly_usd"]) == ("retired", "3.06")
    assert row["price_as_of"]
    near = row["successors"].split()
    assert len(near) == 3
    assert all(listed(name)[0]["status"] == "current" for name in near)


def test_retired_types_are_listed_only_where_they_are_asked_for(listed):
    assert "retired" not in {row["status"] for row in listed()}
    assert "retired" in {row["status"] for row in listed("--retired")}


def test_a_cpu_flag_is_understood_as_linux_spells_it(listed):
    rows = listed("--instruction-set", "avx512_vnni")
    assert rows
    assert all("vnni" in row["cpu_isa"].split() for row in rows)
    assert "c5.xlarge" not in {row["instance_type"] for row in listed("--instruction-set", "amx")}


def test_the_whole_table_fits_a_terminal_of_80_columns(tmp_path, monkeypatch):
    monkeypatch.setenv("DLCLOUD_HOME", str(tmp_path))
    text = CliRunner().invoke(command, [], catch_exceptions=False).stdout
    assert max(map(len, text.splitlines())) <= 80


def test_all_types_of_ec2_with_their_spot_prices_fit_80_columns_too():
    samples = (
        ("u7in-32tb.224xlarge", {"memory_gib": 0.612305}, "407.68"),
        ("r8gd.metal-24xl", {"architectures": ("x86_64_mac",), "cpu_isa": ()}, "10.49264"),
        ("p6-b300.48xlarge", {"cpu_isa": ("avx512", "vnni", "amx")}, "113.9328"),
        ("inf2.48xlarge", {"accelerator": Accelerator(name="Inferentia2", count=12, memory_mib=32768)}, "1"),
    )
    spot = price(market=Market.SPOT, usd="51.2698")
    offers = [
        TypeOffer(hardware=replace(hardware(name), **other), on_demand=price(usd=usd), spot=spot)
        for name, other, usd in samples
    ]
    text = render(instances_report(offers, region="ap-southeast-1"), Format.TABLE)
    assert max(map(len, text.splitlines())) <= 80
    assert "avx512" in render(instances_report(offers[:1], region="us-east-1"), Format.TABLE)


def test_filters_narrow_each_other_down(listed):
    rows = listed("--gpu", "any", "--max-usd-per-hour", "1")
    assert rows
    assert all(row["gpu"] and float(row["hourly_usd"]) <= 1 for row in rows)
    assert {(row["gpu"], row["gpu_count"]) for row in listed("--gpu", "t4")} == {("T4", "1")}
    assert {row["gpu_count"] for row in listed("--gpu", "t4:4+")} == {"4", "8"}
    assert {row["gpu"] for row in listed("--gpu", "none")} == {""}


def test_a_family_names_all_its_sizes(listed):
    assert {row["instance_type"].partition(".")[0] for row in listed("c7i")} == {"c7i"}


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["c7i.xlage"], "c7i.xlarge"),
        (["x99g.large"], "--live asks EC2 for types that the bundled table lacks"),
        (["--region", "any"], "there is no region any"),
        (["--region", "eu-centrl-1"], "there is no region eu-centrl-1"),
    ],
)
def test_what_nobody_knows_is_refused_with_what_helps(listed, words, answer):
    with pytest.raises(RecipeError) as refused:
        listed(*words)
    assert answer in f"{refused.value.message} {refused.value.hint}"


def test_types_of_ec2_are_listed_with_what_is_known_of_them():
    offers = [
        TypeOffer(hardware=replace(hardware(name), **other), on_demand=None, spot=None)
        for name, other in {
            "c7g.large": {"architectures": ("arm64",), "cpu_isa": ()},
            "g6f.large": {"accelerator": Accelerator(name="L4", count=1, memory_mib=2861, share=0.125)},
        }.items()
    ]
    text = render(instances_report(offers, region="us-east-1"), Format.TABLE)
    assert "arm64" in text
    assert "1/8 L4" in text
    assert "no price of us-east-1 is known: --live asks AWS" in text


def test_if_nothing_is_like_that_the_answer_names_what_comes_nearest(tmp_path, monkeypatch):
    monkeypatch.setenv("DLCLOUD_HOME", str(tmp_path))
    output = CliRunner().invoke(command, ["--gpu", "L4", "--max-usd-per-hour", "0.5"]).stdout
    assert "no instance type has gpu: L4" in output
    assert "left out by gpu: g6.12xlarge (4x L4)" in output
    assert "left out by max_usd_per_hour: g6.xlarge (0.8048 USD/h)" in output
