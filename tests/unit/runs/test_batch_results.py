"""What AWS Batch is asked for trials, and what their containers bring back."""

import io
import json
import tarfile

import boto3
import pytest
from botocore.validate import validate_parameters

from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.model.errors import InstanceError, RecipeError
from dlcloud.recipe.batch import describe_batch, refuse_no_batch, trials_definition
from dlcloud.recipe.recipe import read_recipe
from dlcloud.resources.texts import template
from dlcloud.runs.batch_results import unpack_result

RECIPE = """
name: sweep
instances: {types: [c7i.xlarge, g5.xlarge], count: 2, market: spot-then-on-demand}
workload: {command: python3 train.py, facts: {score: 'score (.*)'}}
experiment: {matrix: {x: [1, 2]}, metric: score, per_instance: 2}
results: s3://sweeps/mine
"""
END = {"exit_status": 0, "started_at": 1.0, "ended_at": 2.0}


def recipe(**changes):
    text = RECIPE
    for old, new in changes.values():
        assert old in text
        text = text.replace(old, new)
    return read_recipe(text, "sweep.yaml")


def archive(*entries):
    """Return an archive of names with their content; a link where that begins with `->`."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for name, text in entries:
            entry = tarfile.TarInfo(name)
            if text.startswith("->"):
                entry.type, entry.linkname = tarfile.SYMTYPE, text[2:]
                tar.addfile(entry)
            else:
                entry.size = len(text)
                tar.addfile(entry, io.BytesIO(text.encode()))
    return content.getvalue()


def test_a_job_definition_asks_for_a_share_of_the_smallest_type():
    types = [hardware for hardware in Catalog() if hardware.name in {"c7i.xlarge", "g5.xlarge"}]
    definition = trials_definition(recipe(), types, template("batch_trial.py"))
    shape = boto3.client("batch", "us-east-1").meta.service_model.operation_model("RegisterJobDefinition")
    validate_parameters({"jobDefinitionName": "dlcloud-c0ffee", **definition}, shape.input_shape)
    requirements = definition["containerProperties"]["resourceRequirements"]
    assert requirements[0] == {"type": "VCPU", "value": "2"}
    assert [requirement["type"] for requirement in requirements] == ["VCPU", "MEMORY"]
    # A task definition of ECS, which Batch makes of it, has at most 64 KiB.
    assert len(json.dumps(definition)) < 20_000


def test_a_plan_says_that_batch_does_not_go_on_to_on_demand():
    assert any("does not use on-demand" in note for note in describe_batch(recipe()))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("matrix: {x: [1, 2]}", "search: {trials: 2, space: {x: {low: 0, high: 1}}}", "depends on those"),
        ("results: s3://sweeps/mine", "", "needs a bucket"),
        ("train.py,", "train.py, secrets: {TOKEN: env:TOKEN},", "no secrets"),
        ("results:", "data: [{from: s3://some-bucket/b, to: data}]\nresults:", "not brought"),
        ("results:", "keep: {instances: true}\nresults:", "none is kept"),
    ],
)
def test_what_batch_cannot_run_is_refused(old, new, reason):
    with pytest.raises(RecipeError, match=reason):
        refuse_no_batch(recipe(change=(old, new)))


def test_a_result_brings_its_log_and_files_and_nothing_beside_its_folder(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    content = archive(
        ("end.json", json.dumps(END)),
        ("log", "it ran"),
        ("files/out/model.txt", "weights"),
        ("files/../../outside", "x"),
        ("/absolute", "x"),
        ("other", "x"),
        ("files/link", "->/etc/passwd"),
    )
    assert unpack_result(content, folder) == END
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == [
        "run/files/out/model.txt",
        "run/log",
    ]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no archive",
        archive(("log", "it ran")),
        archive(("end.json", "[1]")),
        archive(("end.json", json.dumps({**END, "exit_status": "0"}))),
        archive(("end.json", json.dumps({**END, "started_at": "x"}))),
    ],
    ids=["empty", "text", "no end", "a list", "status", "time"],
)
def test_a_result_that_cannot_be_read_is_an_error(tmp_path, content):
    with pytest.raises(InstanceError, match="cannot be read"):
        unpack_result(content, tmp_path)


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["out"], {"out/a.pt", "out/deep/b.pt", "out/last.pt"}),
        (["./out/deep"], {"out/deep/b.pt"}),
        (["*.pt"], {"best.pt"}),
        (["out/last.pt"], {"out/last.pt"}),
        (["metrics [1].json"], {"metrics [1].json"}),
        (["**"], {"out/a.pt", "out/deep/b.pt", "out/last.pt", "best.pt", "metrics [1].json"}),
        (["nothing", "outside"], set()),
    ],
)
def test_a_trial_on_batch_keeps_the_files_that_one_on_an_instance_keeps(tmp_path, patterns, names):
    program: dict = {"__name__": "batch_trial"}
    exec(compile(template("batch_trial.py"), "batch_trial.py", "exec"), program)
    folder = tmp_path / "trial"
    (folder / "work" / "out" / "deep").mkdir(parents=True)
    (folder / "command").touch()
    for name in ("out/a.pt", "out/deep/b.pt", "best.pt", "metrics [1].json"):
        (folder / "work" / name).write_text(name)
    (folder / "work" / "out" / "last.pt").symlink_to("a.pt")
    (tmp_path / "secret").write_text("secret")
    (folder / "work" / "outside").symlink_to(tmp_path / "secret")
    packed = program["pack"](folder, {}, patterns)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        files = {name: archive.extractfile(name).read() for name in archive.getnames() if "files/" in name}
    assert {name.removeprefix("files/") for name in files} == names
    assert files.get("files/out/last.pt", b"out/a.pt") == b"out/a.pt"
