"""Three clouds that keep one contract: moto's own server, the local EC2, and AWS where it is asked for.

AWS is used with DLCLOUD_TEST_AWS=1 only, in DLCLOUD_TEST_REGION (us-east-1), with the
caller's own credentials. It launches four c5.large for about a minute each: at most 0.02 USD in all. What it
makes is tagged, and removed at the end of each test; `dlcloud gc` finds whatever a crash would leave.
"""

import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from dlcloud.cloud.account.limits import Ec2Account
from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.compute.images import Images
from dlcloud.cloud.ec2 import Ec2Cloud
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.cloud.offers.instance_types import InstanceTypes
from dlcloud.cloud.offers.prices import Prices
from dlcloud.local.site import LocalSite
from dlcloud.resources.texts import control_policy
from tests.prefork import Daemons

REGION = os.environ.get("DLCLOUD_TEST_REGION", "us-east-1")


class Clock:
    """The machine's."""

    now = staticmethod(lambda: datetime.now(UTC))
    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)


class FakeAnswerCache(dict):
    """The answers of one test run."""

    def put(self, subject, content, as_of):
        self[subject] = (content, as_of)


class FakePriceCache(dict):
    """The prices of one test run."""

    def get(self, *key):
        return super().get(key)

    def put(self, price):
        self[price.instance_type, price.region, price.market] = price


@dataclass
class Backend:
    """One of the clouds, and what it is known not to do."""

    name: str
    clients: Clients
    cloud: Ec2Cloud
    account: Ec2Account
    clock: Clock = field(default_factory=Clock)

    @property
    def is_moto(self):
        return self.name == "moto"


def backend(name, url, access_key=("local", "local")):
    clients = Clients(region=REGION, endpoint_url=url, access_key=access_key)
    catalog, clock = Catalog(), Clock()
    prices = Prices(
        clients=clients, catalog=catalog, cache=FakePriceCache() if name == "aws" else None, clock=clock
    )
    cloud = Ec2Cloud(
        clients=clients,
        types=InstanceTypes(clients=clients, catalog=catalog, cache=FakeAnswerCache(), clock=clock),
        images=Images(clients=clients, cache=FakeAnswerCache(), clock=clock),
        prices=prices,
        own_cidr=lambda: "192.0.2.1/32",
        control_policy=control_policy,
        pause=time.sleep,
    )
    account = Ec2Account(clients=clients, catalog=catalog, cache=FakeAnswerCache(), clock=clock)
    return Backend(name=name, clients=clients, cloud=cloud, account=account)


def moto():
    """Start moto's own server as a process; it knows no user names of ours and needs no account."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.1)
    return process, f"http://127.0.0.1:{port}"


@pytest.fixture(scope="session", params=["moto", "local", "aws"])
def there(request, tmp_path_factory):
    match request.param:
        case "moto":
            process, url = moto()
            yield backend("moto", url)
            process.terminate()
            process.wait(100)
        case "local":
            site = LocalSite(tmp_path_factory.mktemp("contract") / "local")
            endpoint = Daemons.of_this_process().start(site)
            yield backend("local", endpoint.url, endpoint.owner_key())
            site.stop()
        case _:
            if os.environ.get("DLCLOUD_TEST_AWS") != "1":
                pytest.skip("DLCLOUD_TEST_AWS=1 runs this on AWS, for at most 0.02 USD")
            yield backend("aws", "")
