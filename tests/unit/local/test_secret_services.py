"""Parameters and secrets of the local EC2: decrypted, for who may read them by the policy that we print."""

import json

import pytest

from dlcloud.cloud.storage.secret_values import SecretValues
from dlcloud.model.errors import CloudError
from dlcloud.recipe.workload import read_source
from dlcloud.resources.texts import iam_policy

VALUE = "kept-by-aws-0001"


@pytest.fixture(scope="module")
def stored(rig):
    """Three values, in the three forms that AWS has of them."""
    ssm, manager = rig.client("ssm"), rig.client("secretsmanager")
    ssm.put_parameter(Name="/own/secure", Value=VALUE, Type="SecureString")
    arn = manager.create_secret(Name="own/text", SecretString=VALUE)["ARN"]
    manager.create_secret(Name="own/binary", SecretBinary=b"\0\1")
    return arn


@pytest.fixture
def reader(rig):
    """Return a function that makes a user with one of our policies, and returns what fetches for it."""

    def make(policy):
        key = rig.user(*json.loads(iam_policy(policy))["Statement"])
        return lambda source: SecretValues(rig.clients(key=key)).fetch(read_source(source))

    return make


@pytest.mark.parametrize("source", ["ssm:/own/secure", "secretsmanager:own/text", "secretsmanager:ARN"])
def test_the_policy_for_secrets_reads_them_decrypted(stored, reader, source):
    assert reader("iam_policy_secrets.json")(source.replace("ARN", stored)) == VALUE


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize(
    ("policy", "source", "words"),
    [
        ("iam_policy.json", "ssm:/own/secure", "ssm:GetParameter"),
        ("iam_policy.json", "secretsmanager:own/text", "secretsmanager:GetSecretValue"),
        ("iam_policy_secrets.json", "ssm:/own/none", "reading the parameter /own/none"),
        ("iam_policy_secrets.json", "secretsmanager:none", "reading the secret none"),
        ("iam_policy_secrets.json", "secretsmanager:own/binary", "it is binary"),
    ],
)
def test_what_is_denied_or_cannot_be_read_is_named(reader, policy, source, words):
    with pytest.raises(CloudError) as refused:
        reader(policy)(source)
    assert words in refused.value.message
    assert VALUE not in str(refused.value)
