"""The local EC2 of another home: used by its address, never started or stopped."""

import socket

import pytest

from dlcloud.local.site import SharedSite
from dlcloud.model.errors import LocalCloudError


def test_a_shared_site_that_does_not_answer_is_not_started():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        site = SharedSite(url=f"http://127.0.0.1:{taken.getsockname()[1]}")
        assert site.find() is None
        with pytest.raises(LocalCloudError, match="no local EC2 answers"):
            site.start()


@pytest.mark.parametrize(
    "url", ["http://203.0.113.7:80", "127.0.0.1:80", "http://127.0.0.1", "http://[", "http://127.0.0.1:99999"]
)
def test_an_address_beyond_this_machine_is_refused(url):
    with pytest.raises(LocalCloudError, match="DLCLOUD_LOCAL_ENDPOINT"):
        SharedSite(url=url).find()
