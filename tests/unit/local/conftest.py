"""A real daemon per test module, in a folder of its own."""

import pytest

from dlcloud.local import site as site_module
from dlcloud.local.site import LocalSite
from tests.fakes.local_ec2 import Rig
from tests.prefork import Daemons, fork_daemons


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    site = LocalSite(tmp_path_factory.mktemp("site"))
    rig = Rig(site, Daemons.of_this_process().start(site))
    rig.folder = site._paths.folder
    yield rig
    site.stop()
    assert not list(rig.folder.glob("instances/*"))


@pytest.fixture
def starts_anew():
    """Let a test start its daemon as a new process of Python, with all that it imports."""


@pytest.fixture(autouse=True)
def _forked(request, monkeypatch):
    """Fork the daemons that a test starts itself: a new process of Python takes two seconds."""
    if "starts_anew" not in request.fixturenames:
        monkeypatch.setattr(site_module, "subprocess", site_module.subprocess)
        fork_daemons(Daemons.of_this_process().address)


@pytest.fixture(autouse=True)
def _undisturbed(request):
    yield
    if "rig" in request.fixturenames:
        rig = request.getfixturevalue("rig")
        if rig.site.find() is not None:
            rig.control.clear_faults()
            rig.control.set_boot_delay(0.2)
            rig.control.set_visibility(0.0)
            rig.control.set_minute(60.0)
            rig.control.set_apt_lock(0.0)
