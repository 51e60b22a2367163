"""What a failed end is reported with: what may still be up, and never another error in place of its own."""

from types import SimpleNamespace

import pytest

from dlcloud.app.lifecycle import ending
from dlcloud.launch.remainder import Remainder
from dlcloud.model.errors import CloudError, StoreError, UnwritableError


def launcher(remainder):
    events = []
    return SimpleNamespace(
        cluster=SimpleNamespace(name="digits"), remainder=remainder, emit=events.append, events=events
    )


def two_instances(_):
    return Remainder(count=2, requested=0, hourly_usd=None, ends_at=None)


def unreadable(_):
    raise StoreError("a launch request in the store cannot be read")


@pytest.mark.parametrize(
    ("remainder", "words"),
    [(two_instances, "2 instance(s) may still be up"), (unreadable, "cannot be read")],
)
def test_the_error_of_the_end_itself_is_raised_after_the_warning(remainder, words):
    made = launcher(remainder)
    with pytest.raises(CloudError, match="refused"), ending(made):
        raise CloudError("refused")
    (event,) = made.events
    assert words in event.message
    assert event.message.endswith("dlcloud down digits ends it")


def test_a_store_that_is_full_after_the_end_is_no_remainder():
    made = launcher(two_instances)
    with pytest.raises(UnwritableError), ending(made):
        raise UnwritableError("the disk is full")
    assert made.events == []
