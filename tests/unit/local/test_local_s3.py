"""S3 on the local EC2: signatures, bodies, regions, policies, and what is refused."""

import base64
import io
import json
import os
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta

import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from dlcloud.cloud.storage.buckets import S3Buckets
from dlcloud.local.s3.front import BodyError, decode_body, verify_digests
from dlcloud.model.errors import CredentialsError
from dlcloud.resources.texts import iam_policy
from tests.fakes.local_ec2 import refusal as code_of

MIB = 1024 * 1024
V4 = {"signature_version": "s3v4"}


@pytest.fixture(scope="module")
def s3(rig):
    client = rig.client("s3", **V4)
    client.create_bucket(Bucket="data")
    return client


def test_an_object_is_stored_and_read(s3):
    put = s3.put_object(Bucket="data", Key="a/b c+ü?", Body=b"hello", Metadata={"x": "y"})
    got = s3.get_object(Bucket="data", Key="a/b c+ü?")
    assert (got["Body"].read(), got["Metadata"], got["ETag"]) == (b"hello", {"x": "y"}, put["ETag"])
    listed = s3.list_objects_v2(Bucket="data", Prefix="a/")["Contents"]
    assert [item["Key"] for item in listed] == ["a/b c+ü?"]
    assert s3.head_object(Bucket="data", Key="a/b c+ü?")["ContentLength"] == 5
    s3.delete_objects(Bucket="data", Delete={"Objects": [{"Key": "a/b c+ü?"}]})
    assert code_of(s3.get_object, Bucket="data", Key="a/b c+ü?") == "NoSuchKey"


def test_parts_become_one_object_that_is_read_in_ranges(rig, s3):
    content = os.urandom(9 * MIB)
    s3.upload_fileobj(io.BytesIO(content), "data", "large")
    head = s3.head_object(Bucket="data", Key="large", ChecksumMode="ENABLED")
    assert (head["ContentLength"], head["ETag"][-3:]) == (len(content), '-2"')
    copy = io.BytesIO()
    s3.download_fileobj("data", "large", copy)
    assert copy.getvalue() == content
    part = s3.get_object(Bucket="data", Key="large", Range="bytes=9000000-9000003")
    assert (part["Body"].read(), part["ContentLength"]) == (content[9000000:9000004], 4)
    assert s3.get_object(Bucket="data", Key="large", Range="bytes=-4")["Body"].read() == content[-4:]
    assert code_of(s3.get_object, Bucket="data", Key="large", Range="bytes=99999999-") == "InvalidRange"
    assert not list((rig.folder / "objects").iterdir())  # its file has no name


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"])
def test_checksums_of_every_kind_are_verified_and_kept(s3, algorithm):
    known = {"CRC32": "y/Q5Jg==", "CRC32C": "4waSgw==", "CRC64NVME": "rosUhgp5mIg="}
    s3.put_object(Bucket="data", Key=algorithm, Body=b"123456789", ChecksumAlgorithm=algorithm)
    head = s3.head_object(Bucket="data", Key=algorithm, ChecksumMode="ENABLED")
    assert head[f"Checksum{algorithm}"] == known.get(algorithm, head[f"Checksum{algorithm}"])
    wrong = {f"Checksum{algorithm}": base64.b64encode(b"\0" * 8).decode()}
    assert code_of(s3.put_object, Bucket="data", Key="bad", Body=b"1", **wrong) == "BadDigest"


def test_a_bucket_has_a_region_that_clients_are_sent(rig, s3):
    there = rig.client("s3", "eu-west-1", **V4)
    there.create_bucket(Bucket="far", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    there.put_object(Bucket="far", Key="k", Body=b"1")
    assert s3.get_bucket_location(Bucket="far")["LocationConstraint"] == "eu-west-1"
    # boto3 reads the region of the refusal and signs for it.
    assert s3.get_object(Bucket="far", Key="k")["Body"].read() == b"1"
    status, text = rig.send("/far/k")
    assert status == 400
    assert "AuthorizationHeaderMalformed" in text
    assert "<Region>eu-west-1</Region>" in text
    assert code_of(there.create_bucket, Bucket="none") == "IllegalLocationConstraintException"


@pytest.mark.parametrize("host", ["data.localhost", "data.s3.localhost:8000"])
def test_a_bucket_is_found_by_the_host_too(rig, s3, host):
    s3.put_object(Bucket="data", Key="by/host", Body=b"found")
    assert rig.send("/by/host", headers={"Host": host}) == (200, "found")
    assert "<Name>data</Name>" in rig.send("/?list-type=2", headers={"Host": host})[1]


def test_a_wrong_or_missing_signature_is_refused(rig):
    assert "SignatureDoesNotMatch" in rig.send("/data", key=(rig.endpoint.access_key.key_id, "wrong"))[1]
    # Every service but S3 signs a path that is encoded twice, and not the body's hash.
    assert "x-amz-content-sha256" in rig.send("/data", auth=SigV4Auth)[1]
    stranger = rig.client("s3", key=("AKIAIOSFODNN7EXAMPLE", "x"))
    assert code_of(stranger.list_buckets) == "InvalidAccessKeyId"


def test_a_body_of_unknown_length_comes_with_its_checksum_behind_it(rig, s3):
    frames = b"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n"
    headers = {
        "Content-Encoding": "aws-chunked",
        "X-Amz-Content-SHA256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
        "X-Amz-Decoded-Content-Length": "5",
        "X-Amz-Trailer": "x-amz-checksum-crc32",
    }
    streaming = {"method": "PUT", "headers": headers, "auth": _Streaming}
    assert rig.send("/data/streamed", body=frames, **streaming) == (200, "")
    got = s3.get_object(Bucket="data", Key="streamed", ChecksumMode="ENABLED")
    assert (got["Body"].read(), got["ChecksumCRC32"]) == (b"hello", "NhCmhg==")
    assert "ContentEncoding" not in got
    broken = frames.replace(b"hello", b"hallo")
    assert "BadDigest" in rig.send("/data/bad", body=broken, **streaming)[1]
    cut = frames[:7]
    assert "IncompleteBody" in rig.send("/data/bad", body=cut, **streaming)[1]


def test_what_is_not_there_is_refused_by_name(rig, s3):
    assert code_of(s3.get_bucket_policy, Bucket="data") == "NotImplemented"
    assert code_of(s3.put_bucket_policy, Bucket="data", Policy="{}") == "NotImplemented"
    form = "multipart/form-data; boundary=x"
    status, text = follow("POST", f"{rig.endpoint.url}/data", b"--x--\r\n", kind=form)
    assert (status, b"presigned POST" in text) == (501, True)
    with pytest.raises(BodyError, match="does not read") as refused:
        decode_body(b"", {"HTTP_X_AMZ_CONTENT_SHA256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"})
    assert refused.value.code == "NotImplemented"
    with pytest.raises(BodyError) as refused:
        verify_digests(b"", {"content-md5": "?"})
    assert refused.value.code == "InvalidRequest"
    s3.put_object(Bucket="data", Key="slow", Body=b"1")
    rig.control.add_fault("GetObject", "SlowDown", times=1)
    assert code_of(s3.get_object, Bucket="data", Key="slow") == "SlowDown"
    assert s3.get_object(Bucket="data", Key="slow")["Body"].read() == b"1"


class _Streaming(S3SigV4Auth):
    def payload(self, request):
        return request.headers["X-Amz-Content-SHA256"]

    def _modify_request_before_signing(self, request):
        kept = request.headers["X-Amz-Content-SHA256"]
        super()._modify_request_before_signing(request)
        request.headers.replace_header("X-Amz-Content-SHA256", kept)


@pytest.fixture
def user(rig):
    """Return a function that makes a user with these statements, and returns its client of S3."""
    return lambda *statements: rig.client("s3", key=rig.user(*statements))


def allow(action, resource, **other):
    return {"Effect": "Allow", "Action": action, "Resource": f"arn:aws:s3:::{resource}", **other}


def test_a_policy_limits_a_user_to_a_prefix(s3, user):
    s3.put_object(Bucket="data", Key="mine/a", Body=b"1")
    s3.put_object(Bucket="data", Key="other/a", Body=b"1")
    prefix = {"StringLike": {"s3:prefix": "mine/*"}}
    client = user(allow("s3:GetObject", "data/mine/*"), allow("s3:ListBucket", "data", Condition=prefix))
    assert client.get_object(Bucket="data", Key="mine/a")["Body"].read() == b"1"
    assert client.list_objects_v2(Bucket="data", Prefix="mine/")["KeyCount"] == 1
    for call, arguments in (
        (client.get_object, {"Key": "other/a"}),
        (client.put_object, {"Key": "mine/b", "Body": b""}),
        (client.list_objects_v2, {}),
        (client.list_objects_v2, {"Prefix": "other/"}),
        (client.delete_objects, {"Delete": {"Objects": [{"Key": "mine/a"}]}}),
        (client.copy_object, {"Key": "mine/b", "CopySource": "data/other/a"}),
        # S3 does not show who may not list that an object is missing.
        (client.get_object, {"Key": "mine/none"}),
    ):
        assert code_of(call, Bucket="data", **arguments) == "AccessDenied"
    listing = user(allow("s3:GetObject", "data/*"), allow("s3:ListBucket", "data"))
    assert code_of(listing.get_object, Bucket="data", Key="mine/none") == "NoSuchKey"


class PrefixClients:
    """Clients of a caller who may list one prefix."""

    region = "elsewhere"

    def __init__(self, client):
        self.client = client

    def get(self, service, region=""):  # noqa: ARG002  as of Clients
        return self.client


@pytest.mark.usefixtures("s3")
def test_who_may_list_a_prefix_learns_the_region_of_its_bucket(rig, user):
    eu = {"CreateBucketConfiguration": {"LocationConstraint": "eu-west-1"}}
    rig.client("s3", "eu-west-1", **V4).create_bucket(Bucket="data-eu", **eu)
    prefix = {"StringLike": {"s3:prefix": ["mine", "mine/*"]}}
    for bucket, region in (("data", "us-east-1"), ("data-eu", "eu-west-1")):
        client = user(allow("s3:ListBucket", bucket, Condition=prefix))
        assert code_of(client.head_bucket, Bucket=bucket) == "403"
        assert S3Buckets(PrefixClients(client)).region_of(f"s3://{bucket}/mine") == region


def test_unfinished_uploads_of_checkpoints_are_aborted_and_no_others(s3, user):
    names = [f"step-{1:012d}-{'a' * 32}.pt", "deeper/other.bin"]
    for name in names:
        s3.create_multipart_upload(Bucket="data", Key=f"run/{name}")
    s3.create_multipart_upload(Bucket="data", Key=names[0])
    statements = json.loads(iam_policy("iam_policy_storage.json"))["Statement"]
    buckets = S3Buckets(PrefixClients(user(*statements)))
    assert buckets.abort_uploads("s3://data/run") == 1
    left = {upload["Key"] for upload in s3.list_multipart_uploads(Bucket="data")["Uploads"]}
    assert left == {"run/deeper/other.bin", names[0]}
    with pytest.raises(CredentialsError, match="ListBucketMultipartUploads"):
        S3Buckets(PrefixClients(user(allow("s3:ListBucket", "data")))).abort_uploads("s3://data/run")


def test_checkpoints_are_mirrored_between_regions_by_who_has_the_printed_policy(rig, s3, monkeypatch):
    west = rig.client("s3", "us-west-2", **V4)
    west.create_bucket(Bucket="mirror-west", CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    key = rig.user(*json.loads(iam_policy("iam_policy_storage.json"))["Statement"])
    buckets, source, target = S3Buckets(rig.clients(key=key)), "s3://data/mirrored", "s3://mirror-west/copy"

    def put(name, content):
        s3.put_object(Bucket="data", Key=f"mirrored/0/{name}", Body=content)

    def there():
        listed = west.list_objects_v2(Bucket="mirror-west", Prefix="copy/0/").get("Contents", [])
        return {item["Key"].removeprefix("copy/0/") for item in listed}

    put("objects/" + "a" * 64, b"x" * (11 * MIB))
    put("state-1.json", b"{}")
    monkeypatch.setattr("dlcloud.cloud.storage.buckets.MOST_COPIED", 10 * MIB)
    monkeypatch.setattr("dlcloud.cloud.storage.buckets.PART", 6 * MIB)
    assert buckets.unmirrored(source, target) == 11 * MIB + 2
    assert buckets.mirror(source, target) == 11 * MIB + 2
    assert buckets.unmirrored(source, target) == 0
    assert there() == {"objects/" + "a" * 64, "state-1.json"}
    copied = west.get_object(Bucket="mirror-west", Key="copy/0/objects/" + "a" * 64)["Body"].read()
    assert copied == b"x" * (11 * MIB)
    assert buckets.mirror(source, target) == 0
    # A source that is being emptied takes nothing along; a newer state takes the place of an older one.
    s3.delete_object(Bucket="data", Key="mirrored/0/objects/" + "a" * 64)
    assert buckets.mirror(source, target) == 0
    assert len(there()) == 2
    s3.delete_object(Bucket="data", Key="mirrored/0/state-1.json")
    put("objects/" + "b" * 64, b"y")
    put("state-2.json", b"{}")
    assert buckets.mirror(source, target) == 3
    assert there() == {"objects/" + "b" * 64, "state-2.json"}


def follow(method, url, body=None, kind=""):
    request = urllib.request.Request(url, body, {"Content-Type": kind}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=600) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_presigned_urls_of_version_4_work_until_they_expire(rig, s3, monkeypatch):
    asked = {"Bucket": "data", "Key": "a b/\u00e4+c"}
    assert follow("PUT", s3.generate_presigned_url("put_object", Params=asked), b"content")[0] == 200
    get = s3.generate_presigned_url("get_object", Params=asked)
    assert follow("GET", get) == (200, b"content")
    assert follow("PUT", get, b"other")[0] == 403
    assert follow("GET", get.replace("a%20b", "other"))[0] == 403
    old = rig.client("s3", signature_version="s3").generate_presigned_url("get_object", Params=asked)
    status, text = follow("GET", old)
    assert (status, b"NotImplemented" in text, b"version 4" in text) == (501, True, True)
    hour_ago = datetime.now(UTC) - timedelta(hours=1)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda: hour_ago)
    key = Credentials(*rig.endpoint.owner_key())
    for expires_s, status in ((3540, 403), (7200, 404)):
        request = AWSRequest("GET", f"{rig.endpoint.url}/data/expiring")
        S3SigV4QueryAuth(key, "s3", "us-east-1", expires=expires_s).add_auth(request)
        assert follow("GET", request.url)[0] == status
