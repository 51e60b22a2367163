"""A program has its share of the cores and GPUs of a machine."""

import os
import subprocess
import sys

import pytest

from dlcloud.benchmarks.command.share import cores_of, take_share, variables


@pytest.mark.parametrize(
    ("items", "count", "shares"),
    [
        ("abcd", 2, ["ab", "cd"]),
        ("abcde", 2, ["ab", "cde"]),
        ("abc", 3, ["a", "b", "c"]),
        ("ab", 3, ["a", "b", "a"]),
        ("", 2, ["", ""]),
    ],
)
def test_shares_are_about_equal_and_never_empty(items, count, shares):
    assert ["".join(take_share(items, index, count)) for index in range(count)] == shares


def test_the_logical_cpus_of_a_core_stay_together(tmp_path):
    for cpu in range(4):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text("0\n")
        (folder / "core_id").write_text(f"{cpu % 2}\n")
    assert cores_of(range(4), tmp_path) == [(0, 2), (1, 3)]
    assert cores_of([0, 9], tmp_path) == [(0,), (9,)]


def test_what_the_user_has_set_stays():
    assert variables({"OMP_NUM_THREADS": "7"}, [(0,), (1,)], ["1"]) == {
        "OMP_NUM_THREADS": "7",
        "MKL_NUM_THREADS": "2",
        "OPENBLAS_NUM_THREADS": "2",
        "CUDA_VISIBLE_DEVICES": "1",
    }


def test_a_program_is_found_by_path_and_pinned():
    program = "import os; print(len(os.sched_getaffinity(0)))"
    words = [sys.executable, "-m", "dlcloud.benchmarks.command.share", "0", "64", "python3", "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60, env={**os.environ})
    assert 1 <= int(done.stdout) <= len(os.sched_getaffinity(0))
