"""Run the programs of SSH sessions: commands, shells and SFTP, on pipes or on a terminal."""

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import struct
import termios
from collections.abc import AsyncIterator, Mapping

import asyncssh

from dlcloud.local.instance.container import Container
from dlcloud.local.instance.processes import shell_path

_CHUNK = 65536
# Makes the terminal on its standard input the controlling one, then becomes the given program.
_TAKE_TERMINAL = "import os, sys; os.login_tty(0); os.execv(sys.argv[1], sys.argv[1:])"

log = logging.getLogger(__name__)


async def run_session(
    process: "asyncssh.SSHServerProcess[bytes]",
    *,
    env: Mapping[str, str],
    container: Container,
    interpreter: str,
) -> None:
    """Run a session's command or shell to its end and send its exit status.

    The process outlives a dropped connection, as under sshd; it is never signalled by one.
    """
    shell = shell_path()
    argv = [shell, "-c", process.command] if process.command is not None else [shell, "-l"]
    if process.subsystem is not None:
        argv = [interpreter, "-I", "-S", str(container.root / "lib/sftp_server.py")]
    try:
        if process.term_type is None:
            status = await _with_pipes(process, argv, env=env, container=container)
        else:
            terminal_env = {**env, "TERM": process.term_type}
            argv = [interpreter, "-I", "-S", "-c", _TAKE_TERMINAL, *argv]
            status = await _with_terminal(process, argv, env=terminal_env, container=container)
    except OSError as error:
        log.warning("a session could not be started: %s", error)
        status = 255
    # The client may be gone.
    with contextlib.suppress(OSError, asyncssh.Error):
        if status >= 0:
            process.exit(status)
        else:
            process.exit_with_signal(signal.Signals(-status).name.removeprefix("SIG"))


async def _with_pipes(
    process: "asyncssh.SSHServerProcess[bytes]",
    argv: list[str],
    *,
    env: Mapping[str, str],
    container: Container,
) -> int:
    """Run with three pipes; the session ends when the process has ended and its output is closed."""
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    try:
        child = await container.spawn(
            argv, env=env, stdin=asyncio.subprocess.PIPE, stdout=out_write, stderr=err_write
        )
    except OSError:
        os.close(out_read)
        os.close(err_read)
        raise
    finally:
        os.close(out_write)
        os.close(err_write)
    feeding = asyncio.create_task(_feed(process, child))
    try:
        await asyncio.gather(_drain(out_read, process.stdout), _drain(err_read, process.stderr))
        return await child.wait()
    finally:
        feeding.cancel()


async def _feed(process: "asyncssh.SSHServerProcess[bytes]", child: asyncio.subprocess.Process) -> None:
    """Copy the client's input to the process; the end of either closes the process's standard input."""
    if child.stdin is None:
        return
    try:
        async for chunk in _read_input(process):
            child.stdin.write(chunk)
            await child.stdin.drain()
    except OSError:
        log.debug("a process closed its standard input")
    finally:
        child.stdin.close()


async def _read_input(
    process: "asyncssh.SSHServerProcess[bytes]", terminal: int | None = None
) -> AsyncIterator[bytes]:
    """Yield the client's input until its end; breaks and signals are ignored, as sshd long did."""
    while True:
        try:
            chunk = await process.stdin.read(_CHUNK)
        except (asyncssh.BreakReceived, asyncssh.SignalReceived):
            continue
        except asyncssh.TerminalSizeChanged as change:
            if terminal is not None:
                _resize(terminal, (change.width, change.height, change.pixwidth, change.pixheight))
            continue
        except (asyncssh.Error, OSError):
            return
        if not chunk:
            return
        yield chunk


async def _drain(descriptor: int, writer: "asyncssh.SSHWriter[bytes]") -> None:
    """Copy a process's output to the client until the process closes the pipe or the client is gone."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_CHUNK)
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0)
    )
    try:
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
    except (OSError, asyncssh.Error):
        log.debug("the client left before the output ended")
    finally:
        transport.close()


async def _with_terminal(
    process: "asyncssh.SSHServerProcess[bytes]",
    argv: list[str],
    *,
    env: Mapping[str, str],
    container: Container,
) -> int:
    """Run on a terminal of its own; hanging up sends the usual SIGHUP."""
    master, slave = container.open_terminal()
    try:
        _resize(master, process.term_size)
        child = await container.spawn(
            argv, env=env, stdin=slave, stdout=slave, stderr=slave, has_terminal=True
        )
    except OSError:
        os.close(master)
        raise
    finally:
        os.close(slave)
    typing = asyncio.create_task(_type(process, master))
    showing = asyncio.create_task(_drain(os.dup(master), process.stdout))
    leaving = asyncio.create_task(process.wait_closed())
    tasks = (typing, showing, leaving)
    try:
        await asyncio.wait([showing, leaving], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        os.close(master)
    return await child.wait()


async def _type(process: "asyncssh.SSHServerProcess[bytes]", master: int) -> None:
    os.set_blocking(master, False)
    async for chunk in _read_input(process, master):
        await _write_all(master, chunk)


async def _write_all(descriptor: int, chunk: bytes) -> None:
    """Write to a terminal, which takes little at a time; its other end may be closed already."""
    while chunk:
        try:
            chunk = chunk[os.write(descriptor, chunk) :]
        except BlockingIOError:
            await _await_room(descriptor)
        except OSError:
            return


async def _await_room(descriptor: int) -> None:
    loop, room = asyncio.get_running_loop(), asyncio.Event()
    loop.add_writer(descriptor, room.set)
    try:
        await room.wait()
    finally:
        loop.remove_writer(descriptor)


def _resize(master: int, size: tuple[int, int, int, int]) -> None:
    width, height, pixel_width, pixel_height = size
    with contextlib.suppress(OSError):
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, pixel_width, pixel_height))
