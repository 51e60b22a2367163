"""What an agent starts: the workers of an instance, and the lighthouse of the coordinator."""

import os
import sys
from pathlib import Path

from . import torchrun
from .agent_options import Options
from .children import Child, with_package
from .network import interface_of
from .records import Event, Records
from .settings import Settings

ROOT = Path(__file__).resolve().parents[(__package__ or "trainer").count(".") + 1]
PACKAGE = __package__ or "trainer"


def workers(options: Options, records: Records) -> list[Child]:
    """Return a worker per GPU, or the one worker, or the torchrun that starts them; not yet started."""
    if options.engine == "torchrun":
        return [_torchrun(options, records)] if options.workers else []
    return [_worker(options, records, number) for number in range(options.workers)]


def lighthouse(options: Options, records: Records) -> Child:
    """Return the lighthouse, or where torchrun's agents meet; not yet started."""
    command = _lighthouse(options) if options.engine == "elastic" else torchrun.store_command(options)
    return Child(
        name="lighthouse",
        command=command,
        environment=_environment(options),
        records=records,
        restarts=options.restarts,
        started=Event.LIGHTHOUSE_STARTED,
        ended=Event.LIGHTHOUSE_ENDED,
    )


def _lighthouse(options: Options) -> list[str]:
    command = [sys.executable, "-m", f"{PACKAGE}.lighthouse", "--run", options.run, "--host", options.host]
    command += ["--port", str(options.port), "--ledger-port", str(options.port + 1)]
    command += ["--ledger", str(options.folder / "ledger.json"), "--minimum", str(options.minimum)]
    command += ["--join-ms", str(options.join_ms), "--heartbeat-ms", str(options.heartbeat_ms)]
    return [*command, "--step", str(options.step)]


def _torchrun(options: Options, records: Records) -> Child:
    return Child(
        name=options.worker,
        command=torchrun.command(options),
        environment={
            **_environment(options), **torchrun.ENVIRONMENT, **_settings(options, 0).to_environment(),
        },
        records=records,
        restarts=options.restarts,
    )  # fmt: skip


def _worker(options: Options, records: Records, number: int) -> Child:
    settings = _settings(options, number)
    return Child(
        name=settings.worker,
        command=options.command,
        environment={**_environment(options), **settings.to_environment()},
        records=records,
        restarts=options.restarts,
    )


def _settings(options: Options, number: int) -> Settings:
    name = options.worker if options.workers == 1 else f"{options.worker}.{number}"
    return Settings(
        run=options.run,
        worker=name,
        host=options.host,
        lighthouse=f"http://{options.coordinator}:{options.port}",
        ledger=options.ledger_address,
        records=options.folder.absolute() / "records.jsonl",
        # One worker of an instance is enough to keep what all of them have.
        checkpoints=options.folder.absolute() / "checkpoints" if number == 0 else None,
        checkpoint_s=options.checkpoint_s,
        durable=options.lighthouse,
        control=options.folder.absolute() / "control.json",
        hash_every=options.hash_every,
        gpu=number,
    )


def _environment(options: Options) -> dict[str, str]:
    environment = with_package(os.environ, str(ROOT), str(Path(sys.executable).parent))
    # torchft tells of every step otherwise.
    environment.setdefault("RUST_LOG", "error")
    if interface := interface_of(options.host):
        # A host's name may resolve to an address that peers do not reach.
        environment.setdefault("GLOO_SOCKET_IFNAME", interface)
        environment.setdefault("NCCL_SOCKET_IFNAME", interface)
    return environment
