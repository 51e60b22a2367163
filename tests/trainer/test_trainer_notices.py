"""Interruption notices, as a metadata service tells them that is as unreliable as a real one."""

import json
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from dlcloud.trainer.instance.notices import MetadataClient, MetadataError, NoticeTracker, SpotStatus
from tests.fakes.metadata import NOTICE, REBALANCE, Service

SOON = datetime(2030, 1, 1, 12, 2, tzinfo=UTC)


@pytest.fixture
def service():
    server = Service()
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def notice(at=SOON, action="terminate"):
    return json.dumps({"action": action, "time": at.strftime("%Y-%m-%dT%H:%M:%SZ")})


def test_nothing_is_seen_where_nothing_is_planned(service):
    assert MetadataClient(service.url).fetch() == SpotStatus()


def test_a_notice_and_a_recommendation_are_seen(service):
    service.documents[NOTICE] = notice()
    service.documents[REBALANCE] = json.dumps({"noticeTime": "2030-01-01T12:00:00Z"})
    status = MetadataClient(service.url).fetch()
    assert status == SpotStatus(action="terminate", at=SOON, rebalance=SOON - timedelta(minutes=2))


def test_a_token_that_is_no_longer_known_is_renewed(service):
    metadata = MetadataClient(service.url)
    metadata.fetch()
    service.tokens.clear()
    assert metadata.fetch() == SpotStatus()
    assert service.issued == 2


def test_a_token_is_renewed_before_it_ends(service):
    now = [0.0]
    metadata = MetadataClient(service.url, clock=lambda: now[0])
    metadata.fetch()
    now[0] = 200.0
    metadata.fetch()
    assert service.issued == 1
    now[0] = 241.0
    metadata.fetch()
    assert service.issued == 2


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_service_that_fails_is_asked_again(service, status):
    metadata = MetadataClient(service.url)
    service.documents[NOTICE] = notice()
    service.faults = [status]
    with pytest.raises(MetadataError, match=f"answered {status}"):
        metadata.fetch()
    assert metadata.fetch().at == SOON


def test_a_service_that_refuses_tokens_is_a_fault(service):
    service.token_status = 403
    with pytest.raises(MetadataError, match="403 for a token"):
        MetadataClient(service.url).fetch()


@pytest.mark.parametrize("text", ["TOKEN\n", "TOKEN\r\n", " TOKEN "])
def test_space_around_a_token_is_dropped(service, text):
    service.token_text = text
    service.documents[NOTICE] = notice()
    assert MetadataClient(service.url).fetch().at == SOON


HTML = "<!DOCTYPE html>\n<html><body>Sign in to the network</body></html>\n"


@pytest.mark.parametrize(
    "text", ["", "\n", HTML, HTML.replace("\n", ""), "TOKEN\xe4", "TO\x00KEN", "a\r\nX-Header: b", "a\x7f"]
)
def test_a_token_that_is_no_token_is_a_fault_and_asked_for_again(service, text):
    metadata = MetadataClient(service.url)
    service.token_text = text
    with pytest.raises(MetadataError, match="a token that is no printable word"):
        metadata.fetch()
    service.token_text = "TOKEN"
    service.documents[NOTICE] = notice()
    assert metadata.fetch().at == SOON


def test_a_service_that_refuses_new_tokens_is_not_asked_for_ever(service):
    service.faults = [401, 401]
    with pytest.raises(MetadataError, match="401"):
        MetadataClient(service.url).fetch()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"time": "2030-01-01T12:02:00Z"}'])
def test_a_notice_that_is_not_understood_is_a_fault(service, text):
    service.documents[NOTICE] = text
    with pytest.raises(MetadataError):
        MetadataClient(service.url).fetch()


def fetch_partly(service):
    """Fetch from a service of which one path fails; return the message and what the other path gave."""
    with pytest.raises(MetadataError) as caught:
        MetadataClient(service.url).fetch()
    return str(caught.value), caught.value.partial


@pytest.mark.parametrize("status", [401, 403, 429, 503])
def test_a_notice_counts_where_the_rebalance_path_fails(service, status):
    service.documents[NOTICE] = notice()
    service.broken[REBALANCE] = status
    message, partial = fetch_partly(service)
    assert message == f"the metadata service answered {status} for {REBALANCE}"
    assert partial == SpotStatus(action="terminate", at=SOON)


GARBAGE = ["", "<html>", "[]", "{}", '{"noticeTime": "soon"}', "[" * 60_000, "9" * 9999]


@pytest.mark.parametrize("text", [*GARBAGE, "late", " " * 120])
def test_a_notice_counts_where_the_rebalance_path_gives_garbage_comes_late_or_trickles(service, text):
    service.documents |= {NOTICE: notice(), REBALANCE: text}
    if text == "late":
        service.late_s[REBALANCE] = 60
    if text == " " * 120:
        service.trickles.add(REBALANCE)
    began = time.monotonic()
    assert fetch_partly(service)[1] == SpotStatus(action="terminate", at=SOON)
    assert time.monotonic() - began < 30


def test_a_rebalance_recommendation_counts_where_the_notice_path_fails(service):
    service.documents[REBALANCE] = json.dumps({"noticeTime": "2030-01-01T12:02:00Z"})
    service.broken[NOTICE] = 503
    message, partial = fetch_partly(service)
    assert message == f"the metadata service answered 503 for {NOTICE}"
    assert partial == SpotStatus(rebalance=SOON)


def test_two_paths_that_fail_are_both_named(service):
    service.broken |= {NOTICE: 503, REBALANCE: 429}
    message, partial = fetch_partly(service)
    assert "503" in message
    assert "429" in message
    assert partial == SpotStatus()


def test_no_service_is_a_fault():
    with pytest.raises(MetadataError, match="no metadata service"):
        MetadataClient("http://127.0.0.1:1").fetch()


@pytest.mark.parametrize(
    "time", ["", ', "time": "soon"', ', "time": null', ', "time": 5', ', "time": [1]', ', "time": ""']
)
def test_a_notice_without_a_readable_time_has_two_minutes(service, time):
    service.documents[NOTICE] = '{"action": "terminate"' + time + "}"
    first_seen_at = SOON - timedelta(minutes=2)
    status = MetadataClient(service.url, now=lambda: first_seen_at).fetch()
    assert status == SpotStatus(action="terminate", at=SOON, is_estimated=True)


def test_the_record_states_that_a_notice_has_no_readable_time():
    tracker = NoticeTracker()
    status = SpotStatus(action="stop", at=SOON, is_estimated=True)
    cause = "interruption notice: stop, no readable time: 2 minutes from its first appearance"
    assert tracker.note_interruption(status) == cause
    later = SpotStatus(action="stop", at=SOON + timedelta(seconds=2), is_estimated=True)
    assert tracker.note_interruption(later) is None
    assert tracker.deadline == SOON


def test_hibernation_comes_at_once(service):
    service.documents[NOTICE] = '{"action": "hibernate"}'
    assert MetadataClient(service.url, now=lambda: SOON).fetch().at == SOON


def test_a_repeated_notice_is_no_news_and_one_whose_time_moves_is():
    tracker = NoticeTracker()
    status = SpotStatus(action="terminate", at=SOON)
    assert tracker.note_interruption(status) == "interruption notice: terminate"
    assert tracker.note_interruption(status) is None
    assert tracker.note_interruption(SpotStatus()) is None
    assert tracker.deadline == SOON
    earlier = SOON - timedelta(seconds=30)
    assert "moved" in tracker.note_interruption(SpotStatus(action="terminate", at=earlier))
    assert tracker.deadline == earlier


def test_the_earliest_deadline_holds_of_a_notice_whose_time_slides(service):
    tracker, metadata = NoticeTracker(), MetadataClient(service.url)
    causes = []
    for seconds in range(0, 120, 2):
        service.documents[NOTICE] = notice(SOON + timedelta(seconds=seconds))
        causes.append(tracker.note_interruption(metadata.fetch()))
    assert causes == ["interruption notice: terminate"] + [None] * 59
    assert tracker.deadline == SOON


def test_another_action_is_recorded_and_keeps_the_earliest_deadline():
    tracker = NoticeTracker()
    tracker.note_interruption(SpotStatus(action="stop", at=SOON))
    later = SpotStatus(action="terminate", at=SOON + timedelta(seconds=9))
    assert tracker.note_interruption(later) == "interruption notice: terminate"
    assert tracker.note_interruption(later) is None
    assert tracker.deadline == SOON


def test_a_recommendation_is_reported_once():
    tracker = NoticeTracker()
    assert tracker.note_rebalance(SpotStatus(rebalance=SOON)) == "rebalance recommendation"
    assert tracker.note_rebalance(SpotStatus(rebalance=SOON)) is None
    assert tracker.note_rebalance(SpotStatus()) is None
