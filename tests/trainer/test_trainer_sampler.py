"""Who takes which samples."""

import random

from hypothesis import given
from hypothesis import strategies as some

from dlcloud.trainer.sampler import Sampler, chunks, divide, key, share


def permute(count, seed):
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return order


@given(count=some.integers(0, 300), size=some.integers(1, 40))
def test_shares_cover_everything_once(count, size):
    taken = [place for rank in range(size) for place in share(count, rank, size)]
    assert taken == list(range(count))


@given(count=some.integers(0, 300), size=some.integers(1, 40))
def test_shares_differ_by_one_at_most(count, size):
    sizes = {len(share(count, rank, size)) for rank in range(size)}
    assert max(sizes) - min(sizes) <= 1


@given(samples=some.integers(1, 200), batch=some.integers(1, 200), seed=some.integers(0, 9), data=some.data())
def test_each_sample_is_used_once_per_epoch_at_any_world_size(samples, batch, seed, data):
    sampler = Sampler(samples=samples, batch=min(batch, samples), seed=seed, permute=permute)
    for epoch in range(2):
        taken = []
        for step in range(sampler.steps_per_epoch):
            whole = sampler.batch_of(epoch * sampler.steps_per_epoch + step)
            size = data.draw(some.integers(1, 9))
            for piece in divide(whole, size):
                taken.extend(piece)
        assert sorted(taken) == list(range(samples))


def test_the_samples_of_a_step_depend_on_nothing_that_came_before():
    walked = Sampler(samples=50, batch=7, seed=3, permute=permute)
    for step in range(20):
        walked.batch_of(step)
    fresh = Sampler(samples=50, batch=7, seed=3, permute=permute)
    assert fresh.batch_of(19) == walked.batch_of(19)
    assert fresh.batch_of(2) == walked.batch_of(2)


def test_epochs_differ_in_their_order():
    sampler = Sampler(samples=50, batch=50, seed=3, permute=permute)
    assert sampler.batch_of(0) != sampler.batch_of(1)


@given(count=some.integers(0, 100), limit=some.one_of(some.none(), some.integers(1, 30)))
def test_chunks_are_as_few_as_can_be_and_none_is_too_large(count, limit):
    pieces = chunks(range(count), limit)
    assert [index for piece in pieces for index in piece] == list(range(count))
    if limit and count:
        assert max(map(len, pieces)) <= limit
        assert len(pieces) == -(-count // limit)


def test_keys_are_the_same_everywhere():
    assert key(0, 1, 2) == 4727102316523150270
    assert len({key(seed, part) for seed in range(20) for part in range(20)}) == 400
    assert 0 <= key(5) < 1 << 63
