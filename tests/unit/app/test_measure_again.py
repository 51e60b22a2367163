"""`bench`: which types are measured, and what would settle a tie."""

import os
import sys
from types import SimpleNamespace

import pytest

from dlcloud.analysis.ranking import MOST
from dlcloud.app.bench.one_type import recipe_file
from dlcloud.app.bench.run import command_again, offer_again, read_matrix
from dlcloud.app.results.predict import choose_measured
from dlcloud.app.results.rows import commands_again, warn_of_namesakes
from dlcloud.model.errors import RecipeError
from dlcloud.report.cost_tables import PLAIN
from dlcloud.resources.texts import recipe_text
from dlcloud.runs.matrix import matrix_of_recipe
from tests.fakes.samples import recipe, run
from tests.unit.report.conftest import BILL, lines, metric, quote, result


def choose(*types):
    return choose_measured(None, types, region="us-east-1", is_local=True)  # bundled prices need no context


def test_three_types_of_different_processors_are_chosen_of_all():
    chosen = choose()
    assert len({name.split(".")[0] for name in chosen}) == 3


def test_at_most_three_of_those_named_are_measured():
    named = ("c7i.xlarge", "c6a.4xlarge", "r7g.8xlarge", "m5.large", "c7i.large")
    assert len(choose(*named)) == 3
    assert set(choose(*named)) <= set(named)


def test_gpu_types_are_measured_next_to_cpu_types_one_of_each_gpu():
    gpus = ("g5.2xlarge", "g5.xlarge", "g4dn.xlarge", "g6.xlarge", "g6e.xlarge")
    assert choose("g5.xlarge") == ("g5.xlarge",)
    assert {*choose(*gpus)} == {"g5.2xlarge", "g4dn.xlarge", "g6.xlarge"}
    assert len(choose(*gpus, "c7i.xlarge", "m7a.xlarge")) == 5


def test_a_type_without_a_ground_is_refused():
    with pytest.raises(RecipeError, match=r"g6f\.large"):
        choose("g6f.large")
    with pytest.raises(RecipeError, match=r"g4ad\.xlarge"):
        choose("g4ad.xlarge")  # its processor would be predicted, its GPU is paid


def test_what_was_rehearsed_is_measured_on_aws_whatever_the_recipe_says():
    again = command_again([], "mine.yaml", region=None, market="spot", is_rehearsal=True)
    assert again == "dlcloud bench mine.yaml --cloud aws --market spot"


def test_what_was_measured_on_aws_is_measured_there_again():
    region = "eu-central-1"
    again = command_again(["quantization"], "", (1, 2), region=region, market=None, is_rehearsal=False)
    assert again == "dlcloud bench -b quantization --nodes 1,2 --region eu-central-1"


TYPES = ["c7i.xlarge", "m7i.xlarge"]


@pytest.fixture
def terminal(monkeypatch):
    """Return what types at the terminal that standard input is."""
    master, slave = os.openpty()
    with os.fdopen(slave, "r") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield lambda text: os.write(master, text.encode())
    os.close(master)


@pytest.fixture
def matrix():
    return matrix_of_recipe(TYPES, recipe(), {}, tiny=False)


def rows(*throughputs):
    return [
        row
        for name, throughput in zip(TYPES, throughputs, strict=True)
        for row in lines(
            result(throughput=throughput),
            of=run(f"{name}-0001", instance_type=name),
            quoted=quote(),
            bill=BILL,
        )
    ]


TIED = (metric(10.0, 9.5, 10.5), metric(10.4, 9.9, 11.0))


def test_yes_measures_again_with_the_samples_that_it_named(terminal, matrix, capsys):
    terminal("y\n")
    again = offer_again(rows(*TIED), matrix, PLAIN)
    asked = capsys.readouterr().err
    assert set(again.types) == set(TYPES)
    samples = {int(job.workload.parameters["rounds"]) for job in again.jobs}
    assert max(samples) <= MOST
    assert f"Measure m7i.xlarge, c7i.xlarge again now ({samples.pop()} samples of each setting" in asked
    assert " USD)? [y/N]" in asked


@pytest.mark.parametrize("answer", ["n\n", "\n"])
def test_no_is_the_default(terminal, matrix, answer):
    terminal(answer)
    assert offer_again(rows(*TIED), matrix, PLAIN) is None


@pytest.mark.usefixtures("terminal")
def test_a_clear_winner_raises_no_question(matrix, capsys):
    clear = (metric(10.0, 9.9, 10.1), metric(20.0, 19.9, 20.1))
    assert offer_again(rows(*clear), matrix, PLAIN) is None
    assert capsys.readouterr().err == ""


def test_without_a_terminal_nothing_is_asked(matrix, monkeypatch, capsys):
    with open(os.devnull) as nothing:  # noqa: PTH123
        monkeypatch.setattr(sys, "stdin", nothing)
        assert offer_again(rows(*TIED), matrix, PLAIN) is None
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("is_bundled", [False, True])
def test_what_bench_measured_is_measured_again_by_its_recipe(tmp_path, is_bundled):
    path = tmp_path / "own.yaml"
    path.write_text(recipe_text("mpi")[0].replace("name: mpi", "name: own"))
    source = "mpi" if is_bundled else str(path)
    matrix, _ = read_matrix(TYPES, (), source, {}, tiny=False)
    stored = SimpleNamespace(recipe_path=recipe_file(matrix, TYPES[0]).path)
    context = SimpleNamespace(clusters=SimpleNamespace(find=lambda _: stored))
    of = run("one-0001", instance_type=TYPES[0], workload="mpi" if is_bundled else "own")
    rows = lines(result(), of=of, quoted=quote(), bill=BILL)
    assert commands_again(context, rows)["one-0001"].startswith(f"dlcloud bench {source} ")


def test_an_experiment_is_repeated_by_up():
    stored = SimpleNamespace(recipe_text=recipe_text("mpi")[0], recipe_path="")
    context = SimpleNamespace(clusters=SimpleNamespace(find=lambda _: stored))
    of = run("mpi-0001", instance_type="c7i.xlarge", workload="mpi", experiment="abc", trial=1)
    rows = lines(result(), of=of, quoted=quote(), bill=BILL)
    assert commands_again(context, rows)["mpi-0001"].startswith("dlcloud up mpi ")


@pytest.mark.parametrize(("paths", "count"), [(("/a/train.yaml", "/b/train.yaml"), 1), (("/a/x", "/a/y"), 0)])
def test_a_name_that_two_projects_share_is_stated(paths, count):
    stored = dict(zip(TYPES, paths, strict=True))
    find = SimpleNamespace(find=lambda name: SimpleNamespace(recipe_path=stored[name]))
    emitted = []
    shown = [
        row
        for name in TYPES
        for row in lines(result(), of=run(f"{name}-1", cluster_id=name), quoted=quote(), bill=BILL)
    ]
    warn_of_namesakes(SimpleNamespace(clusters=find, emit=emitted.append), shown)
    names = [event.message.partition(",")[0].partition(" is ")[2] for event in emitted]
    assert names == ["the name of recipes in /a and /b"] * count
