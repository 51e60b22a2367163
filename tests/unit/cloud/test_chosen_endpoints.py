"""Which EC2 Instance Connect Endpoints carry connections to instances of dlcloud."""

import pytest

from dlcloud.cloud.network.vpc import _endpoints
from dlcloud.model.errors import CloudError


class Listed:
    """Clients of a VPC with these endpoints."""

    def __init__(self, *endpoints):
        self._endpoints = endpoints

    def pages(self, *_, **__):
        return self._endpoints


def endpoint(name, *, preserves):
    return {"InstanceConnectEndpointId": name, "PreserveClientIp": preserves}


def test_endpoints_that_preserve_client_addresses_are_not_used():
    both = Listed(endpoint("eice-1", preserves=True), endpoint("eice-2", preserves=False))
    assert _endpoints(both, "vpc-1") == ("eice-2",)
    assert _endpoints(Listed(), "vpc-1") == ()
    with pytest.raises(CloudError, match="eice-1 preserves client addresses") as refused:
        _endpoints(Listed(endpoint("eice-1", preserves=True)), "vpc-1")
    assert "--no-preserve-client-ip" in refused.value.hint
