"""Run programs of this instance in containers, by podman or docker: python3 -I -S container.py VERB IMAGE ...

pull IMAGE                        pull it, logged in to ECR by the instance's role where it lies there
run IMAGE NAME NAMES WORD ...     become the words in a container NAME, in this folder, as this user
stop NAME                         end a container, if it runs

The container has this instance's network, its GPUs, and under the same paths the login's home and, where that
holds the data, the instance store; the variables NAMES (with commas, `-` for none) come from this process:
their values are on no command line.
"""

import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys

ECR = re.compile(r"(\d{12}\.dkr\.ecr(?:-fips)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?)/")
METADATA = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
ROOT = "DLCLOUD_ROOT"
"""Both are set on the local EC2 only: the address of the metadata service, and the instance's folder."""
CHECKPOINTS = ("DLCLOUD_CHECKPOINTS", "DLCLOUD_RESUME", "DLCLOUD_RESUME_RUN")
"""What `job.py` tells a program whose checkpoints are kept."""
LOCAL = "localhost/"
"""How podman calls what was built or imported here: no registry has it."""
HIDDEN = "; images of your machine are on instances of the local EC2 only with DLCLOUD_LOCAL_ISOLATION=none"
MISSING = "there is neither podman nor docker; setup.commands: sudo apt-get install -qy podman"


def engine(names: "tuple[str, ...]" = ()) -> "list[str]":
    """Return the words that call podman, or docker, with sudo where this user may not call it."""
    if shutil.which("podman"):
        return ["podman"]
    if not shutil.which("docker"):
        sys.exit(MISSING)
    if succeeds(["docker", "version"]) or not shutil.which("sudo"):
        return ["docker"]
    return ["sudo", "-n", *([f"--preserve-env={','.join(names)}"] if names else []), "docker"]


def pull(image: str) -> None:
    """Pull an image; an image that is here, and cannot be pulled, will do."""
    words = engine()
    if image.startswith(LOCAL) and succeeds([*words, "image", "inspect", image]):
        return
    registry = ECR.match(image)
    if registry:
        log_in(words, *registry.groups())
    try:
        done = subprocess.run([*words, "pull", "-q", image], check=False, stdin=subprocess.DEVNULL)
    finally:
        if registry:
            succeeds([*words, "logout", registry[1]])
    if done.returncode and not succeeds([*words, "image", "inspect", image]):
        hint = HIDDEN if image.startswith(LOCAL) and ROOT in os.environ else ""
        sys.exit(f"the image {image} could not be pulled{hint}")


def succeeds(words: "list[str]") -> bool:
    """Run a command without its output; True if it ends with status 0."""
    null = subprocess.DEVNULL
    return subprocess.run(words, check=False, stdin=null, stdout=null, stderr=null).returncode == 0


def log_in(words: "list[str]", registry: str, region: str) -> None:
    """Log in to a registry of ECR; the password goes from program to program."""
    if not shutil.which("aws"):
        if shutil.which("docker-credential-ecr-login"):
            return  # the image's configuration names it
        sys.exit("ECR needs the AWS CLI on the instance; setup.commands can install it")
    token = ["aws", "ecr", "get-login-password", "--region", region]
    password = subprocess.run(token, check=False, stdout=subprocess.PIPE)
    if password.returncode:
        sys.exit(f"the role of this instance may not log in to {registry} (ecr:GetAuthorizationToken)")
    login = [*words, "login", "--username", "AWS", "--password-stdin", registry]
    if subprocess.run(login, check=False, input=password.stdout, stdout=subprocess.DEVNULL).returncode:
        sys.exit(f"{registry} refused the login")


def run(image: str, name: str, names: str, *words: str) -> None:
    """Become a program in a container."""
    passed = tuple(filter(None, names.strip("-").split(",")))
    passed += tuple(variable for variable in (METADATA, *CHECKPOINTS) if variable in os.environ)
    command = engine(passed)
    home = str(pathlib.Path.home())
    # What is built in one image does not run in another.
    cache = f"{home}/.cache/dlcloud-images/{hashlib.sha256(image.encode()).hexdigest()[:16]}"
    options = ["--rm", "--interactive", "--name", name, "--network", "host", "--ipc", "host"]
    options += ["--volume", f"{home}:{home}", "--workdir", str(pathlib.Path.cwd())]
    options += ["--env", f"HOME={home}", "--env", f"XDG_CACHE_HOME={cache}"]
    options += [word for variable in passed for word in ("--env", variable)]
    options += as_user(command) + gpus(command) + of_instance(home)
    program = [*command, "run", *options, "--entrypoint", words[0], image, *words[1:]]
    os.execvp(program[0], program)  # noqa: S606  there is no shell to need


def as_user(command: "list[str]") -> "list[str]":
    """Return the options by which files in the home belong to this user, inside and outside."""
    if command != ["podman"]:
        return ["--user", f"{os.getuid()}:{os.getgid()}"]
    return ["--userns", "keep-id"] if os.getuid() else []


def gpus(command: "list[str]") -> "list[str]":
    """Return the options that pass NVIDIA's GPUs through: by CDI to podman."""
    if not shutil.which("nvidia-smi"):
        return []
    return ["--device", "nvidia.com/gpu=all"] if command == ["podman"] else ["--gpus", "all"]


def of_instance(home: str) -> "list[str]":
    """Return the options for what only some have: data outside the home; a root, on the local EC2."""
    data, root = pathlib.Path(home, "dlcloud", "data"), os.environ.get(ROOT, "")
    folder = str(data.resolve())
    options = ["--volume", f"{folder}:{folder}"] if data.is_symlink() else []
    return [*options, *(["--label", f"{ROOT}={root}"] if root else [])]


def stop(name: str) -> None:
    """End a container; the end of its client does not."""
    succeeds([*engine(), "rm", "--force", name])


def main() -> None:
    """Run the verb of the command line."""
    verb, *rest = sys.argv[1:]
    {"pull": pull, "run": run, "stop": stop}[verb](*rest)


main()
