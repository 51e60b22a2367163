"""Ec2Cloud over a region in memory (moto), and over stubbed clients."""

import boto3
import moto
import pytest
from botocore.stub import Stubber

from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.compute.images import Images
from dlcloud.cloud.ec2 import Ec2Cloud
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.cloud.offers.instance_types import InstanceTypes
from dlcloud.cloud.offers.prices import Prices
from dlcloud.model.instance import Image
from dlcloud.resources.texts import control_policy
from tests.fakes import samples
from tests.fakes.clock import FakeClock

NOWHERE = "http://127.0.0.1:9"
REGION = "us-east-1"


@pytest.fixture(autouse=True)
def _nobody(monkeypatch, tmp_path):
    """No test sees the credentials of its user, nor looks for any on a network."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))


def cloud_over(clients, cache=None, clock=None, images=None, types=None):
    catalog = Catalog()
    clock = clock or FakeClock()
    prices = Prices(clients=clients, catalog=catalog, cache=cache, clock=clock)
    return Ec2Cloud(
        clients=clients,
        types=InstanceTypes(clients=clients, catalog=catalog, cache=types, clock=clock),
        images=Images(clients=clients, cache=images, clock=clock),
        prices=prices,
        own_cidr=lambda: "203.0.113.7/32",
        control_policy=control_policy,
        pause=clock.sleep,
    )


@pytest.fixture
def clients():
    """Clients that reach no server: every answer must be stubbed."""
    return Clients(region=REGION, endpoint_url=NOWHERE)


@pytest.fixture
def stub():
    """Return what puts a Stubber around a client; in the end every answer must have been asked for."""
    active = []

    def around(client):
        stubber = Stubber(client)
        stubber.activate()
        active.append(stubber)
        return stubber

    yield around
    for stubber in active:
        stubber.assert_no_pending_responses()


@pytest.fixture
def moto_cloud():
    """Ec2Cloud against moto, in this process."""
    with moto.mock_aws():
        yield cloud_over(Clients(region=REGION))


@pytest.fixture
def ec2(moto_cloud):
    assert moto_cloud.region == REGION
    return boto3.client("ec2", region_name=REGION)


def request(**other):
    values = {
        "count": 2,
        "image": Image(image_id="ami-0123456789abcdef0", name="Ubuntu", root_device="/dev/sda1"),
        "disk_gib": 60,
        "security_group_id": "sg-1",
        "user_data": "#cloud-config\n",
        "client_token": "t" * 64,
    }
    return samples.request(**{**values, **other})
