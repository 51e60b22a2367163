"""One SSH session as a real process: a command with pipes, or a shell with a terminal."""

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import struct
import termios
from collections.abc import Mapping
from pathlib import Path

import asyncssh

from dlcloud.local.processes import UMASK, shell_path

_CHUNK = 65536
# Makes the terminal on its standard input the controlling one, then becomes the program it is given.
_TAKE_TERMINAL = "import os, sys; os.login_tty(0); os.execv(sys.argv[1], sys.argv[1:])"

log = logging.getLogger(__name__)


async def run_session(
    process: "asyncssh.SSHServerProcess[bytes]", *, env: Mapping[str, str], home: Path, interpreter: str
) -> None:
    """Run what the client asked for to its end and tell how it ended.

    The process outlives a dropped connection, as under sshd; it is never signalled by one.
    """
    shell = shell_path()
    argv = [shell, "-c", process.command] if process.command is not None else [shell, "-i"]
    try:
        if process.term_type is None:
            status = await _with_pipes(process, argv, env=env, home=home)
        else:
            terminal_env = {**env, "TERM": process.term_type}
            argv = [interpreter, "-I", "-S", "-c", _TAKE_TERMINAL, *argv]
            status = await _with_terminal(process, argv, env=terminal_env, home=home)
    except OSError as error:
        log.warning("a session could not be started: %s", error)
        status = 255
    _tell_end(process, status)


def _tell_end(process: "asyncssh.SSHServerProcess[bytes]", status: int) -> None:
    """Send the exit status; the client may be gone."""
    with contextlib.suppress(OSError, asyncssh.Error):
        if status >= 0:
            process.exit(status)
        else:
            process.exit_with_signal(signal.Signals(-status).name.removeprefix("SIG"))


async def _with_pipes(
    process: "asyncssh.SSHServerProcess[bytes]", argv: list[str], *, env: Mapping[str, str], home: Path
) -> int:
    """Run with three pipes; the session ends when the process has ended and its output is closed."""
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    try:
        child = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=out_write,
            stderr=err_write,
            env=env,
            cwd=home,
            start_new_session=True,
            umask=UMASK,
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
    """Pass on what the client sends; its end, or the client's, closes the process's standard input."""
    if child.stdin is None:
        return
    try:
        while (chunk := await _read_client(process)) != b"":
            if chunk is not None:
                child.stdin.write(chunk)
                await child.stdin.drain()
    except OSError:
        log.debug("a process closed its standard input")
    finally:
        child.stdin.close()


async def _read_client(process: "asyncssh.SSHServerProcess[bytes]") -> bytes | None:
    """Return what came, b"" at the end, None for an event; signals are ignored, as sshd long did."""
    try:
        return await process.stdin.read(_CHUNK)
    except (asyncssh.BreakReceived, asyncssh.SignalReceived):
        return None
    except asyncssh.TerminalSizeChanged as change:
        log.debug("the client's terminal is now %d x %d", change.width, change.height)
        return None
    except (asyncssh.Error, OSError):
        return b""


async def _drain(descriptor: int, writer: "asyncssh.SSHWriter[bytes]") -> None:
    """Pass on what a process writes until it closes the pipe, or the client is gone."""
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
    process: "asyncssh.SSHServerProcess[bytes]", argv: list[str], *, env: Mapping[str, str], home: Path
) -> int:
    """Run on a terminal of its own; hanging up sends the usual SIGHUP."""
    master, slave = os.openpty()
    try:
        _resize(master, process.term_size)
        child = await asyncio.create_subprocess_exec(
            *argv, stdin=slave, stdout=slave, stderr=slave, env=env, cwd=home, umask=UMASK
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
    """Type what the client sends, until it sends no more."""
    while True:
        try:
            chunk = await process.stdin.read(_CHUNK)
        except (asyncssh.BreakReceived, asyncssh.SignalReceived):
            continue
        except asyncssh.TerminalSizeChanged as change:
            _resize(master, (change.width, change.height, change.pixwidth, change.pixheight))
            continue
        except (asyncssh.Error, OSError):
            return
        if not chunk:
            return
        await asyncio.to_thread(_write_all, master, chunk)


def _write_all(descriptor: int, chunk: bytes) -> None:
    """Write to a terminal, which takes little at a time; it may be closed already."""
    with contextlib.suppress(OSError):
        while chunk:
            chunk = chunk[os.write(descriptor, chunk) :]


def _resize(master: int, size: tuple[int, int, int, int]) -> None:
    width, height, pixel_width, pixel_height = size
    with contextlib.suppress(OSError):
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, pixel_width, pixel_height))
