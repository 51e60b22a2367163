"""boto3 clients: how the times of their answers are read."""

import botocore.utils
import pytest

from dlcloud.cloud.api.clients import Clients, parse_timestamp


@pytest.mark.parametrize(
    "value",
    [
        "2026-11-23T01:02:03.000Z",
        "2026-11-23T01:02:03Z",
        "2026-11-23T01:02:03+01:00",
        "Mon, 23 Nov 2026 01:02:03 GMT",
        "20261123T010203Z",
        "1795395723",
        1795395723,
        1795395723.5,
    ],
)
def test_times_of_answers_are_those_of_botocore(value):
    assert parse_timestamp(value) == botocore.utils.parse_timestamp(value)


@pytest.mark.parametrize("value", ["Z", "no time", "2026-13-01T00:00:00Z", None])
def test_a_time_in_no_form_is_refused_as_by_botocore(value):
    for parse in (parse_timestamp, botocore.utils.parse_timestamp):
        with pytest.raises(ValueError, match=r"(?i)time"):
            parse(value)


def test_each_client_reads_times_so():
    client = Clients(region="us-east-1", endpoint_url="http://127.0.0.1:9").get("ec2")
    parser = client._endpoint._response_parser_factory.create_parser("ec2")
    assert parser._timestamp_parser is parse_timestamp
