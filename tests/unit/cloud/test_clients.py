"""boto3 clients: which there are, how the times of their answers are read, and when their login ends."""

import hashlib
import json
from datetime import UTC, datetime

import botocore.utils
import pytest

import dlcloud.cloud.api.clients as clients_module
from dlcloud.cloud.api.clients import Clients, parse_timestamp

TIMES = (
    "2026-11-23T01:02:03.000Z", "2026-11-23T01:02:03Z", "2026-11-23T01:02:03+01:00", "20261123T010203Z",
    "Mon, 23 Nov 2026 01:02:03 GMT", "1795395723", 1795395723, 1795395723.5,
)  # fmt: skip


def test_times_of_answers_are_those_of_botocore():
    assert [parse_timestamp(value) for value in TIMES] == [
        botocore.utils.parse_timestamp(value) for value in TIMES
    ]


@pytest.mark.parametrize("value", ["Z", "no time", "2026-13-01T00:00:00Z", None])
def test_a_time_in_no_form_is_refused_as_by_botocore(value):
    for parse in (parse_timestamp, botocore.utils.parse_timestamp):
        with pytest.raises(ValueError, match=r"(?i)time"):
            parse(value)


def test_each_client_reads_times_so_and_regions_share_the_class_of_a_service():
    clients = Clients(region="us-east-1", endpoint_url="http://127.0.0.1:9")
    client, other = clients.get("ec2"), clients.in_region("eu-west-1").get("ec2")
    assert (type(client) is type(other), other.meta.region_name) == (True, "eu-west-1")
    parser = client._endpoint._response_parser_factory.create_parser("ec2")
    assert parser._timestamp_parser is parse_timestamp


def test_a_login_with_a_code_or_a_stated_end_has_an_end(monkeypatch):
    ends = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert Clients(region="us-east-1").session_ends_at() is None
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    monkeypatch.setenv("AWS_CREDENTIAL_EXPIRATION", ends.isoformat())
    assert Clients(region="us-east-1").session_ends_at() == ends
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "CREDENTIAL_EXPIRATION"):
        monkeypatch.delenv(f"AWS_{name}")


@pytest.mark.parametrize("refreshes", [True, False])
def test_an_sso_login_ends_with_its_token_unless_it_renews_itself(tmp_path, monkeypatch, refreshes):
    monkeypatch.setattr(clients_module, "SSO_CACHE", tmp_path)
    name = hashlib.sha1(b"work").hexdigest()
    token = {"expiresAt": "2030-01-01T12:00:00Z", **({"refreshToken": "again"} if refreshes else {})}
    (tmp_path / f"{name}.json").write_text(json.dumps(token))
    ends = clients_module._sso_ends_at({"sso_session": "work"})
    assert ends == (None if refreshes else datetime(2030, 1, 1, 12, 0, tzinfo=UTC))
    assert clients_module._sso_ends_at({"sso_session": "other"}) is None


def test_a_client_is_made_once_and_those_of_aws_have_no_endpoint_of_ours(monkeypatch, clients):
    assert clients.get("ec2") is clients.get("ec2")
    assert clients.get("ec2") is not clients.get_without_retries()
    assert clients.get("pricing", "eu-central-1").meta.region_name == "eu-central-1"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    assert Clients(region="us-east-1").get("ec2").meta.endpoint_url == "https://ec2.us-east-1.amazonaws.com"


def test_the_users_own_credentials_are_never_sent_to_a_local_endpoint(monkeypatch, clients):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAREAL")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "real")
    assert clients.get_without_retries()._request_signer._credentials.access_key == "local"
