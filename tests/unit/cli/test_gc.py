"""gc over all regions of an account, some of which policies deny or the network loses."""

from types import SimpleNamespace

import pytest

from dlcloud.cli.gc import Collector
from dlcloud.core.errors import CloudError, CredentialsError, PartialError
from tests.fakes.clock import FakeClock

REGIONS = ["ap-south-1", "eu-west-1", "us-east-1"]


def denial(region):
    error = CredentialsError(f"looking in {region}: explicit deny in a service control policy")
    error.is_final = True
    return error


class FakeContext:
    """A context whose regions have nothing left, or refuse to be listed."""

    def __init__(self, errors):
        self.errors, self.events, self.clock = errors, [], FakeClock()
        self.emit = self.events.append
        self.clusters = SimpleNamespace(active=list)
        self.first_region = "us-east-1"

    def cloud(self, _name, region):
        def leftovers():
            if region in self.errors:
                raise self.errors[region]
            return []

        return SimpleNamespace(regions=lambda: REGIONS, leftovers=leftovers)


def collect(errors, *regions):
    context = FakeContext(errors)
    collector = Collector(context=context, cloud="aws", regions=regions, clusters=frozenset())
    return context, lambda: collector.run(dry_run=True, yes=False, output="table")


def test_regions_that_a_policy_denies_are_named_and_passed_over(capsys):
    context, run = collect({name: denial(name) for name in REGIONS[:2]})
    run()
    (warning,) = [e.message for e in context.events if "not looked at" in e.message]
    assert "ap-south-1, eu-west-1 (looking in ap-south-1: explicit deny" in warning
    assert capsys.readouterr().out


def test_a_denied_region_that_was_named_is_an_error(capsys):
    _, run = collect({"eu-west-1": denial("eu-west-1")}, "eu-west-1", "us-east-1")
    with pytest.raises(PartialError, match="service control policy"):
        run()
    assert capsys.readouterr().out


def test_a_region_that_cannot_be_reached_is_partial(capsys):
    _, run = collect({"ap-south-1": denial("ap-south-1"), "eu-west-1": CloudError("no network")})
    with pytest.raises(PartialError, match=r"^no network$"):
        run()
    assert capsys.readouterr().out


def test_an_account_that_may_look_nowhere_is_an_error():
    _, run = collect({name: denial(name) for name in REGIONS})
    with pytest.raises(CredentialsError, match="service control policy"):
        run()
