"""What IAM judges is what is carried out: no request has two readings."""

import gzip
import io
import json
import os
import random
import re
from contextlib import suppress
from urllib.parse import urlencode

import pytest
from botocore.auth import SigV4Auth
from moto.core.responses import BaseResponse
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.s3.exceptions import S3ClientError
from moto.s3.models import S3Backend
from moto.s3.responses import S3Response

from dlcloud.local.api.call import QUERY_SERVICES, ambiguity, judged_request, read_call
from dlcloud.local.moto_app import unknown_action
from dlcloud.local.s3.calls import read_s3_call
from dlcloud.local.s3.front import _rewrite
from dlcloud.local.s3.moto_s3 import create_s3_app

REQUESTS = int(os.environ.get("DLCLOUD_REQUESTS", "10000"))
FORM = "application/x-www-form-urlencoded"
HARMLESS = "Action=DescribeVolumes&Version=2016-11-15"
HARMFUL = "Action=CreateVpc&CidrBlock=10.9.0.0%2F16&Version=2016-11-15"
NOBODY = {"Version": "2012-10-17", "Statement": []}
PARTS = (
    b'--x\r\nContent-Disposition: form-data; name="Action"\r\n\r\nCreateVpc\r\n'
    b'--x\r\nContent-Disposition: form-data; name="CidrBlock"\r\n\r\n10.9.0.0/16\r\n--x--\r\n'
)
WAYS = {
    "query and body": (HARMLESS, {"Content-Type": FORM}, HARMFUL.encode()),
    "two actions": ("", {"Content-Type": FORM}, f"{HARMLESS}&{HARMFUL}".encode()),
    "target": ("", {"X-Amz-Target": "AmazonEC2.DescribeVolumes", "Content-Type": FORM}, HARMFUL.encode()),
    "multipart": (HARMLESS, {"Content-Type": "multipart/form-data; boundary=x"}, PARTS),
    "gzip": (HARMLESS, {"Content-Encoding": "gzip", "Content-Type": FORM}, gzip.compress(HARMFUL.encode())),
    "another account": ("", {"X-Moto-Account-Id": "111111111111", "Content-Type": FORM}, HARMFUL.encode()),
    "another spelling": ("", {"Content-Type": FORM}, HARMFUL.replace("CreateVpc", "createVpc").encode()),
}


@pytest.fixture(scope="module")
def reader(rig):
    """Return the credentials of a user who may describe and change tags of buckets, and no more."""
    actions = ["ec2:Describe*", "s3:PutBucketTagging"]
    return rig.user({"Effect": "Allow", "Action": actions, "Resource": "*"})


def post(rig, reader, path, headers, body, service="ec2"):
    asked = {"method": "POST", "body": body, "headers": headers, "service": service, "auth": SigV4Auth}
    return rig.send(path, key=reader, **asked)


@pytest.mark.parametrize("way", WAYS)
def test_a_harmless_action_carries_no_other_one_in(rig, reader, way):
    query, headers, body = WAYS[way]
    before = rig.ec2.describe_vpcs()["Vpcs"]
    status, text = post(rig, reader, f"/?{query}" if query else "/", headers, body)
    assert status >= 400, text
    assert rig.ec2.describe_vpcs()["Vpcs"] == before


def test_the_action_that_is_free_to_all_assumes_no_role(rig, reader):
    rig.client("iam").create_role(RoleName="admin", AssumeRolePolicyDocument=json.dumps(NOBODY))
    arn = "arn:aws:iam::123456789012:role/admin"
    wanted = {"Action": "AssumeRole", "RoleArn": arn, "RoleSessionName": "x", "Version": "2011-06-15"}
    for query, action in (("?Action=GetCallerIdentity", "AssumeRole"), ("", "assumeRole")):
        body = urlencode({**wanted, "Action": action}).encode()
        status, text = post(rig, reader, f"/{query}", {"Content-Type": FORM}, body, "sts")
        assert (status >= 400, "SecretAccessKey" in text) == (True, False)


def test_a_request_of_two_operations_of_s3_is_none(rig, reader):
    rig.client("s3").create_bucket(Bucket="twice")
    two = ("tagging&policy", "encryption&website", "tagging&acl", "tagging&tagging", "prefix=a&prefix=b")
    for query in two:
        method = "GET" if "prefix" in query else "PUT"
        status, text = rig.send(f"/twice?{query}", method=method, body=b"{}", key=reader)
        assert (status, "NotImplemented" in text) == (501, True), text


def wsgi(method, query, headers, body):
    return {
        "REQUEST_METHOD": method,
        "PATH_INFO": "/",
        "QUERY_STRING": query,
        "RAW_URI": f"/?{query}",
        "CONTENT_TYPE": headers.get("Content-Type", ""),
        "wsgi.input": io.BytesIO(body),
        "HTTP_HOST": "127.0.0.1:1",
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "1",
        "wsgi.url_scheme": "http",
        **{f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers.items()},
    }


ACTIONS = {
    "ec2": ("DescribeVolumes", "RunInstances", "runInstances", "Run_Instances", "CreateVpc", ""),
    "sts": ("GetCallerIdentity", "AssumeRole", "assumeRole", ""),
    "iam": ("GetUser", "CreateUser", "createUser", "CreateUSER", ""),
    "ssm": ("GetParameter", "PutParameter", "getParameter", ""),
}


def random_request(chance):
    """Return a request with actions at random places, and its service."""
    service = chance.choice(list(ACTIONS))
    action = lambda: chance.choice(ACTIONS[service])  # noqa: E731
    words = lambda: [("Action", action()), ("A", chance.choice("xy")), ("action", action())]  # noqa: E731
    query = urlencode(chance.sample(words() * 2, chance.randint(0, 3))) if chance.random() < 0.5 else ""
    body = urlencode(chance.sample(words() * 2, chance.randint(0, 3))).encode()
    if chance.random() < 0.4:
        texts = ("x", f"&Action={action()}&", f"Action={action()}")
        body = json.dumps({"Name": chance.choice(texts), "Action": action()}).encode()
    scope = f"AKIA0/20260101/us-east-1/{service}/aws4_request"
    headers = {"Authorization": f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0"}
    if chance.random() < 0.3:
        headers["X-Amz-Target"] = f"{chance.choice(('AmazonSSM', 'x.y'))}.{action()}"
    if chance.random() < 0.2:
        headers["Content-Encoding"] = chance.choice(("gzip", "identity", "deflate"))
        body = gzip.compress(body) if headers["Content-Encoding"] == "gzip" else body
    if chance.random() < 0.7:
        kinds = (FORM, f"{FORM}; charset=utf-8", "application/json", "text/xml")
        headers["Content-Type"] = chance.choice(kinds)
    return wsgi(chance.choice(("GET", "POST", "PUT")), query, headers, body), service


@pytest.fixture
def dispatched(monkeypatch):
    """Return a function that hands a request to moto, and returns the service and action that it takes."""
    taken = []

    def note(self):
        taken.append((self.boto3_service_name, self._get_action()))
        return 200, {}, ""

    monkeypatch.setattr(BaseResponse, "call_action", note)
    application = DomainDispatcherApplication(create_backend_app)

    def dispatch(environ):
        taken.clear()
        list(application(environ, lambda *_: None))
        return taken[0]

    return dispatch


def test_the_action_that_is_judged_is_the_one_that_moto_dispatches(dispatched):
    chance, judged = random.Random(1), 0
    for _ in range(REQUESTS):
        environ, service = random_request(chance)
        call = read_call(environ)
        if ambiguity(call, environ) or unknown_action(call):
            continue
        judged += 1
        passed = judged_request(call, environ)
        if service in QUERY_SERVICES:
            assert "HTTP_X_AMZ_TARGET" not in passed
        assert dispatched(passed) == (service, call.action), environ
    assert judged > REQUESTS / 50


# What moto carries out for an action, where that has not the action's name in its own spelling.
BY_MOTO = {
    "ListBuckets": {"all_buckets"},
    "ListObjects": {"list_objects", "list_objects_v2"},
    "GetBucketTagging": {"get_bucket_tags"},
    "PutObject": {"put_object", "copy_object"},
    "UploadPart": {"upload_part", "upload_part_copy", "put_object", "copy_object"},
}
OPERATIONS = ("tagging", "policy", "acl", "encryption", "website", "versions", "versioning", "location")
OPERATIONS += ("uploads", "uploadId", "delete", "publicAccessBlock", "attributes", "legal-hold", "retention")
OPERATIONS += ("object-lock", "lifecycle", "cors", "restore", "select", "inventory", "replication", "logging")
PARAMETERS = ("prefix", "versionId", "list-type", "partNumber", "x-id", "delimiter", "response-expires")
PATHS = (
    "/",
    "//",
    "%2F",
    "%2f",
    "bucket",
    "other",
    "key",
    "..",
    ".",
    "%2e%2e",
    "a%20b",
    "%C3%A9",
    "%25",
    "+",
)
BODIES = (
    b"",
    b"<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>",
    b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>",
    b"<Delete><Object><Key>key</Key></Object></Delete>",
    b"<CompleteMultipartUpload></CompleteMultipartUpload>",
)


def random_s3_request(chance):
    """Return a request to S3 with operations, parameters and parts of paths at random places."""
    words = chance.sample(OPERATIONS, chance.choice((0, 0, 1, 1, 2)))
    words += chance.choices(PARAMETERS, k=chance.choice((0, 0, 1, 2)))
    chance.shuffle(words)
    spelled = [word.replace("a", "%61") if chance.random() < 0.1 else word for word in words]
    query = "&".join(f"{word}{chance.choice(('', '=', '=1', '=2', '=key'))}" for word in spelled)
    path = "/" + "".join(chance.choices(PATHS, k=chance.randint(0, 4)))
    if chance.random() < 0.6:
        path = chance.choice(("/bucket", "/bucket/", "/bucket/key", "/bucket/key/", "/bucket//key"))
    scope = "AKIA0/20260101/us-east-1/s3/aws4_request"
    headers = {"Authorization": f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0"}
    if chance.random() < 0.2:
        headers["X-Amz-Copy-Source"] = "other/key"
    if chance.random() < 0.1:
        hosts = ("bucket.localhost:1", "other.s3.localhost", "bucket.s3.amazonaws.com")
        headers["Host"] = chance.choice(hosts)
    if chance.random() < 0.1:
        headers["X-Amz-Target"] = "S3.PutBucketPolicy"
    body = chance.choice(BODIES)
    method = chance.choice(("GET", "GET", "PUT", "PUT", "HEAD", "DELETE", "POST"))
    return wsgi(method, query, headers, body) | {"RAW_URI": f"{path}?{query}"}


@pytest.fixture
def carried_out(monkeypatch):
    """Return a function that hands a request to moto's S3, and returns each operation with bucket and key."""
    taken = []

    def note(name):
        def operation(self, *_, **__):
            taken.append((name, self.bucket_name, self.parse_key_name()))
            return 200, {}, ""

        return operation

    def note_of_backend(name):
        def operation(_, bucket_name, key_name="", *__, **___):
            taken.append((name, bucket_name, key_name if isinstance(key_name, str) else ""))
            raise S3ClientError(name, name)

        return operation

    verbs = re.compile(
        "(?!get_safe_path)(get|put|list|delete|create|head|copy|upload|complete|abort)_|all_buckets"
    )
    for name in [name for name in vars(S3Response) if verbs.match(name)]:
        monkeypatch.setattr(S3Response, name, note(name))
    writes = re.compile("(put|create|complete)_")
    for name in [name for name in vars(S3Backend) if writes.match(name)]:
        monkeypatch.setattr(S3Backend, name, note_of_backend(name))
    monkeypatch.setattr(S3Response, "_bucket_response_delete_keys", note("delete_objects"))
    application = create_s3_app()

    def carry_out(environ):
        taken.clear()
        list(application(environ, lambda *_: None))
        return list(taken)

    return carry_out


def test_the_operation_of_s3_that_is_judged_is_the_one_that_moto_carries_out(carried_out):
    chance, taken = random.Random(3), 0
    for _ in range(REQUESTS):
        environ = random_s3_request(chance)
        call = read_s3_call(environ, environ["wsgi.input"].getvalue())
        if not call.iam_action:
            continue
        sent = environ["RAW_URI"]
        _rewrite(call, environ, call.body, {})
        done = []
        with suppress(Exception):  # moto fails at bodies that are none of the operation's
            done = carried_out(environ)
        for name, bucket, key in done:
            taken += 1
            usual = {re.sub("(?<!^)([A-Z])", r"_\1", call.action).lower()}
            case = (environ["REQUEST_METHOD"], sent, call, name, bucket, key)
            assert name in BY_MOTO.get(call.action, usual), case
            assert (bucket or "", key if call.key else "") == (call.bucket, call.key), case
    assert taken > REQUESTS / 50
