import pytest

from dlcloud.benchmarks.harness import roofline
from dlcloud.benchmarks.harness.roofline import Peak, Peaks, Work, share_of_peak

PEAK = Peak(dtype="fp32", flop_per_s=100e9, bytes_per_s=10e9)


@pytest.mark.parametrize(
    ("work", "bound", "share"),
    [
        (Work(flop=4e9, bytes=1e8), "compute", 40),
        (Work(flop=1e9, bytes=5e8), "memory", 50),
        (Work(flop=1e9, bytes=5e9), "compute", 10),  # more than memory brings: caches held it
        (Work(flop=1e9), "compute", 10),
    ],
)
def test_a_roofline_says_what_bounds_a_setting(work, bound, share):
    facts = share_of_peak(work, 10, PEAK)
    assert (facts["bound"], facts["share_of_peak_percent"]) == (bound, share)
    assert "peak_raised_percent" not in facts


def test_no_share_is_above_100_percent():
    facts = share_of_peak(Work(flop=11e9), 10, PEAK)
    assert facts["share_of_peak_percent"] == 100
    assert facts["peak_raised_percent"] == 10
    assert facts["peak_gflops"] == facts["reached_gflops"] == 110


def test_a_peak_is_measured_once_for_a_name_and_an_environment():
    peaks, slower = Peaks(), Peak(dtype="fp32", flop_per_s=50e9, bytes_per_s=20e9)
    for environment, peak in (("a", PEAK), ("a", None), ("b", slower), ("c", None)):
        peaks.keep("fp32", environment, lambda peak=peak: peak)
    assert peaks.best("fp32") == Peak(dtype="fp32", flop_per_s=100e9, bytes_per_s=20e9)
    assert peaks.best("int8") is None


def test_work_is_read_from_facts_as_it_was_written():
    work = Work(flop=8e9, bytes=1e8, uncounted=("Relu",))
    assert work.facts() == {
        "flop_per_input": 8e9,
        "bytes_per_input": 1e8,
        "uncounted_operators": ["Relu"],
    }
    assert Work.of_facts(work.facts()) == work
    assert work.computed_in("int8") == Work(flop=8e9, bytes=25e6, uncounted=("Relu",))
    assert Work.of_facts({}) is None


def test_the_best_rate_is_that_of_the_fastest_run():
    times = iter([0.5, 0.1, 0.02, 0.1, *[0.05] * 100])
    clock = [0.0]

    def run():
        clock[0] += next(times)

    assert roofline.best_rate(run, 1.0, 0.3, clock=lambda: clock[0]) == pytest.approx(50)


def test_larger_products_are_left_out_where_they_take_long():
    sizes, clock = [], [0.0]

    def make(size):
        sizes.append(size)

        def run():
            clock[0] += 2 * size**3 / 1e9

        return run

    assert roofline.best_product(make, 1.0, clock=lambda: clock[0]) == pytest.approx(1e9)
    assert set(sizes) == {512}
