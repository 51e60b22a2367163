"""Agents of one run on this machine, each with its own folder; and a network that can be cut."""

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
from pathlib import Path

from dlcloud.trainer.instance.processes import end_with_parent
from tests.fakes.training import LIMIT_S, RUN, free_pair, read_records, write_control_file


class Agents:
    """Agents that start their children, as on separate instances.

    Args:
        python: An interpreter that has torch and torchft.
        folder: Where everything is written; the package `trainer` must lie in `folder/trainer`.
        script: What a worker runs: arguments of python.
    """

    def __init__(self, python, folder, script):
        self.python, self.folder, self.script = str(python), Path(folder), list(script)
        self.port, self.agents = free_pair(), {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for name in self.agents:
            self.kill(name)

    def start(self, name, *options):
        command = [self.python, "-m", "trainer.agent", "--run", RUN, "--worker", name]
        command += ["--coordinator", "127.0.0.1", "--port", str(self.port), "--folder", name]
        command += ["--metadata", "http://127.0.0.1:1", *options, "--", "python3", *self.script]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.agents[name] = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=end_with_parent,  # noqa: PLW1509 - a killed test leaves no workers
            )

    def kill(self, name):
        """End an agent and all that it started, as the end of its instance does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.agents[name].pid, signal.SIGKILL)
        self.agents[name].wait()

    def promote(self, name, step):
        """Tell an agent, as the controller does, that its instance coordinates from now on."""
        self.port = free_pair()
        control = {"generation": 1, "coordinator": f"127.0.0.1:{self.port}", "coordinates": True}
        write_control_file(self.folder / name / "control.json", **control, step=step, least=step)

    def wait(self, name):
        return self.agents[name].wait(LIMIT_S)

    def records(self, name):
        with contextlib.suppress(FileNotFoundError):
            return read_records(self.folder / name / "records.jsonl")
        return []

    def steps(self, name):
        return [record for record in self.records(name) if record["record"] == "step"]


class Proxy:
    """Passes connections on to a port of this machine, until the network is cut: then nothing answers.

    Args:
        port: Where to.
    """

    def __init__(self, port):
        self.target, self.port = port, 0
        self._loop = asyncio.new_event_loop()
        self._whole = asyncio.Event()
        self._whole.set()
        self._tasks = set()

    def __enter__(self):
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        ready.wait()
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def cut(self):
        """Let nothing through any more, and say nothing about it, as a network does."""
        self._loop.call_soon_threadsafe(self._whole.clear)

    def mend(self):
        self._loop.call_soon_threadsafe(self._whole.set)

    def _run(self, ready):
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))

    async def _serve(self, reader, writer):
        await self._whole.wait()
        there, back = await asyncio.open_connection("127.0.0.1", self.target)
        await asyncio.gather(self._pass(reader, back), self._pass(there, writer))

    async def _pass(self, reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._whole.wait()
                writer.write(data)
                await writer.drain()
        writer.close()
