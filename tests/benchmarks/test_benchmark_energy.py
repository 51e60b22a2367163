"""The energy of processor packages, where the machine counts it."""

import pytest

from dlcloud.benchmarks.harness.usage import energy_facts, joules_between, read_energy


def write_counter(root, name, used, turn=1000):
    folder = root / name
    folder.mkdir(exist_ok=True)
    (folder / "energy_uj").write_text(f"{used}\n")
    (folder / "max_energy_range_uj").write_text(f"{turn}\n")


def test_packages_are_summed_and_their_parts_are_not(tmp_path):
    write_counter(tmp_path, "intel-rapl:0", 100)
    write_counter(tmp_path, "intel-rapl:1", 900)
    write_counter(tmp_path, "intel-rapl:0:0", 5)
    before = read_energy(tmp_path)
    write_counter(tmp_path, "intel-rapl:0", 300)
    write_counter(tmp_path, "intel-rapl:1", 50)  # it began again at 0
    write_counter(tmp_path, "intel-rapl:0:0", 105)
    assert joules_between(before, read_energy(tmp_path)) == pytest.approx(350e-6)


def test_a_machine_that_counts_nothing_states_nothing(tmp_path):
    nothing = read_energy(tmp_path / "missing")
    (tmp_path / "intel-rapl:0").mkdir()  # only root may read the counter
    assert read_energy(tmp_path) == nothing
    assert joules_between(nothing, nothing) is None
    assert energy_facts([None, None], 10) == {}
    assert energy_facts([], 0) == {}


def test_an_item_has_its_part_of_the_energy_of_all_slices():
    assert energy_facts([2.0, 4.0], 12) == {"package_joules_per_item": 0.5}
    assert energy_facts([2.0, None], 12) == {}
