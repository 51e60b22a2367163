"""Profiles that assume a role with an MFA code, which is asked for once."""

import json

import pytest

from dlcloud.cloud.api.clients import Clients
from dlcloud.model.account import Login
from dlcloud.model.errors import CredentialsError

TRUST = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}],
}


@pytest.fixture(scope="module")
def arn(rig):
    role = rig.client("iam").create_role(RoleName="operator", AssumeRolePolicyDocument=json.dumps(TRUST))
    return role["Role"]["Arn"]


@pytest.fixture
def profile(rig, arn, monkeypatch, tmp_path):
    """Make a profile with a role and an MFA device the default; its AWS is the local EC2."""
    config, secrets = tmp_path / "config", tmp_path / "credentials"
    owner = rig.endpoint.access_key
    secrets.write_text(
        f"[owner]\naws_access_key_id = {owner.key_id}\naws_secret_access_key = {owner.secret}\n"
    )
    config.write_text(
        f"[profile operator]\nrole_arn = {arn}\nsource_profile = owner\nregion = us-east-1\n"
        f"mfa_serial = {arn.replace('role/', 'mfa/')}\n"
    )
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    values = {
        "HOME": tmp_path,
        "AWS_PROFILE": "operator",
        "AWS_CONFIG_FILE": config,
        "AWS_SHARED_CREDENTIALS_FILE": secrets,
        "AWS_ENDPOINT_URL": rig.endpoint.url,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, str(value))
    # AWS is reached at its own addresses, whatever the environment says; here the local EC2 stands for it.
    monkeypatch.setattr("dlcloud.cloud.api.clients.ignore_configured_endpoints", lambda _: None)
    return tmp_path / ".aws" / "cli" / "cache"


def key_of(clients):
    return clients.get("sts").get_caller_identity() and clients._session.get_credentials().access_key


def test_the_code_is_asked_for_once_and_the_identity_outlives_the_login(profile):
    asked = []

    def login():
        return Clients(region="us-east-1", ask=lambda text: asked.append(text) or "123456")

    first = login()
    keys = [key_of(first)]
    assert len(asked) == 1
    assert "mfa/operator" in asked[0]
    (kept,) = profile.iterdir()
    assert kept.stat().st_mode & 0o077 == 0
    keys.append(key_of(login()))
    assert (len(asked), len(set(keys))) == (1, 1)
    kept.unlink()
    second = login()
    keys.append(key_of(second))
    assert (len(asked), len(set(keys))) == (2, 2)
    assert first.identity() == second.identity()


def refuse(_):
    raise CredentialsError("stdin is not a terminal")


SSO = """
[profile sso]
sso_session = work
sso_account_id = 123456789012
sso_role_name = Dev
[sso-session work]
sso_start_url = https://example.awsapps.com/start
sso_region = us-east-1
"""
MISSING = "arn:aws:iam::123456789012:role/Missing"


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"ask": refuse}, "not a terminal", ""),
        ({"login": Login(aws_profile="owner", role=MISSING)}, f"assuming the role {MISSING}", ""),
        ({"login": Login(aws_profile="nobody")}, "has no profile nobody", ""),
        ({"login": Login(aws_profile="sso")}, None, "aws sso login --profile sso"),
    ],
    ids=["no code", "no role", "no profile", "expired login"],
)
def test_what_gives_no_credentials_is_named_with_its_cure(profile, options, message, hint):
    with (profile.parents[2] / "config").open("a") as config:
        config.write(SSO)
    with pytest.raises(CredentialsError, match=message) as refused:
        Clients(region="us-east-1", **options).identity()
    assert not hint or refused.value.hint == hint


def assumed(arn, **settings):
    """Return clients that assume a role of dlcloud's own configuration by the keys of the owner."""
    return Clients(region="us-east-1", login=Login(aws_profile="owner", role=arn, **settings))


def test_a_role_of_the_configuration_is_assumed_and_kept(profile, arn):
    first = assumed(arn, session_name="me", external_id="0042", role_minutes=60)
    caller = first.get("sts").get_caller_identity()["Arn"]
    assert caller.endswith(":assumed-role/operator/me")
    (kept,) = profile.iterdir()
    assert kept.stat().st_mode & 0o077 == 0
    second = assumed(arn, session_name="me", external_id="0042", role_minutes=60)
    assert key_of(first) == key_of(second)
    assert key_of(assumed(arn, session_name="other")) != key_of(first)


@pytest.mark.usefixtures("profile")
def test_its_mfa_code_is_asked_for_once(arn):
    asked, keys = [], set()
    for _ in range(2):
        clients = assumed(arn, mfa_serial=arn.replace("role/", "mfa/"))
        clients.ask = lambda text: asked.append(text) or "123456"
        keys.add(key_of(clients))
    assert (len(asked), len(keys)) == (1, 1)
