"""Programs of a run in a container of the recipe's image: the commands that do it on the instance."""

import shlex

from dlcloud.model.clock import Clock
from dlcloud.model.events import Emit, stage
from dlcloud.model.remote import Connection
from dlcloud.recipe.job_environment import NAMES_VARIABLE, JobEnvironment
from dlcloud.resources.texts import template

PROGRAM = "dlcloud/container.py"
RUN = f'python3 -I -S "$HOME/{PROGRAM}"'
NO_NAMES = "-"


def pull_image(connection: Connection, image: str, *, clock: Clock, emit: Emit) -> None:
    """Pull the image on an instance.

    Raises:
        RemoteCommandError: It has no podman or docker, or may not pull it; the message says which.
    """
    connection.send_bytes(template("container.py").encode(), PROGRAM)
    with stage(emit, clock, f"pulling {image}", instance_id=connection.endpoint.instance_id):
        connection.check(f"{RUN} pull {shlex.quote(image)}")


def in_container(command: str, image: str, *, name: str, environment: JobEnvironment | None = None) -> str:
    """Return the command that runs a command, one program with its arguments, in a container `name`."""
    names = [] if environment is None else [*environment.variables, *environment.secrets]
    names += [NAMES_VARIABLE] if environment is not None and environment.secrets else []
    words = shlex.join(["run", image, name, ",".join(names) or NO_NAMES])
    return f"{RUN} {words} {command}"


def send_command(
    connection: Connection, folder: str, command: str, *, image: str, environment: JobEnvironment
) -> None:
    """Send the command of a run to its folder; with an image it runs in a container, which a stop ends."""
    for name, text in command_files(folder, command, image=image, environment=environment).items():
        connection.send_bytes(text.encode(), f"{folder}/{name}")


def command_files(folder: str, command: str, *, image: str, environment: JobEnvironment) -> dict[str, str]:
    """Return the files of a run's folder that start its command; the last one is `command`."""
    if not image:
        return {"command": command}
    name = "dlcloud-" + folder.rpartition("/")[2]
    outer = in_container("sh ../program", image, name=name, environment=environment)
    return {
        "program": command,
        "stop": f"exec {RUN} stop {shlex.quote(name)}\n",
        "command": f"exec {outer}\n",
    }
