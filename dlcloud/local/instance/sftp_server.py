"""Serve SFTP on standard input and output, as sshd's sftp-server: python3 -I -S sftp_server.py.

Runs as a program of the instance, so that a client's files are those that its commands see.
Source: draft-ietf-secsh-filexfer-02, protocol version 3; OpenSSH, PROTOCOL (extensions, order of SYMLINK).
"""

import contextlib
import errno
import os
import stat
import struct
import sys
import time
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple

VERSION = 3
OK, END, NO_FILE, DENIED, FAILURE, UNSUPPORTED = 0, 1, 2, 3, 4, 8
SIZE, OWNER, MODE, TIMES = 1, 2, 4, 8
READ, WRITE, APPEND, CREATE, TRUNCATE, EXCLUSIVE = 1, 2, 4, 8, 16, 32
ENTRIES, LONGEST_READ = 100, 1 << 18
LENGTH = 4  # bytes of a length, and of a request's number
CODES = {errno.ENOENT: NO_FILE, errno.EACCES: DENIED, errno.EPERM: DENIED}


class PacketType(IntEnum):
    """The types of packets: requests by the name of the method that answers them, and replies."""

    INIT = 1
    VERSION = 2
    OPEN = 3
    CLOSE = 4
    READ = 5
    WRITE = 6
    LSTAT = 7
    FSTAT = 8
    SETSTAT = 9
    FSETSTAT = 10
    OPENDIR = 11
    READDIR = 12
    REMOVE = 13
    MKDIR = 14
    RMDIR = 15
    REALPATH = 16
    STAT = 17
    RENAME = 18
    READLINK = 19
    SYMLINK = 20
    STATUS = 101
    HANDLE = 102
    DATA = 103
    NAME = 104
    ATTRIBUTES = 105
    EXTENDED = 200


REQUEST_KINDS = (
    *(PacketType(number) for number in range(PacketType.OPEN, PacketType.SYMLINK + 1)),
    PacketType.EXTENDED,
)
Reply = tuple[PacketType, bytes]


class Fields:
    """The fields of a request, read one after the other."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def number(self) -> int:
        (value,) = struct.unpack(">I", self.content[:4])
        self.content = self.content[4:]
        return int(value)

    def long(self) -> int:
        return self.number() << 32 | self.number()

    def string(self) -> bytes:
        length = self.number()
        value, self.content = self.content[:length], self.content[length:]
        return value

    def attributes(self) -> "Attributes":
        """Return the attributes that a request sets."""
        flags = self.number()
        return Attributes(
            size=self.long() if flags & SIZE else None,
            owner=(self.number(), self.number()) if flags & OWNER else None,
            mode=self.number() & 0o7777 if flags & MODE else None,
            times=(self.number(), self.number()) if flags & TIMES else None,
        )


class Attributes(NamedTuple):
    """Attributes of a file that a request sets; None for those that it leaves."""

    size: "int | None"
    owner: "tuple[int, int] | None"
    mode: "int | None"
    times: "tuple[int, int] | None"


class Server:
    """Answers the requests of one session. Each method returns the type and the content of its reply."""

    def __init__(self) -> None:
        self.files: dict[bytes, int] = {}
        self.folders: dict[bytes, list[bytes]] = {}
        self.last_handle = 0

    def handle(self) -> bytes:
        self.last_handle += 1
        return b"%d" % self.last_handle

    def open(self, fields: Fields) -> Reply:
        path, flags, changes = fields.string(), fields.number(), fields.attributes()
        mode = os.O_RDWR if flags & READ and flags & WRITE else os.O_WRONLY if flags & WRITE else os.O_RDONLY
        for flag, meaning in ((APPEND, os.O_APPEND), (CREATE, os.O_CREAT), (TRUNCATE, os.O_TRUNC)):
            mode |= meaning if flags & flag else 0
        mode |= os.O_EXCL if flags & EXCLUSIVE and flags & CREATE else 0
        handle = self.handle()
        self.files[handle] = os.open(path, mode, 0o666 if changes.mode is None else changes.mode)
        return PacketType.HANDLE, string(handle)

    def opendir(self, fields: Fields) -> Reply:
        path, handle = fields.string(), self.handle()
        self.folders[handle] = [os.path.join(path, name) for name in (b".", b"..", *os.listdir(path))]
        return PacketType.HANDLE, string(handle)

    def file(self, fields: Fields) -> int:
        """Return the open file that a request names.

        Raises:
            OSError: There is none.
        """
        handle = fields.string()
        if handle not in self.files:
            raise OSError(errno.EBADF, "no such handle")
        return self.files[handle]

    def close(self, fields: Fields) -> Reply:
        handle = fields.string()
        self.folders.pop(handle, None)
        if handle in self.files:
            os.close(self.files.pop(handle))
        return status(OK)

    def read(self, fields: Fields) -> Reply:
        descriptor, offset, length = self.file(fields), fields.long(), fields.number()
        content = os.pread(descriptor, min(length, LONGEST_READ), offset)
        return (PacketType.DATA, string(content)) if content else status(END)

    def write(self, fields: Fields) -> Reply:
        descriptor, offset, content = self.file(fields), fields.long(), fields.string()
        while content:
            written = os.pwrite(descriptor, content, offset)
            content, offset = content[written:], offset + written
        return status(OK)

    def readdir(self, fields: Fields) -> Reply:
        paths = self.folders.get(fields.string(), [])
        entries: list[tuple[bytes, os.stat_result]] = []
        while paths and len(entries) < ENTRIES:
            path = paths.pop(0)
            with contextlib.suppress(FileNotFoundError):  # it has gone meanwhile
                entries.append((os.path.basename(path), os.lstat(path)))
        return names(entries) if entries else status(END)

    def stat(self, fields: Fields) -> Reply:
        return PacketType.ATTRIBUTES, attributes(os.stat(fields.string()))

    def lstat(self, fields: Fields) -> Reply:
        return PacketType.ATTRIBUTES, attributes(os.lstat(fields.string()))

    def fstat(self, fields: Fields) -> Reply:
        return PacketType.ATTRIBUTES, attributes(os.fstat(self.file(fields)))

    def setstat(self, fields: Fields) -> Reply:
        return change(fields.string(), fields.attributes())

    def fsetstat(self, fields: Fields) -> Reply:
        return change(self.file(fields), fields.attributes())

    def remove(self, fields: Fields) -> Reply:
        os.unlink(fields.string())
        return status(OK)

    def mkdir(self, fields: Fields) -> Reply:
        path, changes = fields.string(), fields.attributes()
        os.mkdir(path, 0o777 if changes.mode is None else changes.mode)
        return status(OK)

    def rmdir(self, fields: Fields) -> Reply:
        os.rmdir(fields.string())
        return status(OK)

    def realpath(self, fields: Fields) -> Reply:
        return names([(os.path.realpath(fields.string() or b"."), None)])

    def readlink(self, fields: Fields) -> Reply:
        return names([(os.readlink(fields.string()), None)])

    def rename(self, fields: Fields) -> Reply:
        old, new = fields.string(), fields.string()
        if os.path.lexists(new):
            raise FileExistsError(errno.EEXIST, "the new name exists")
        os.rename(old, new)
        return status(OK)

    def symlink(self, fields: Fields) -> Reply:
        os.symlink(fields.string(), fields.string())
        return status(OK)

    def extended(self, fields: Fields) -> Reply:
        name = fields.string()
        if name not in EXTENSIONS:
            return status(UNSUPPORTED, "not supported")
        EXTENSIONS[name](fields.string(), fields.string())
        return status(OK)


EXTENSIONS = {b"posix-rename@openssh.com": os.rename, b"hardlink@openssh.com": os.link}
REQUESTS: "dict[int, Callable[[Server, Fields], Reply]]" = {
    kind: getattr(Server, kind.name.lower()) for kind in REQUEST_KINDS
}


def change(target: "int | bytes", changes: Attributes) -> Reply:
    """Set attributes of a path or an open file."""
    if changes.size is not None:
        os.truncate(target, changes.size)
    if changes.owner is not None:
        os.chown(target, *changes.owner)
    if changes.mode is not None:
        os.chmod(target, changes.mode)
    if changes.times is not None:
        os.utime(target, changes.times)
    return status(OK)


def string(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


def status(code: int, message: str = "") -> Reply:
    return PacketType.STATUS, struct.pack(">I", code) + string(message.encode()) + string(b"")


def names(entries: "Sequence[tuple[bytes, os.stat_result | None]]") -> Reply:
    """Return names with their attributes, and a line as `ls -l` prints it."""
    content = struct.pack(">I", len(entries))
    for name, result in entries:
        line = name if result is None else long_name(name, result)
        content += (
            string(name) + string(line) + (struct.pack(">I", 0) if result is None else attributes(result))
        )
    return PacketType.NAME, content


def long_name(name: bytes, result: os.stat_result) -> bytes:
    date = time.strftime("%b %d  %Y", time.localtime(result.st_mtime))
    ids = f"{result.st_nlink:4d} {result.st_uid:<8d} {result.st_gid:<8d}"
    return f"{stat.filemode(result.st_mode)} {ids} {result.st_size:8d} {date} ".encode() + name


def attributes(result: os.stat_result) -> bytes:
    values = (result.st_uid, result.st_gid, result.st_mode, int(result.st_atime), int(result.st_mtime))
    flags = SIZE | OWNER | MODE | TIMES
    return struct.pack(">IQIIIII", flags, result.st_size, *(value & 0xFFFFFFFF for value in values))


def answer(server: Server, kind: int, content: bytes) -> Reply:
    """Return type and content of the reply to a request."""
    if kind not in REQUESTS:
        return status(UNSUPPORTED, "not supported")
    try:
        return REQUESTS[kind](server, Fields(content))
    except OSError as error:
        return status(CODES.get(error.errno or 0, FAILURE), error.strerror or "failure")
    except (ValueError, struct.error):
        return status(FAILURE, "malformed request")


def main() -> None:
    """Answer requests until the client closes the session."""
    source, sink, server = sys.stdin.buffer, sys.stdout.buffer, Server()
    while head := source.read(LENGTH):
        packet = source.read(struct.unpack(">I", head)[0])
        if packet[0] == PacketType.INIT:
            extensions = b"".join(string(name) + string(b"1") for name in EXTENSIONS)
            reply = struct.pack(">BI", PacketType.VERSION, VERSION) + extensions
        else:
            kind, content = answer(server, packet[0], packet[1 + LENGTH :])
            reply = bytes([kind]) + packet[1 : 1 + LENGTH] + content
        sink.write(string(reply))
        sink.flush()


if __name__ == "__main__":
    main()
