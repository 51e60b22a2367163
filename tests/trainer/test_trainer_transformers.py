"""ElasticTrainer beside the Trainer of Hugging Face whose losses it has."""

import json
import shutil

import pytest

from tests.environments import ROOT, python_with
from tests.fakes.agents import Agents

PROGRAM = ROOT / "tests" / "trainer" / "programs" / "hugging_face.py"


@pytest.fixture(scope="session")
def trainer_python():
    """Give a Python with transformers, in place of the one for the other tests."""
    return python_with(ROOT / "dlcloud" / "trainer" / "requirements" / "transformers.txt")


def read(folder, name):
    return json.loads((folder / f"{name}.json").read_text())


@pytest.mark.long
@pytest.mark.parametrize("kind", ["dropout", "language"])
def test_alone_its_losses_are_those_of_trainer_to_the_bit(run_program, alone, kind):
    """Partial batches at the end of epochs, accumulation, dropout, a schedule, evaluation and bf16."""
    for name in ("Trainer", "ElasticTrainer"):
        run_program(str(PROGRAM), name, kind, str(alone / f"{name}.json"))
    assert read(alone, "ElasticTrainer") == read(alone, "Trainer")


@pytest.mark.long
def test_with_several_workers_its_losses_are_those_of_trainer_within_rounding(
    run_program, trainer_python, alone
):
    run_program(str(PROGRAM), "Trainer", "network", str(alone / "plain.json"))
    script = [str(PROGRAM), "ElasticTrainer", "network", str(alone / "elastic.json")]
    with Agents(trainer_python, alone, script) as agents:
        agents.start("first", "--lighthouse", "--workers", "3")
        assert agents.wait("first") == 0
        assert {record["world_size"] for record in agents.steps("first")} == {3}
    plain, elastic = read(alone, "plain"), read(alone, "elastic")
    assert len(plain[0]) == len(elastic[0])
    for expected, found in zip(plain[0], elastic[0], strict=True):
        assert found == pytest.approx(expected, rel=1e-4)
    assert elastic[1:] == pytest.approx(plain[1:], rel=1e-4)


REFUSED = """
from transformers import EarlyStoppingCallback, TrainingArguments
from trainer.transformers import ElasticTrainer
from hugging_face import Network, Samples

arguments = TrainingArguments(
    output_dir="out", use_cpu=True, report_to=[], eval_strategy="epoch", save_strategy="epoch",
    load_best_model_at_end=True, lr_scheduler_type="reduce_lr_on_plateau",
)
data = Samples("network", 8)
made = ElasticTrainer(Network(0.0), arguments, train_dataset=data, eval_dataset=data)
made.add_callback(EarlyStoppingCallback())
for _ in range(2):
    try:
        made.train()
    except NotImplementedError as error:
        print(error)
    arguments.load_best_model_at_end = False
    made.remove_callback(EarlyStoppingCallback)
"""


@pytest.mark.long
def test_what_it_does_not_support_is_refused_by_name(run_program, alone):
    shutil.copy(PROGRAM, alone)
    output = run_program("-c", REFUSED)
    first, second = [line for line in output.splitlines() if line.startswith("ElasticTrainer")]
    assert "load_best_model_at_end; EarlyStoppingCallback" in first
    assert "the scheduler ReduceLROnPlateau" in second
