"""The fakes that the tests of flows use answer to the calls that the EC2 classes do."""

import inspect

import pytest

from dlcloud.cloud.account.limits import Ec2Account
from tests.fakes.clock import FakeClock
from tests.fakes.cloud import FakeAccount, FakeCloud
from tests.unit.cloud.conftest import cloud_over

FAKES = {
    name: fake
    for name, fake in vars(FakeCloud(FakeClock())).items()
    if type(fake).__module__ == FakeCloud.__module__
}


def parameters(function):
    """Return names, kinds and defaults; the fakes have no annotations."""
    return [each.replace(annotation=each.empty) for each in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize(("subject", "fake"), [("account", FakeAccount()), *FAKES.items()])
def test_a_fake_takes_the_calls_of_the_ec2_class_it_stands_for(clients, subject, fake):
    real = Ec2Account if subject == "account" else type(getattr(cloud_over(clients), subject))
    methods = {
        name: method
        for name, method in vars(type(fake)).items()
        if inspect.isfunction(method)
        if name[0] != "_"
    }
    assert methods
    for name, method in methods.items():
        assert parameters(method) == parameters(getattr(real, name)), f"{real.__name__}.{name}"
