"""What keeps a run from being started over, split or mixed with another; control files."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import pytest

from dlcloud.trainer.coordination.ledger import (
    CommitVerdict,
    Entry,
    LedgerClient,
    LedgerError,
    WrongRunError,
    check_history,
    check_size,
)
from dlcloud.trainer.lighthouse import Ledger, LedgerServer
from dlcloud.trainer.settings import Control, ControlError, ControlFile, parse_control
from tests.fakes.training import write_control_file


@pytest.mark.parametrize(
    ("step", "entry", "verdict"),
    [
        (0, Entry(run="r"), CommitVerdict.GO),
        (7, Entry(run="r", step=7), CommitVerdict.GO),
        (0, Entry(run="r", step=1), CommitVerdict.HOLD),
        (40, Entry(run="r", step=90, checkpoint=60), CommitVerdict.HOLD),
        (60, Entry(run="r", step=90, checkpoint=60), CommitVerdict.GO),
        (90, Entry(run="r", step=90, checkpoint=60, done=True), CommitVerdict.END),
        (0, None, CommitVerdict.HOLD),
    ],
)
def test_a_state_is_trained_on_only_if_it_is_the_newest(step, entry, verdict):
    decision = check_history(step, entry)
    assert decision.verdict is verdict
    assert bool(decision.reason) == (verdict is not CommitVerdict.GO)


def test_a_state_older_than_a_peer_is_known_to_have_is_not_trained_on():
    decision = check_history(40, Entry(run="r", step=40), least=41)
    assert decision.verdict is CommitVerdict.HOLD
    assert "a peer has the state of step 41" in decision.reason
    assert check_history(41, Entry(run="r", step=41), least=41).verdict is CommitVerdict.GO


def test_too_few_workers_hold():
    assert check_size(2, 2).verdict is CommitVerdict.GO
    assert check_size(1, 2).verdict is CommitVerdict.HOLD


@pytest.fixture
def served(tmp_path):
    ledger = Ledger(tmp_path / "ledger.json", "run-1")
    server = LedgerServer(ledger, "127.0.0.1", 0)
    yield ledger, f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_a_ledger_only_moves_on(served):
    ledger, address = served
    client = LedgerClient(address=address, run="run-1")
    assert client.advance(step=5, checkpoint=3) == Entry(run="run-1", step=5, checkpoint=3)
    assert client.advance(step=2) == Entry(run="run-1", step=5, checkpoint=3)
    assert client.advance(done=True).done
    assert client.advance(step=6).done
    assert client.read() == ledger.entry


def test_a_ledger_outlives_its_process(tmp_path):
    Ledger(tmp_path / "l", "run-1").advance(step=4, done=True)
    assert Ledger(tmp_path / "l", "run-1").entry == Entry(run="run-1", step=4, done=True)


def test_the_ledger_of_a_new_coordinator_begins_where_the_run_was(tmp_path):
    assert Ledger(tmp_path / "l", "run-1", step=12).entry.step == 12


def test_another_run_is_refused(served, tmp_path):
    _, address = served
    stranger = LedgerClient(address=address, run="run-2")
    with pytest.raises(WrongRunError, match="serves run run-1, not run-2"):
        stranger.advance(step=9)
    with pytest.raises(WrongRunError, match="serves run run-1"):
        stranger.read()
    Ledger(tmp_path / "l", "run-1")
    with pytest.raises(WrongRunError, match="ledger of run run-1"):
        Ledger(tmp_path / "l", "run-2")


def test_many_workers_may_post_at_once(served):
    ledger, address = served
    client = LedgerClient(address=address, run="run-1")
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda step: client.advance(step=step), range(1, 20)))
    assert ledger.entry.step == 19


def test_a_ledger_that_is_away_differs_from_an_empty_one():
    with pytest.raises(LedgerError, match="no ledger at"):
        LedgerClient(address="127.0.0.1:1", run="r").read()


@pytest.mark.parametrize(
    "text",
    [
        *["", "[]", "{", '{"minimum": 0}', '{"minimum": true}', '{"generation": "3"}', '{"drain": 1}'],
        *['{"coordinator": "10.0.0.7"}', '{"coordinator": 1}', '{"step": -1}', '{"least": null}'],
    ],
)
def test_a_faulty_control_file_is_refused(text):
    with pytest.raises(ControlError):
        parse_control(text)


def test_a_control_file_is_followed(tmp_path):
    path = tmp_path / "control.json"
    follower = ControlFile(path)
    assert follower.read() == Control()
    control = Control(
        generation=2,
        minimum=3,
        drain="resize to 1",
        coordinator="10.0.0.7:29510",
        coordinates=True,
        step=9,
        least=8,
    )
    write_control_file(path, **asdict(control))
    assert follower.read() == control
    assert parse_control(json.dumps({"minimum": 2, "news": 1})) == Control(minimum=2)


def test_a_file_that_breaks_or_is_older_changes_nothing(tmp_path):
    path = tmp_path / "control.json"
    follower = ControlFile(path)
    write_control_file(path, generation=2, minimum=3)
    follower.read()
    path.write_text("{")
    assert follower.read().minimum == 3
    assert "not JSON" in follower.fault
    write_control_file(path, generation=1, minimum=9)
    assert follower.read().minimum == 3
    path.unlink()
    assert follower.read().minimum == 3
