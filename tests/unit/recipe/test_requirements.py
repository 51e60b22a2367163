"""`setup.requirements`: packages as people list them, in a recipe or in a file next to it."""

import codecs

import pytest

from dlcloud.app.recipe_files import read_recipe_file
from dlcloud.model.errors import RecipeError
from dlcloud.recipe.recipe import read_recipe
from dlcloud.recipe.requirements import include_requirements, is_pinned, name_of

RECIPE = """\
name: good
setup:
  requirements: {value} # as everywhere
instances:
  types: [c7i.xlarge]
workload:
  command: python3 train.py
"""
FILE = """\
# the packages
numpy==2.4.6
torch == 2.13.0  # CPU

scipy[all]==1.16.3 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
"""
PINS = ["numpy==2.4.6", "torch==2.13.0", "scipy[all]==1.16.3 --hash=sha256:aa --hash=sha256:bb"]


def lines_of(files, name="requirements.txt"):
    """Return the lines that a recipe has which names a file of these."""
    contents = {file: text if isinstance(text, bytes) else text.encode() for file, text in files.items()}
    text = include_requirements(RECIPE.format(value=name), "r.yaml", contents.get)
    return read_recipe(text, "r.yaml").setup.requirements


def faults_of(files, name="requirements.txt"):
    with pytest.raises(RecipeError) as caught:
        lines_of(files, name)
    return caught.value.message


@pytest.mark.parametrize("value", ["requirements.txt", "[requirements.txt]", '"requirements.txt"'])
def test_the_packages_of_a_file_take_the_place_of_its_name(value, tmp_path, monkeypatch):
    monkeypatch.setenv("DLCLOUD_CONFIG", str(tmp_path / "config.yaml"))
    (tmp_path / "requirements.txt").write_text(FILE)
    recipe = tmp_path / "r.yaml"
    recipe.write_text(RECIPE.format(value=value))
    file = read_recipe_file(str(recipe))
    assert file.recipe.setup.requirements == PINS
    assert read_recipe(file.text, "stored").setup.requirements == PINS


@pytest.mark.parametrize(
    "value", ["requirements.txt", "\n    - requirements.txt", "|\n    requirements.txt\n "]
)
def test_later_lines_keep_their_numbers(value):
    text = RECIPE.format(value=value)
    included = include_requirements(text, "r.yaml", lambda _: FILE.encode())
    assert included.splitlines().index("instances:") == text.splitlines().index("instances:")
    assert read_recipe(included, "r.yaml").setup.requirements == PINS


def test_packages_are_read_as_pip_reads_them():
    text = (
        "--extra-index-url https://download.pytorch.org/whl/cpu\n-i=https://pypi.example/simple\n"
        'six == 1.16.0\nidna[all] == 3.7\nrequests[socks]>=2.0\ncolorama==0.4.6 ; sys_platform == "win32"\n'
        "tomli==2.0.1;python_version<'3.0'\nurllib3 <3,>=2 # why\n--pre\n"
        "git+https://github.com/benjaminp/six.git@1.16.0#egg=six\n"
        "-e git+https://github.com/benjaminp/six.git@1.16.0#egg=six\n"
        "six @ git+https://github.com/benjaminp/six.git@1.16.0\nhttps://example.org/x-1.0-py3-none-any.whl\n"
    )
    assert lines_of({"requirements.txt": text}) == [
        "--extra-index-url https://download.pytorch.org/whl/cpu",
        "--index-url https://pypi.example/simple",
        "six==1.16.0",
        "idna[all]==3.7",
        "requests[socks]>=2.0",
        'colorama==0.4.6; sys_platform == "win32"',
        'tomli==2.0.1; python_version < "3.0"',
        "urllib3<3,>=2",
        "--pre",
        "git+https://github.com/benjaminp/six.git@1.16.0#egg=six",
        "six @ git+https://github.com/benjaminp/six.git@1.16.0",
        "https://example.org/x-1.0-py3-none-any.whl",
    ]


def test_other_files_are_included_relative_to_the_one_that_names_them():
    files = {
        "requirements.txt": "-r more/base.txt\n--constraint limits.txt\nsix==1.16.0\n-e ./lib\n",
        "more/base.txt": "-rdeep.txt\nidna==3.7\n./own\n",
        "more/deep.txt": "tomli==2.0.1\n",
        "limits.txt": "certifi<2030\n",
    }
    expected = ["tomli==2.0.1", "idna==3.7", "-e more/own", "-c certifi<2030", "six==1.16.0", "-e lib"]
    assert lines_of(files) == expected


@pytest.mark.parametrize(
    ("mark", "encoding"),
    [
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF32_LE, "utf-32-le"),
        (b"", "utf-8"),
    ],
)
def test_a_file_is_decoded_by_its_byte_order_mark(mark, encoding):
    content = mark + "# Größe\r\nsix==1.16.0\r\n".encode(encoding)
    assert lines_of({"requirements.txt": content}) == ["six==1.16.0"]


def test_a_list_in_the_recipe_takes_what_a_file_takes():
    value = "[six >= 1, requirements.txt, '-e .']"
    text = include_requirements(RECIPE.format(value=value), "r.yaml", {"requirements.txt": b"idna==3.7"}.get)
    assert read_recipe(text, "r.yaml").setup.requirements == ["six>=1", "idna==3.7", "-e ."]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("numpy==1\n\nnot a package\n", "requirements.txt:3: 'not a package' is no package"),
        ("-r other.txt", "there is no file other.txt (named by requirements.txt:1"),
        ("-r requirements.txt", "requirements.txt includes itself"),
        (
            "a @ file:///croot/a_1/work",
            "requirements.txt:1: a @ file:///croot/a_1/work: a file of this machine",
        ),
        ("./wheels/a-1-py3-none-any.whl", "a file of this machine, which no instance has"),
        ("--find-links wheels", "--find-links wheels: a folder of this machine, which no instance has"),
        ("-e /home/me/lib", "name the project's folder relative to the recipe"),
        ("--fancy", "requirements.txt:1: --fancy: this option is not understood"),
        ("--index-url https://me:s3cr3t@pypi.example/simple", "holds or names a password"),
        ("--index-url https://me:${TOKEN}@pypi.example/simple", "holds or names a password"),
        (None, "r.yaml:3: setup.requirements: there is no file requirements.txt"),
    ],
)
def test_faults_of_a_file_have_its_lines(content, fault):
    message = faults_of({} if content is None else {"requirements.txt": content})
    assert fault in message
    assert "s3cr3t" not in message


def test_every_fault_is_reported():
    assert len(faults_of({"requirements.txt": "a b\nsix==1\n--fancy\n"}).splitlines()) == 2


PROJECT = """\
[project]
name = "own"
dependencies = ["torch>=2", "six", "lib[extra]"]
[tool.uv.sources]
lib = {git = "https://example.org/lib"}
"""
LOCK = """\
[[package]]
name = "own"
source = {virtual = "."}
[[package]]
name = "torch"
version = "2.13.0+cpu"
source = {registry = "https://download.pytorch.org/whl/cpu"}
[[package]]
name = "six"
version = "1.16.0"
source = {registry = "https://pypi.org/simple"}
[[package]]
name = "numpy"
version = "1.26.4"
source = {registry = "https://pypi.org/simple"}
[[package]]
name = "numpy"
version = "2.4.6"
source = {registry = "https://pypi.org/simple"}
[[package]]
name = "lib"
version = "1.0"
source = {git = "https://example.org/lib?rev=main#0123456789012345678901234567890123456789"}
"""


@pytest.mark.parametrize("name", ["pyproject.toml", "uv.lock"])
def test_a_project_is_read_with_the_versions_of_its_lock(name):
    assert lines_of({"pyproject.toml": PROJECT, "uv.lock": LOCK}, name) == [
        "--extra-index-url https://download.pytorch.org/whl/cpu",
        "-c torch==2.13.0",
        "-c six==1.16.0",
        "torch>=2",
        "six",
        "lib[extra] @ git+https://example.org/lib@0123456789012345678901234567890123456789",
    ]


def test_a_project_that_is_a_package_is_found_among_the_files():
    text = PROJECT.partition("[tool")[0] + "[build-system]\nrequires = ['hatchling']\n"
    assert lines_of({"sub/pyproject.toml": text}, "sub/pyproject.toml") == [
        "torch>=2",
        "six",
        "lib[extra]",
        "-e sub",
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (PROJECT, "tool.uv.sources needs a uv.lock; uv lock writes it"),
        ("[tool.poetry.dependencies]\nsix = '*'\n", "poetry export -o requirements.txt"),
        ("[project", "pyproject.toml: "),
    ],
)
def test_faults_of_a_project(text, fault):
    assert fault in faults_of({"pyproject.toml": text}, "pyproject.toml")


def test_an_environment_of_conda_is_read_where_pypi_has_the_same():
    text = (
        "name: train\nchannels: [conda-forge]\ndependencies:\n  - python=3.11\n  - numpy=1.26\n"
        "  - conda-forge::pandas=2.2.1=py311h320fe9a_0\n  - pytorch>=2.1,<3\n  - scipy==1.13.0\n  - tqdm\n"
        "  - pip\n  - pip:\n    - six==1.16.0\n    - -r more.txt\n"
    )
    assert lines_of({"environment.yml": text, "more.txt": "idna==3.7"}, "environment.yml") == [
        "# environment.yml:4: python=3.11 is left out: an instance's own Python runs the command",
        "numpy==1.26.*",
        "pandas==2.2.1",
        "torch<3,>=2.1",
        "scipy==1.13.0",
        "tqdm",
        "six==1.16.0",
        "idna==3.7",
    ]


def test_libraries_of_conda_are_left_out_and_named():
    text = (
        "dependencies: [_libgcc_mutex=0.1=main, cudatoolkit=11.8, nvidia::cuda-nvcc, pytorch-mutex, nccl,\n"
        "  ld_impl_linux-64, libgcc-ng=13.2.0=h807b86f_2, python_abi, hydra-core, scikit-image, librosa]"
    )
    left_out = "_libgcc_mutex, cudatoolkit, cuda-nvcc, pytorch-mutex, nccl, ld_impl_linux-64, libgcc-ng"
    assert lines_of({"environment.yml": text}, "environment.yml") == [
        "hydra-core",
        "scikit-image",
        "librosa",
        f"# environment.yml: {left_out}: left out, as PyPI's packages bring what they need",
    ]
    assert "mutex is a package of conda" in faults_of(
        {"environment.yml": "dependencies: [mutex]"}, "environment.yml"
    )


def test_a_package_of_conda_that_may_be_another_on_pypi_is_refused():
    message = faults_of({"environment.yml": "dependencies: [ffmpeg]"}, "environment.yml")
    assert "environment.yml:1: ffmpeg is a package of conda, and may be another one on PyPI" in message
    assert "sudo apt-get install -y ffmpeg" in message


@pytest.mark.parametrize(
    ("line", "pinned", "name"),
    [
        ("six==1.16.0", True, "six"),
        ('six==1.16.0; python_version > "3" --hash=sha256:aa', True, "six"),
        ("six==1.*", False, "six"),
        ("six", False, "six"),
        ("six>=1,<2", False, "six"),
        ("six===1", True, "six"),
        ("six @ git+https://example.org/six@main", False, "six"),
        (f"six @ git+https://example.org/six@{'0' * 40}", True, "six"),
        (f"git+ssh://git@example.org/six@{'0' * 40}#egg=six", True, "six"),
        ("https://example.org/x-1.0-py3-none-any.whl", True, ""),
        ("-e .", True, ""),
        ("-c six<2", False, ""),
        ("--pre", True, ""),
        ("# note", True, ""),
    ],
)
def test_what_is_pinned(line, pinned, name):
    assert (is_pinned(line), name_of(line)) == (pinned, name)
