"""The limit of open files is raised for many connections, and never lowered."""

import resource

import pytest

from dlcloud.system.files import MOST_OPEN, allow_many_files, raised

NONE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "limit"),
    [
        (256, NONE, MOST_OPEN),
        (1024, 4096, 4096),
        (1024, 1 << 20, MOST_OPEN),
        (20_000, 1 << 20, 20_000),
        (NONE, NONE, NONE),
    ],
)
def test_the_soft_limit_goes_up_to_the_hard_one(soft, hard, limit):
    assert raised(soft, hard) == limit


def test_the_limit_of_this_process_is_raised_and_stays_possible():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    allow_many_files()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard == before[1]
    assert soft == raised(*before)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
