"""Build the Python environment of a workload, once per machine: environment.py KEY [VERSION] < requirements.

KEY is a digest of the requirements. If the machine's own Python is older than VERSION, uv installs a newer
one. uv installs the packages where it is on the PATH or where they are many; pip does where uv fails, or has
settings that uv lacks. A complete environment is reused, also one that was copied from another folder; two
builders of one wait for each other; an incomplete one is rebuilt. Progress goes to stderr; the last line of
stdout is JSON: {"python": path of the interpreter, "reused": bool, "seconds": float}.

environment.py --find KEY [VERSION] builds nothing; its JSON is
{"name": of its folder, "system": the C library, "complete": bool}.
"""

import configparser
import fcntl
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import time

UV = "uv==0.13.9"
"""20 MB; for a machine whose own Python is too old, it brings a build of Python by Astral."""
MANY = 8
"""With so many packages, fetching uv takes less time than it saves. Source: 30 packages, November 2026."""
LARGEST_SCRIPT = 1 << 20
EXTRA_INDEX = "--extra-index-url "
AS_UV = {
    "index-url": "--index-url",
    "extra-index-url": "--extra-index-url",
    "find-links": "--find-links",
    "constraint": "--constraint",
    "no-index": "--no-index",
    "cert": "SSL_CERT_FILE",
}
"""By pip's setting, uv's option; in capitals, a variable."""
WITHOUT_MEANING = {
    "cache-dir",
    "config-file",
    "default-timeout",
    "disable-pip-version-check",
    "no-cache-dir",
    "no-input",
    "progress-bar",
    "quiet",
    "retries",
    "root-user-action",
    "timeout",
}
"""Settings of pip that change no package."""
# Without links: behind links of two homes, it is one folder with one path.
CACHE = (
    pathlib.Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser().resolve() / "dlcloud/environments"
)


def main() -> None:
    """Build, reuse or find the environment and print the answer."""
    started = time.monotonic()
    key, minimum = [*(word for word in sys.argv[1:] if word != "--find"), "0"][:2]
    # Another interpreter or processor is another environment.
    version = platform.python_version_tuple()
    own = f"py{version[0]}.{version[1]}" if not is_older(minimum) else f"py{minimum}"
    folder = CACHE / f"{key}-{own}-{platform.machine()}"
    if "--find" in sys.argv:
        complete, system = (folder / "complete").exists(), "-".join(platform.libc_ver())
        print(json.dumps({"name": folder.name, "system": system, "complete": complete}))
        return
    requirements = sys.stdin.read()
    CACHE.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        reused = (folder / "complete").exists()
        if reused:
            relocate(folder)
            (folder / "complete").touch()  # what was not used for longest goes first
        else:
            build(folder, requirements, minimum)
    print_answer(str(folder / "bin" / "python"), reused=reused, started=started)


def is_older(minimum: str) -> bool:
    """True if this Python is older than a version."""
    return sys.version_info[:3] < tuple(int(part) for part in minimum.split("."))


def build(folder: pathlib.Path, requirements: str, minimum: str) -> None:
    """Create the environment and mark it complete."""
    settings = read_pip_settings()
    if "index-url" in settings:  # then pip asks no other index
        requirements = "\n".join(line for line in requirements.split("\n") if EXTRA_INDEX not in line)
    packages = [line for line in requirements.split("\n") if line and line[0] not in "#-"]
    report("installing " + ", ".join(packages)[:200])
    is_for_uv = set(settings) <= set(AS_UV) | WITHOUT_MEANING
    uv = find_uv() if is_for_uv and not is_older(minimum) else ""
    if not (uv and build_by_uv(uv, folder, requirements, settings)):
        build_by_pip(folder, requirements, minimum, settings if is_for_uv and len(packages) >= MANY else None)
    (folder / "complete").write_text(str(folder))


def build_by_uv(uv: str, folder: pathlib.Path, requirements: str, settings: "dict[str, str]") -> bool:
    """Install the packages while the interpreter brings pip, which takes seconds; False if either fails."""
    shutil.rmtree(folder, ignore_errors=True)
    if run(sys.executable, "-m", "venv", "--without-pip", folder).returncode:
        return False
    command = [str(folder / "bin" / "python"), "-m", "ensurepip", "--default-pip"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as bringing_pip:
        is_installed = install_by_uv(uv, folder, requirements, settings)
    return is_installed and bringing_pip.returncode == 0


def build_by_pip(
    folder: pathlib.Path, requirements: str, minimum: str, fetching: "dict[str, str] | None"
) -> None:
    """Create the environment with pip, and install by it, or by uv that it fetches with these settings."""
    shutil.rmtree(folder, ignore_errors=True)
    tool = folder.with_name(folder.name + "-uv")
    create(tool if is_older(minimum) else folder)
    if is_older(minimum):
        install_python(folder, tool, minimum)
    elif fetching is not None:
        uv = fetch_uv(folder)
        if uv and install_by_uv(uv, folder, requirements, fetching):
            return
    path = write_requirements(folder, requirements)
    # Python compiles the modules that are imported; pip would compile all, one after the other.
    result = run(*pip_install(folder), "--no-compile", "-r", path)
    if result.returncode:
        sys.exit("pip failed: " + result.stdout[-2000:])


def write_requirements(folder: pathlib.Path, requirements: str) -> pathlib.Path:
    """Keep the requirements beside what is installed."""
    path = folder / "requirements.txt"
    path.write_text(requirements)
    return path


def read_pip_settings() -> "dict[str, str]":
    """Return pip's settings by name, of its files and its variables."""
    names = ["/etc/xdg/pip/pip.conf", "/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf"]
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    own = os.environ.get("PIP_CONFIG_FILE", os.devnull)
    parser.read([pathlib.Path(name).expanduser() for name in [*names, own]])
    settings = {}
    for section in ("global", "install"):
        if parser.has_section(section):
            settings.update(parser.items(section))
    variables = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    settings.update({name[4:].lower().replace("_", "-"): value for name, value in variables.items()})
    return {name.replace("_", "-"): value for name, value in settings.items() if value}


def find_uv() -> str:
    """Return the path of uv: on the PATH, or fetched for an earlier environment; empty if there is none."""
    kept = CACHE / UV.replace("==", "-") / "bin" / "uv"
    return shutil.which("uv") or (str(kept) if kept.exists() else "")


def fetch_uv(folder: pathlib.Path) -> str:
    """Return the path of uv, fetched by the pip of an environment and kept for later ones; empty if not."""
    tool = CACHE / UV.replace("==", "-")
    options = ["--no-deps", "--no-compile", "--retries", 1, "--target", tool]
    return str(tool / "bin" / "uv") if run(*pip_install(folder), *options, UV).returncode == 0 else ""


def install_by_uv(uv: str, folder: pathlib.Path, requirements: str, settings: "dict[str, str]") -> bool:
    """Install packages from where pip would; False if that fails for any reason."""
    options = ["--index-strategy", "unsafe-best-match", "--no-config", "--no-progress", "-q"]
    environment = dict(os.environ)
    for name, value in settings.items():
        option = AS_UV.get(name, "")
        if option == "--no-index":
            options += [option] * (value.lower() in {"1", "true", "yes", "on"})
        elif option.startswith("--"):
            options += [word for place in value.split() if is_there(place) for word in (option, place)]
        elif option:
            environment[option] = value
    path = write_requirements(folder, requirements)
    command = [uv, "pip", "install", "--python", str(folder / "bin" / "python"), *options, "-r", str(path)]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        report("uv failed, pip takes over: " + done.stdout[-500:])
    return done.returncode == 0


def is_there(place: str) -> bool:
    """True unless a place of packages is a path of this machine that does not exist: pip passes over it."""
    path = place[len("file://") :] if place.startswith("file://") else place  # noqa: FURB188  is of Python 3.9
    return "://" in path or pathlib.Path(path).exists()


def pip_install(folder: pathlib.Path) -> "list[object]":
    """Return the command that installs into an environment."""
    return [folder / "bin" / "python", "-m", "pip", "install", "--no-input", "-q"]


def relocate(folder: pathlib.Path) -> None:
    """Rewrite the paths in an environment that was copied from another folder: of another user, say.

    The paths are in the first lines of its programs, in pyvenv.cfg, and in the links to a Python of uv's.
    Bytecode goes by the times of its sources, which a copy keeps.
    """
    origin = (folder / "complete").read_text()
    if origin in {"", str(folder)}:
        return
    for path in [folder / "pyvenv.cfg", *(folder / "bin").iterdir()]:
        if path.is_symlink():
            target = os.readlink(path)  # noqa: PTH115  pathlib's is of Python 3.9
            if target.startswith(origin):
                path.unlink()
                path.symlink_to(target.replace(origin, str(folder), 1))
        elif path.is_file() and path.stat().st_size < LARGEST_SCRIPT and origin.encode() in path.read_bytes():
            path.write_bytes(path.read_bytes().replace(origin.encode(), str(folder).encode()))
    (folder / "complete").write_text(str(folder))


def install_python(folder: pathlib.Path, tool: pathlib.Path, minimum: str) -> None:
    """Create the environment of a newer Python, which uv finds on the machine or downloads beside it."""
    report("this image has Python " + platform.python_version() + ": uv installs " + minimum + " or newer")
    result = run(*pip_install(tool), UV)
    if result.returncode:
        sys.exit("pip failed: " + result.stdout[-2000:])
    os.environ["UV_PYTHON_INSTALL_DIR"] = str(folder.with_name(folder.name + "-python"))
    result = run(tool / "bin" / "uv", "venv", "--seed", "--no-config", "--python", ">=" + minimum, folder)
    if result.returncode:
        sys.exit("uv found no Python " + minimum + " or newer: " + result.stdout[-2000:])
    shutil.rmtree(tool, ignore_errors=True)


def create(folder: pathlib.Path) -> None:
    """Create an environment of this Python; install the venv module if it is missing."""
    if create_venv(folder).returncode:
        report("this image has no venv module yet: installing python3-venv")
        output = run("sh", pathlib.Path(__file__).with_name("apt.sh")).stdout
        output += run("sudo", "apt-get", "install", "-qy", "python3-venv").stdout
        shutil.rmtree(folder, ignore_errors=True)
        result = create_venv(folder)
        if result.returncode:
            sys.exit("python3 -m venv failed: " + (output + result.stdout)[-2000:])


def create_venv(folder: pathlib.Path) -> "subprocess.CompletedProcess[str]":
    """Run python3 -m venv."""
    return run(sys.executable, "-m", "venv", folder)


def run(*command: object) -> "subprocess.CompletedProcess[str]":
    """Run a command and capture its output, for the message if it fails."""
    return subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def report(message: str) -> None:
    """Print progress."""
    print(message, file=sys.stderr, flush=True)


def print_answer(python: str, *, reused: bool, started: float) -> None:
    """Print the answer."""
    print(json.dumps({"python": python, "reused": reused, "seconds": round(time.monotonic() - started, 3)}))


main()
