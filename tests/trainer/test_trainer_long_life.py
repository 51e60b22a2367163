"""One training through many events: notices, kills, stops, cuts, lost coordinators, stepped clocks."""

import os
import random
import sys

import pytest

from tests.fakes.lives import MACHINES, Fleet, LongLife
from tests.fakes.network import Network

EVENTS = "DLCLOUD_LIFE_EVENTS"


def say(line):
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def live(fleet, seed, count):
    life = LongLife(fleet, random.Random(seed))
    limit_s = 60 * float(os.environ.get("DLCLOUD_LIFE_MINUTES", "inf"))
    try:
        life.run(count, say, limit_s)
    except BaseException as error:
        message = f"seed {seed}, {life.summary()}, last {life.story}: {error}\n{fleet.story()}"
        raise AssertionError(message) from error
    return life


@pytest.mark.long
def test_a_training_holds_through_one_event_of_each_quick_kind(trainer_python, alone):
    """The network is whole, and the order is fixed; the long form below has everything."""
    with Fleet(trainer_python, alone) as fleet:
        life = LongLife(fleet, random.Random(1))
        for event in (life.join, life.join, life.clock, life.lighthouse, life.coordinator, life.notice):
            event()
            life.check()
        life.compare()


@pytest.mark.skipif(EVENTS not in os.environ or os.geteuid() != 0, reason=f"root, an hour: set {EVENTS}=500")
@pytest.mark.timeout(12 * 3600)
def test_one_training_holds_through_hundreds_of_events(trainer_python, alone):
    """DLCLOUD_LIFE_EVENTS events by DLCLOUD_LIFE_SEED, or those of DLCLOUD_LIFE_MINUTES; a failure tells."""
    seed = int(os.environ.get("DLCLOUD_LIFE_SEED", "0"))
    with (
        Network(MACHINES) as network,
        Fleet(trainer_python, alone, network) as fleet,
    ):
        say(live(fleet, seed, int(os.environ[EVENTS])).summary())
