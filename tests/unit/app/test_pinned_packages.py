"""Open versions of packages are pinned once, by the real uv, from wheels that the test makes."""

import hashlib
import shutil
import zipfile
from pathlib import Path

import pytest

from dlcloud.app.packages import pin_packages
from dlcloud.app.recipe_files import read_recipe_file
from dlcloud.launch.user_files import with_projects
from dlcloud.model.errors import RecipeError
from dlcloud.recipe.recipe import read_recipe
from dlcloud.store.home import Paths

pytestmark = pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not installed")

RECIPE = """\
instances: {{types: {types}}}
cloud: {cloud}
setup: {{requirements: {requirements}}}
workload: {{command: python3 train.py, files: .}}
"""


def make_wheel(folder, name, version, needs=(), tag="py3-none-any"):
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {need}\n" for need in needs)
    with zipfile.ZipFile(folder / f"{name}-{version}-{tag}.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", "")
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(
            f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def index(tmp_path, monkeypatch):
    folder = tmp_path / "wheels"
    folder.mkdir()
    for version in ("1.0", "1.1", "2.0"):
        make_wheel(folder, "aaa", version, ["bbb", "win ; sys_platform == 'win32'"])
        make_wheel(folder, "bbb", version)
    make_wheel(folder, "torch", "2.0", ["nvidia-cublas==12", "triton==3", "bbb"])
    make_wheel(folder, "nvidia_cublas", "12")
    make_wheel(folder, "triton", "3")
    make_wheel(folder, "native", "1.0", tag="cp312-cp312-manylinux_2_17_x86_64")
    make_wheel(folder, "native", "0.9", tag="cp312-cp312-manylinux_2_17_aarch64")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("DLCLOUD_CONFIG", str(tmp_path / "config.yaml"))
    return folder


class Pinning:
    def __init__(self, folder):
        self.folder, self.events = folder, []
        self.paths = Paths(folder / "home")

    def file(self, requirements, *, types="c7i.large", cloud="aws"):
        recipe = self.folder / "train.yaml"
        recipe.write_text(RECIPE.format(requirements=requirements, types=types, cloud=cloud))
        return pin_packages(read_recipe_file(str(recipe)), paths=self.paths, emit=self.events.append)

    def lines(self, requirements, **keys):
        file = self.file(requirements, **keys)
        assert read_recipe(file.text, "stored").setup.requirements == file.recipe.setup.requirements
        return file.recipe.setup.requirements


@pytest.fixture
def pinning(tmp_path, index):
    assert index.is_dir()
    return Pinning(tmp_path)


def test_a_recipe_whose_packages_are_pinned_stays_as_it_is(pinning):
    assert pinning.lines("[aaa==1.0]") == ["aaa==1.0"]
    assert not pinning.paths.home.exists()


def test_versions_are_chosen_once_and_anew_where_something_else_is_asked_for(pinning, index):
    first = pinning.file("[aaa]")
    make_wheel(index, "aaa", "3.0")
    assert pinning.file("[aaa]").recipe.hash == first.recipe.hash
    assert "aaa==3.0" in pinning.lines("[aaa, bbb]")
    for lock in pinning.paths.locks.iterdir():
        lock.unlink()
    assert "aaa==3.0" in pinning.lines("[aaa]")


def test_constraints_hold_and_are_gone_afterwards(pinning):
    (pinning.folder / "requirements.txt").write_text("-c limits.txt\naaa==1.0\n")
    (pinning.folder / "limits.txt").write_text("bbb<2\nother==1\n")
    assert pinning.lines("requirements.txt")[1:] == ["aaa==1.0", "bbb==1.1"]


def test_constraints_that_pip_is_configured_with_hold(pinning, tmp_path, monkeypatch):
    (tmp_path / "site.txt").write_text("bbb<2\n")
    (tmp_path / "pip.conf").write_text(f"[global]\nconstraint = {tmp_path}/site.txt\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    assert pinning.lines("[aaa==2.0, bbb]")[1:] == ["aaa==2.0", "bbb==1.1"]


def test_options_and_hashes_stay(pinning, index):
    digest = hashlib.sha256((index / "bbb-2.0-py3-none-any.whl").read_bytes()).hexdigest()
    (pinning.folder / "requirements.txt").write_text(f"--pre\nbbb>=1 --hash=sha256:{digest}\n")
    assert pinning.lines("requirements.txt")[1:] == ["--pre", f"bbb==2.0 --hash=sha256:{digest}"]


def test_two_processors_have_a_lock_each(pinning):
    lines = pinning.lines("[native, bbb]", types="[c7i.large, c7g.large]")
    assert lines == [
        "# uv pinned 3 packages for Python 3.12 on aarch64 and x86_64",
        "bbb==2.0",
        'native==0.9; platform_machine == "aarch64"',
        'native==1.0; platform_machine == "x86_64"',
    ]


def test_libraries_of_cuda_are_left_to_pytorch(pinning):
    assert pinning.lines("[torch]")[1:] == ["bbb==2.0", "torch==2.0"]
    assert pinning.lines("[torch, triton]")[1:] == ["bbb==2.0", "torch==2.0", "triton==3"]


def test_versions_that_do_not_fit_are_one_error(pinning):
    with pytest.raises(RecipeError) as caught:
        pinning.lines("[aaa>9]")
    assert caught.value.message.startswith("setup.requirements: uv finds no versions that fit: ")
    assert "\n" not in caught.value.message


def test_without_uv_the_hint_says_how_to_have_it(pinning, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(RecipeError) as caught:
        pinning.lines("[aaa]")
    assert "aaa), and uv, which pins them, is not installed" in caught.value.message
    assert caught.value.hint == "pip install uv; or write name==version"


def test_what_a_project_of_the_users_own_needs_is_pinned_and_it_is_found_by_its_command(pinning):
    project = pinning.folder / "lib"
    (project / "src" / "own").mkdir(parents=True)
    (project / "pyproject.toml").write_text("[project]\nname='own'\nversion='1'\ndependencies=['aaa<2']\n")
    file = pinning.file("['-e ./lib']")
    assert file.recipe.setup.requirements[1:] == ["-e lib", "aaa==1.1", "bbb==2.0"]
    command = with_projects("python3 train.py", file.recipe, pinning.folder)
    assert command == 'export PYTHONPATH="$PWD"/lib/src"${PYTHONPATH:+:$PYTHONPATH}"; python3 train.py'


def test_a_project_outside_of_the_files_is_refused(pinning):
    recipe = read_recipe(
        RECIPE.format(types="c7i.large", cloud="aws", requirements="['-e ../lib']") + "name: a\n", "r.yaml"
    )
    with pytest.raises(RecipeError, match=r"the project \.\./lib is not among the files that are sent"):
        with_projects("python3 train.py", recipe, Path(pinning.folder))
