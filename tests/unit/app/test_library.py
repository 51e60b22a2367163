"""`import dlcloud`: light, typed, with rows that notebooks take and errors of one kind."""

import json
import pickle
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

import dlcloud
from dlcloud.report.notebook import plain_rows
from dlcloud.report.table import Report, Section

PACKAGE = Path(dlcloud.__file__).parent
WORKLOAD = {"command": "true"}
INSTANCES = {"types": ["c5.large"]}
LOADED = """
import sys, json
before = set(sys.modules)
import dlcloud
print(json.dumps(sorted(set(sys.modules) - before)))
"""


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("DLCLOUD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DLCLOUD_CONFIG", str(tmp_path / "config.yaml"))


def rows(*records, section=None):
    sections = [section] if section else []
    return dlcloud.Rows(Report(command="up", records=records, sections=sections, empty=""))


def test_import_loads_nothing_but_the_package_itself():
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout)
    assert [name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names] == ["dlcloud"]
    assert len(loaded) < 20


def test_every_public_name_exists_and_the_package_is_typed():
    assert {name for name in dlcloud.__all__ if getattr(dlcloud, name, None) is None} == set()
    assert set(dlcloud.__all__) <= set(dir(dlcloud))
    assert (PACKAGE / "py.typed").exists()
    with pytest.raises(AttributeError, match="no attribute nothing"):
        _ = dlcloud.nothing


def test_results_stays_a_function_beside_the_subpackage_of_its_name():
    from dlcloud.analysis.cost import RunCost  # noqa: PLC0415

    assert RunCost.__module__ == "dlcloud.analysis.cost"
    assert dlcloud.results() == []


def test_a_recipe_in_code_is_the_one_in_yaml():
    built = dlcloud.Recipe(
        name="sweep",
        instances={**INSTANCES, "count": 2},
        workload=WORKLOAD,
        experiment={"matrix": {"lr": [0.1, 1e-5, 3], "warm": (True, False)}, "metric": "time"},
        keep=None,
    )
    assert built.experiment.matrix == {"lr": ["0.1", "1e-05", "3"], "warm": ["true", "false"]}
    assert built.experiment.count == 6
    assert built.keep.instances is False
    assert "name: sweep" in built.to_yaml()


def test_all_faults_of_a_recipe_in_code_are_named_at_once():
    with pytest.raises(dlcloud.DlcloudError) as caught:
        dlcloud.Recipe(name="No", instances={"count": 1}, other={1, 2})
    for path in ("name: ", "workload: is missing", "instances: name types", "other: unknown key"):
        assert path in str(caught.value)


def test_an_argument_that_does_not_exist_is_refused():
    recipe = dlcloud.Recipe(name="quick", cloud="local", instances=INSTANCES, workload=WORKLOAD)
    for call in (dlcloud.up, dlcloud.plan, dlcloud.trials):
        with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
            call(recipe, colour="red")
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        dlcloud.results(colour="red")
    with pytest.raises(dlcloud.DlcloudError, match="not a date"):
        dlcloud.results(since="yesterday")


def test_errors_are_raised_and_signals_are_given_back():
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
    before = [signal.getsignal(number) for number in numbers]
    with pytest.raises(dlcloud.DlcloudError, match="neither a file nor a bundled recipe"):
        dlcloud.up("no-such-recipe")
    with pytest.raises(dlcloud.DlcloudError, match="no cluster"):
        dlcloud.down("nothing", quiet=True)
    assert [signal.getsignal(number) for number in numbers] == before


def test_it_may_be_called_in_a_thread():
    failures = []

    def call():
        try:
            dlcloud.results("nothing")
        except dlcloud.DlcloudError as error:
            failures.append(str(error))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert failures == ["no run or cluster nothing is stored"]


def test_rows_are_plain_values_with_the_same_keys():
    time = datetime(2026, 11, 1, tzinfo=UTC)
    first = {"run": "a", "usd": Decimal("0.5"), "n": 1, "fact_printed": {"loss": "0.25", "run": "x"}}
    second = {"run": None, "usd": None, "n": 2.5, "at": time}
    assert plain_rows([first, second]) == [
        {"run": "a", "usd": 0.5, "n": 1.0, "loss": 0.25, "fact_run": "x", "at": None},
        {"run": None, "usd": None, "n": 2.5, "loss": None, "fact_run": None, "at": time},
    ]


def test_pandas_and_polars_take_the_rows_as_they_are():
    pandas = pytest.importorskip("pandas", reason="pandas is missing")
    polars = pytest.importorskip("polars", reason="polars is missing")
    late = rows(*({"text": None, "usd": None, "n": 1} for _ in range(150)), {"text": "x", "usd": 1, "n": 2})
    assert pandas.DataFrame(late).usd.sum() == 1
    frame = polars.DataFrame(late)
    assert frame.schema == {"text": polars.String, "usd": polars.Float64, "n": polars.Int64}
    assert frame["usd"].to_list()[-1] == 1


def test_a_notebook_shows_the_table_and_text_never_becomes_html():
    section = Section(heading="trials", titles=("x",), rows=[["<script>"]], notes=["a < b"])
    shown = rows({"x": "<script>"}, section=section)
    assert "<script>" not in shown._repr_html_()
    assert "&lt;script&gt;" in shown._repr_html_()
    assert "trials" in repr(shown) == str(shown)
    assert pickle.loads(pickle.dumps(shown)) == [{"x": "<script>"}]
    with pytest.raises(dlcloud.DlcloudError, match="nothing to draw"):
        shown.chart()
