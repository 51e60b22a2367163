"""Train by generated schedules of joins, drains and kills; every one must come out right.

python3 schedules.py --examples 200 --seed 7    # other schedules than the tests try
python3 schedules.py --replay '{"samples": ...}'    # the one that a failure has printed
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as some
from simulation import POINTS, Action, Schedule, World, alone
from trainer.checkpoint import newest

last = {}


@some.composite
def schedules(draw):
    samples = draw(some.integers(4, 20))
    shards = draw(some.sampled_from([None, 1, 2, 3, 5]))
    steps = draw(some.integers(2, 9))
    action = some.one_of(
        some.builds(Action, some.integers(0, 12), some.just("join"), some.just(0)),
        some.builds(Action, some.integers(0, 12), some.just("drain"), some.integers(0, 4)),
        some.builds(
            Action, some.integers(0, 12), some.just("kill"), some.integers(0, 4), some.sampled_from(POINTS)
        ),
    )
    return Schedule(
        samples=samples,
        batch=draw(some.integers(2, samples)),
        steps=steps,
        shards=shards,
        seed=draw(some.integers(0, 3)),
        workers=draw(some.integers(1, 4)),
        actions=tuple(draw(some.lists(action, max_size=8))),
    )


def check(schedule):
    last["schedule"] = schedule
    with tempfile.TemporaryDirectory() as folder:
        world = World(schedule, Path(folder)).run()
        assert newest(Path(folder))[0] == schedule.steps
    steps = [record for record in world.records if record["record"] == "step"]
    fixed = {record["step"]: record for record in alone(schedule)}
    for record in steps:
        same = record["hash"] == fixed[record["step"]]["hash"]
        assert schedule.shards is None or same, f"step {record['step']} of {record['worker']} has other bits"
    check_steps(schedule, steps)


def check_steps(schedule, steps):
    """Every step is divided without gap or overlap among workers that have one state afterwards."""
    by_attempt = {}
    for record in steps:
        by_attempt.setdefault((record["step"], record["quorum"]), []).append(record)
    assert {step for step, _ in by_attempt} == set(range(1, schedule.steps + 1)), "a step is missing"
    for (step, _), records in by_attempt.items():
        assert len({record["hash"] for record in records}) == 1, f"step {step} has several states"
        taken = [place for record in records for place in range(*record["share"])]
        assert len(set(taken)) == len(taken), f"step {step} took a sample twice"
        if len(records) == records[0]["world_size"]:
            assert sorted(taken) == list(range(records[0]["samples"])), f"step {step} left a sample out"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--examples", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--replay", type=json.loads, metavar="JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.replay:
        check(Schedule.from_json(arguments.replay))
        return 0
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    chosen = settings(
        max_examples=arguments.examples, deadline=None, database=None, suppress_health_check=checks,
        phases=[Phase.generate, Phase.shrink],
    )  # fmt: skip
    try:
        seed(arguments.seed)(chosen(given(schedules())(check)))()
    except Exception:
        print(f"seed {arguments.seed}; replay with --replay '{json.dumps(last['schedule'].to_json())}'")
        raise
    print(f"{arguments.examples} schedules, seed {arguments.seed}: every one came out right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
