"""Instances with several workers: they join, drain and leave together."""

import itertools
import json
import signal
import threading
from datetime import UTC, datetime, timedelta

import pytest

from tests.fakes.agents import Agents
from tests.fakes.metadata import NOTICE, Service
from tests.fakes.training import wait_until

DIGITS = ["-m", "trainer.examples.digits", "--delay-ms", "20", "--epochs", "1000"]


@pytest.mark.long
def test_the_workers_of_an_instance_join_and_leave_together_at_a_notice(trainer_python, alone):
    """Each change of membership costs all workers new connections: two workers cause two, not four."""
    with Service() as service, Agents(trainer_python, alone, DIGITS) as agents:
        threading.Thread(target=service.serve_forever, daemon=True).start()
        agents.start("first", "--lighthouse", "--workers", "1")
        wait_until(lambda: agents.steps("first"), "the first instance to train")
        options = ["--workers", "2", "--metadata", service.url, "--margin", "20", "--last-seconds", "2"]
        agents.start("second", *options)
        wait_until(lambda: len(agents.steps("second")) >= 20, "the second instance to train")
        at = datetime.now(UTC) + timedelta(seconds=21)
        service.documents[NOTICE] = json.dumps({"action": "terminate", "time": at.isoformat()})
        assert agents.wait("second") == 10
        left_at = agents.steps("first")[-1]["step"]
        wait_until(lambda: agents.steps("first")[-1]["step"] > left_at + 5, "the first to train on")
        agents.agents["first"].send_signal(signal.SIGTERM)
        assert agents.wait("first") == 10
        events = [record for record in agents.records("second") if record["record"] == "event"]
        for name in ("joined", "drained"):
            steps = [event["step"] for event in events if event["event"] == name]
            assert (len(steps), len(set(steps))) == (2, 1), (name, steps)
        assert not [record for record in events if record["event"] in {"killed", "lost", "retry"}]
        own = {record["step"]: record for record in agents.steps("first")}
        sizes = [(own[step]["world_size"], own[step]["instances"]) for step in sorted(own)]
        assert [size for size, _ in itertools.groupby(sizes)] == [(1, 1), (3, 2), (1, 1)]
