"""The parts of the trainer that need PyTorch, each by itself; run by pytest where PyTorch is."""

import json
import os
import random
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset
from trainer import checkpoint
from trainer.batches import Batches, Microbatch, WorkerStep
from trainer.compute import Compute, ReduceBuffer
from trainer.coordination.ledger import Entry, LedgerReporter, WrongRunError
from trainer.drain import Drain
from trainer.engine import Solo, StepPlace, digest_of
from trainer.job import WorkerJob
from trainer.loop import AlreadyDoneError, Loop, Membership
from trainer.records import Records
from trainer.sampler import Sampler, divide
from trainer.settings import Settings, from_environment
from trainer.training import train


class Numbers(Dataset):
    """Samples of their index and of random numbers."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.tensor([float(index), torch.rand(()).item(), random.random()])


class Net(nn.Module):
    """Has rare things: a layer used twice, one never used, a constant, a counter."""

    def __init__(self):
        super().__init__()
        self.twice, self.never = nn.Linear(3, 3), nn.Linear(2, 2)
        self.norm, self.last = nn.BatchNorm1d(3), nn.Linear(3, 1)
        self.register_buffer("constant", torch.full((2,), 0.1))
        self.register_buffer("counter", torch.zeros((), dtype=torch.int64))

    def forward(self, values):
        self.counter += 1
        return self.last(self.norm(self.twice(self.twice(values)))) * self.constant[0]


def squares(model, batch):
    return model(batch).square().mean()


def job_of(model=None, **more):
    torch.manual_seed(0)
    model = model or Net()
    given = {"batch": 8, "steps": 3, "dataset": Numbers(20), "loss": squares, **more}
    return WorkerJob(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), **given)


def summed(job, workers, step=0):
    """Take a step as so many workers do; return totals and gradients."""
    jobs = [job, *(replace(job, model=deepcopy(job.model)) for _ in range(workers - 1))]
    computes, sent = [Compute(own, "r") for own in jobs], [[] for _ in jobs]
    for rank, compute in enumerate(computes):
        compute.begin(WorkerStep(step, rank, workers), sent[rank].append, leaving=rank == 0, lineage=5)
    for values in zip(*sent, strict=True):
        values[0].copy_(sum(values[1:], start=values[0].clone()))
    totals = computes[0].reduced_totals()
    computes[0].apply()
    return totals, {name: parameter.grad.clone() for name, parameter in job.model.named_parameters()}


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 11])
def test_gradients_are_those_of_one_plain_backward(workers):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    job = job_of(deepcopy(model))
    totals, gradients = summed(job, workers)
    assert (totals.workers, totals.leaving, totals.same_settings) == (workers, 1, True)
    whole = Microbatch(0, Sampler(samples=20, batch=8, seed=0).batch_of(0))
    batches = Batches(dataset=job.dataset, divide=lambda _: [whole], seed=0, loading=0, collate=None)
    _, batch = next(batches.of(WorkerStep(0, 0, 1)))
    loss = squares(model, batch)
    loss.backward()
    assert totals.loss == pytest.approx(loss.item(), rel=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad)


def test_rare_parameters_are_summed_too():
    totals, gradients = summed(job_of(), 3)
    assert totals.workers == 3
    assert not gradients["never.weight"].any()
    assert gradients["twice.weight"].any()


def test_constants_stay_and_counters_count_steps():
    job = job_of(dataset=Numbers(24))
    for step in range(3):
        job = replace(job, model=deepcopy(job.model))
        summed(job, 3, step)
    assert torch.equal(job.model.constant, torch.full((2,), 0.1))
    assert job.model.counter == 3
    assert job.model.norm.num_batches_tracked == 3


@pytest.mark.parametrize("workers", [2, 3, 4, 7])
def test_exact_mode_has_the_same_bits_for_any_number_of_workers(workers):
    _, one = summed(job_of(shards=4, batch=12), 1)
    _, many = summed(job_of(shards=4, batch=12), workers)
    for name, gradient in one.items():
        assert gradient.view(torch.int32).equal(many[name].view(torch.int32)), name


def test_negative_zero_is_summed_as_zero_by_one_worker_as_by_many():
    buffer = ReduceBuffer(nn.Linear(1, 1), fingerprint=0)
    buffer.clear()
    buffer.flat.add_(torch.full_like(buffer.flat, -0.0))
    assert not torch.signbit(buffer.flat).any()


def test_large_models_travel_in_buckets_that_cover_everything_once():
    model = nn.Sequential(*(nn.Linear(10, 10) for _ in range(6)))
    buffer = ReduceBuffer(model, fingerprint=7, bucket_bytes=600)
    sent = []
    buffer.begin()
    buffer.begin_microbatch(sent.append)
    model(torch.ones(2, 10)).sum().backward()
    early = len(sent)
    buffer.finish(leaving=False, lineage=0)
    buffer.send_rest(sent.append)
    assert early >= 2
    assert sum(map(len, sent)) == len(buffer.flat)
    starts = [bucket.data_ptr() for bucket in sent]
    assert starts == sorted(starts)


def test_half_precision_parameters_are_summed_in_full():
    model = nn.Linear(3, 1).to(torch.bfloat16)
    buffer = ReduceBuffer(model, fingerprint=0)
    buffer.begin()
    buffer.begin_microbatch(None)
    model(torch.ones(1, 3, dtype=torch.bfloat16)).sum().backward()
    assert buffer.flat.dtype == torch.float32
    buffer.apply()
    assert model.weight.grad.dtype == torch.bfloat16
    assert model.weight.grad.tolist() == [[1, 1, 1]]


def test_a_worker_of_other_settings_is_noticed():
    ours, theirs = (
        ReduceBuffer(nn.Linear(1, 1), fingerprint=0xDEADBEEF),
        ReduceBuffer(nn.Linear(1, 1), fingerprint=0xDEADBEEE),
    )
    for buffer in (ours, theirs):
        buffer.clear()
        buffer.finish(leaving=False, lineage=0)
    ours.flat.add_(theirs.flat)
    assert not ours.totals().same_settings


@pytest.mark.parametrize("loading", [0, 2])
def test_samples_and_their_randomness_depend_on_seed_and_step_only(loading):
    def divided(place):
        order = [(place.step * 6 + index) % 20 for index in range(6)]
        return [Microbatch(place.rank * 3, divide(order, place.size)[place.rank])]

    made = {"dataset": Numbers(20), "divide": divided, "seed": 5, "loading": loading, "collate": None}
    walk = [
        WorkerStep(0, 0, 2),
        WorkerStep(1, 0, 2),
        WorkerStep(1, 0, 3),
        WorkerStep(2, 1, 2),
        WorkerStep(3, 1, 2),
    ]
    batches = Batches(**made)
    rows = {}
    for place in walk:
        for _, batch in batches.of(place):
            for row in batch.tolist():
                assert rows.setdefault((place.step, row[0]), row) == row
    fresh = Batches(**{**made, "loading": 0})
    for _, batch in fresh.of(WorkerStep(3, 1, 2)):
        assert [rows[3, row[0]] for row in batch.tolist()] == batch.tolist()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch": 0}, "batch must be at least 1"),
        ({"batch": 21}, "more than the data set has"),
        ({"shards": 2, "micro_batch": 2}, "give shards or micro_batch"),
        ({"dataset": []}, "empty"),
        ({"loading": -1}, "loading"),
    ],
)
def test_a_job_that_cannot_be_trained_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        job_of(**wrong)


def test_a_loss_that_is_no_mean_is_refused():
    job = job_of(loss=lambda model, batch: model(batch).square())
    with pytest.raises(ValueError, match="mean over the samples"):
        summed(job, 1)


def test_micro_batches_change_nothing_but_memory():
    model = nn.Linear(3, 1)
    _, whole = summed(job_of(deepcopy(model)), 2)
    _, small = summed(job_of(deepcopy(model), micro_batch=2), 2)
    for name, gradient in whole.items():
        torch.testing.assert_close(gradient, small[name])


STATE = {
    "step": 3,
    "model": {"w": torch.arange(4.0)},
    "optimizer": {"state": {0: {"m": torch.ones(2)}}, "lr": 0.1},
}


def test_a_checkpoint_comes_back_whole(tmp_path):
    checkpoint.write(tmp_path, 3, STATE)
    step, state = checkpoint.newest(tmp_path)
    assert step == 3
    assert digest_of(state) == digest_of(STATE)


def test_old_checkpoints_are_removed(tmp_path):
    for step in range(5):
        checkpoint.write(tmp_path, step, STATE)
    assert checkpoint.newest(tmp_path)[0] == 4
    assert len(list(tmp_path.iterdir())) == checkpoint.KEPT


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_torn_checkpoint_is_passed_over(tmp_path, share):
    checkpoint.write(tmp_path, 3, STATE)
    newer = checkpoint.write(tmp_path, 4, STATE)
    content = newer.read_bytes()
    newer.write_bytes(content[: int(len(content) * share)])
    assert checkpoint.newest(tmp_path)[0] == 3


def test_a_checkpoint_with_a_bit_turned_is_passed_over(tmp_path):
    path = checkpoint.write(tmp_path, 4, STATE)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert checkpoint.newest(tmp_path) is None


@pytest.mark.parametrize("breaks_at", ["fsync", "rename"])
def test_a_crash_while_writing_leaves_the_former_checkpoint(tmp_path, monkeypatch, breaks_at):
    checkpoint.write(tmp_path, 3, STATE)

    def crash(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(*{"fsync": (os, "fsync"), "rename": ("pathlib.Path.rename",)}[breaks_at], crash)
    with pytest.raises(OSError, match="no space"):
        checkpoint.write(tmp_path, 4, STATE)
    monkeypatch.undo()
    assert checkpoint.newest(tmp_path)[0] == 3
    assert not list(tmp_path.glob(".*")), "what was left half written"


def test_a_checkpoint_cannot_bring_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "evil"),)

    checkpoint.write(tmp_path, 4, {"step": 4, "model": Evil()})
    with pytest.raises(Exception, match=r"(?i)weights"):
        checkpoint.newest(tmp_path)
    assert not (tmp_path / "evil").exists()


def loop_of(job, tmp_path, *, entry=None, drain=None, run="r", control=None):
    class FixedReporter(LedgerReporter):
        def read(self):
            return entry

    path = tmp_path / "records.jsonl"
    return Loop(
        job=job,
        settings=Settings(run=run, checkpoints=tmp_path / "c", checkpoint_s=1e-9, control=control),
        records=Records(path=path, run=run, worker="w"),
        connect=lambda step, _load, _save: Solo(step),
        reporter=FixedReporter(None) if entry else LedgerReporter(None),
        drain=drain or Drain(),
        sleep=lambda _s: (_ for _ in ()).throw(TimeoutError("holds")),
    )


def test_a_run_that_was_broken_off_goes_on_to_the_same_bits(tmp_path):
    whole, broken = job_of(), job_of(steps=2)
    loop_of(whole, tmp_path / "whole").run()
    loop_of(broken, tmp_path / "broken").run()
    later = job_of()
    assert loop_of(later, tmp_path / "broken").run().steps == 3
    assert digest_of(later.model.state_dict()) == digest_of(whole.model.state_dict())


def test_a_checkpoint_of_other_settings_is_refused(tmp_path):
    loop_of(job_of(), tmp_path).run()
    for other, run in ((job_of(batch=4), "r"), (job_of(), "another")):
        with pytest.raises(WrongRunError, match="another run, or of other settings"):
            loop_of(other, tmp_path, run=run).run()


def test_a_phantom_holds_and_a_latecomer_ends(tmp_path):
    with pytest.raises(TimeoutError, match="holds"):
        loop_of(job_of(), tmp_path, entry=Entry(run="r", step=5)).run()
    with pytest.raises(AlreadyDoneError) as ended:
        loop_of(job_of(), tmp_path, entry=Entry(run="r", step=5, done=True)).run()
    assert ended.value.code == 0


def test_one_below_the_minimum_waits_unless_the_others_have_ended_the_run(tmp_path):
    control = tmp_path / "control.json"
    control.write_text('{"minimum": 2}')
    with pytest.raises(TimeoutError, match="holds"):
        loop_of(job_of(), tmp_path, control=control).run()
    with pytest.raises(AlreadyDoneError):
        loop_of(job_of(), tmp_path, entry=Entry(run="r", step=3, done=True), control=control).run()


def test_a_script_that_no_agent_started_trains_alone(monkeypatch):
    monkeypatch.delenv("DLCLOUD_TRAINER", raising=False)
    job = job_of()
    assert train(job.model, job.optimizer, job.dataset, squares, batch=8, epochs=2).steps == 6
    with pytest.raises(ValueError, match="either epochs or steps"):
        train(job.model, job.optimizer, job.dataset, squares, batch=8)


def test_settings_travel_through_the_environment(tmp_path):
    settings = Settings(run="x", records=tmp_path / "r", lighthouse="http://h:1", hash_every=3, gpu=2)
    assert from_environment(settings.to_environment()) == settings
    assert from_environment({}) == Settings()


@pytest.mark.parametrize(
    ("announced", "left", "size", "events"),
    [
        (0, 0, 2, [("lost", 2)]),
        (2, 0, 2, []),
        (2, 2, 2, []),
        (0, 2, 2, [("leaving_seen", 2)]),
        (1, 2, 1, [("leaving_seen", 1), ("lost", 1)]),
        (0, 9, 3, [("leaving_seen", 1)]),
        (0, -4, 3, [("lost", 1)]),  # another lighthouse counts anew
        (0, 1, 4, []),  # another one has come
    ],
)
def test_only_workers_that_said_nothing_are_lost(tmp_path, announced, left, size, events):
    path = tmp_path / "records"
    with Records(path=path, run="r", worker="a") as records:
        parts = dict.fromkeys(("state", "checkpoints", "control", "reporter", "drain", "connect"))
        membership = Membership(records=records, **parts)
        membership.previous = StepPlace(rank=0, size=4, quorum=1, left=5)
        membership.announced = announced
        membership._note_change(StepPlace(rank=0, size=size, quorum=2, left=5 + left), 7, 0.0)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["event"], line["workers"]) for line in lines] == events
    assert membership.announced == (announced if size == 4 else 0)
