"""Copy data from S3 to this instance, and checkpoints to and from it: storage.py VERB < JSON.

place    {}: choose the disk of the data, an NVMe instance store where there is one, mounted by the image or
         here; prints {"root": path, "instance_store": bool}
find     {"key": ...}: prints {"name", "system", "complete", "folder"} for a copy from a peer
copy     {"key", "source", "tool", "variables"}: copy a prefix, whole or what is missing of it; prints
         {"files", "bytes", "copied", "seconds", "by_size": files whose content has no MD5 in S3}
finish   {"key"}: mark what was sent here as complete
link     {"key", "at"}: let the path `at` lead to the copy
mount    {"source", "at", "variables"}: mount a prefix read-only
restore  {"source", "step", "folder", "tool", "variables"}: fetch a training's checkpoint

`tool` is s5cmd, `variables` are of its environment; credentials are those of the instance's role. A copy is
`dlcloud/data/KEY/content`; `KEY/journal` has a line for each file whose content was verified, with its ETag,
so that an interrupted copy goes on and an unchanged file is not copied twice.
"""

import fcntl
import hashlib
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import time

DATA = pathlib.Path("dlcloud/data")
"""Below the home of the login's user; a link to the instance store where there is one."""
MOUNT = pathlib.Path("/mnt/dlcloud-data")
MIB = 1 << 20
PARTS_MIB = (5, 8, 10, 15, 16, 20, 25, 32, 50, 64, 100, 128, 256, 512, 1024)
"""The sizes in which clients upload parts: the AWS CLI and Mountpoint 8, s5cmd 50, others what users say."""
INSTANCE_STORE = "Amazon EC2 NVMe Instance Storage"
IMAGE_MOUNT = pathlib.Path("/opt/dlami/nvme")
"""Where AWS's Deep Learning AMIs mount all instance stores, as one. Source: their release notes."""
IMAGE_MOUNT_S = 120.0
"""How long their service may take at the first boot: it formats the disks."""

ROLE_S = 60.0
ROLE_PAUSE_S = 2.0
UNKNOWN_ROLE = ("NoCredentialProviders", "EC2RoleRequestError", "AccessDenied", "InvalidAccessKeyId")
"""What s5cmd says before a new role counts. Source: IAM user guide, "Changes that I make are not always
immediately visible"; EC2 user guide, "Attach an IAM role to an instance"."""


class StorageError(Exception):
    """What was asked cannot be done."""


def place() -> "dict[str, object]":
    """Put the data on an instance store, formatted and mounted where it is new."""
    if not DATA.exists():
        disk = instance_store()
        if disk is not None:
            folder = disk / "dlcloud-data"
            run("sudo", "mkdir", "-p", folder)
            run("sudo", "chown", str(os.getuid()), folder)
            DATA.parent.mkdir(parents=True, exist_ok=True)
            DATA.symlink_to(folder)
        else:
            DATA.mkdir(parents=True)
    return {"root": str(DATA.resolve()), "instance_store": DATA.is_symlink()}


def instance_store() -> "pathlib.Path | None":
    """Return where an NVMe instance store is mounted: by the image, else by this; None without one."""
    if os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or not shutil.which("lsblk"):
        return None  # a rehearsal must not touch the disks of this machine
    if instance_stores() and IMAGE_MOUNT.parent.is_dir() and is_mounted_in_time(IMAGE_MOUNT):
        return IMAGE_MOUNT
    for device in instance_stores():
        if not device.get("mountpoint") and not device.get("children"):
            mount_device(device["path"])
            return MOUNT
    return None


def instance_stores() -> "list[dict]":
    """Return the NVMe instance stores, as lsblk describes them."""
    listed = subprocess.run(
        ["lsblk", "--json", "--output", "PATH,MODEL,MOUNTPOINT,FSTYPE,TYPE"],
        stdout=subprocess.PIPE,
        check=False,
    )
    try:
        devices = json.loads(listed.stdout)["blockdevices"]
    except (ValueError, KeyError):
        return []
    return [device for device in devices if (device.get("model") or "").strip() == INSTANCE_STORE]


def is_mounted_in_time(path: pathlib.Path) -> bool:
    """Wait until the image has mounted its disk; False if it has not in time."""
    ends_at = time.monotonic() + IMAGE_MOUNT_S
    while not os.path.ismount(path):
        if time.monotonic() >= ends_at:
            return False
        time.sleep(1.0)
    return True


def mount_device(device: str) -> None:
    """Format an instance store that has no file system, and mount it."""
    if subprocess.run(["sudo", "blkid", device], stdout=subprocess.DEVNULL, check=False).returncode:
        run("sudo", "mkfs.ext4", "-q", "-E", "nodiscard", "-m", "0", device)
    run("sudo", "mkdir", "-p", MOUNT)
    run("sudo", "mount", "-o", "noatime", device, MOUNT)


def find(*, key: str) -> "dict[str, object]":
    """Describe a copy, for a peer that may give it; the folder is below the home of either."""
    DATA.mkdir(parents=True, exist_ok=True)
    complete = (DATA / key / "complete").exists()
    system = "-".join(platform.libc_ver())
    return {"name": key, "system": system, "complete": complete, "folder": str(DATA)}


def copy(*, key: str, source: str, tool: str, variables: "dict[str, str]") -> "dict[str, object]":
    """Copy what is missing of a prefix; two copies of one wait for each other."""
    started = time.monotonic()
    folder = DATA / key
    (folder / "content").mkdir(parents=True, exist_ok=True)
    with (DATA / (key + ".lock")).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        listed = list_files(source, tool, variables)
        verified = read_journal(folder)
        missing = [name for name, entry in listed.items() if not is_there(folder, name, entry, verified)]
        remove_others(folder / "content", set(listed))
        (folder / "complete").unlink() if missing and (folder / "complete").exists() else None
        by_size = fetch(folder, source, {name: listed[name] for name in missing}, tool, variables)
        (folder / "complete").write_text(source)
    return {
        "files": len(listed),
        "bytes": sum(size for size, _ in listed.values()),
        "copied": len(missing),
        "seconds": round(time.monotonic() - started, 3),
        "by_size": by_size,
    }


def list_files(source: str, tool: str, variables: "dict[str, str]") -> "dict[str, tuple[int, str]]":
    """Return size and ETag of the files below a prefix, by their path below it."""
    output = list_when_known(source.rstrip("/") + "/*", tool, variables)
    files = {}
    for line in output.splitlines():
        entry = json.loads(line)
        name = entry["key"][len(source.rstrip("/")) + 1 :]
        if not is_below(name):
            message = "data: {!r} would be written outside of its folder, or is too long: use a longer prefix"
            raise StorageError(message.format(entry["key"]))
        if entry.get("type") != "directory" and not name.endswith("/"):
            files[name] = (int(entry.get("size", 0)), entry.get("etag", ""))
    return files


LONGEST_PATH, LONGEST_NAME = 4096, 255


def is_below(name: str) -> bool:
    """True for the path of a file below a folder, relative to it; as that of dlcloud/model/untrusted.py."""
    parts = name.split("/")
    is_relative = name != "" and not name.startswith("/") and ".." not in parts and "\0" not in name
    return is_relative and len(name) <= LONGEST_PATH and len(max(parts, key=len)) <= LONGEST_NAME


def list_when_known(pattern: str, tool: str, variables: "dict[str, str]") -> str:
    """Return s5cmd's list; a role that this instance was given a moment ago is not known everywhere yet."""
    ends_at = time.monotonic() + ROLE_S
    while True:
        try:
            return call(tool, variables, "--json", "ls", "--etag", pattern)
        except StorageError as error:
            if time.monotonic() >= ends_at or not any(word in str(error) for word in UNKNOWN_ROLE):
                raise
        report("waiting until the role of this instance is known to S3")
        time.sleep(ROLE_PAUSE_S)


def read_journal(folder: pathlib.Path) -> "dict[str, str]":
    """Return the ETags of the files that were verified; a line that was cut off is left out."""
    journal = folder / "journal"
    verified = {}
    for line in journal.read_text().splitlines() if journal.exists() else ():
        try:
            name, etag = json.loads(line)
        except ValueError:
            continue
        verified[name] = etag
    return verified


def is_there(folder: pathlib.Path, name: str, entry: "tuple[int, str]", verified: "dict[str, str]") -> bool:
    """True if a file was copied and verified, and S3 still has it so."""
    path = folder / "content" / name
    return verified.get(name) == entry[1] and path.is_file() and path.stat().st_size == entry[0]


def remove_others(content: pathlib.Path, names: "set[str]") -> None:
    """Remove files that are no longer in S3."""
    for path in content.rglob("*"):
        if path.is_file() and str(path.relative_to(content)) not in names:
            path.unlink()


def fetch(
    folder: pathlib.Path,
    source: str,
    files: "dict[str, tuple[int, str]]",
    tool: str,
    variables: "dict[str, str]",
) -> int:
    """Copy files and verify each; return how many could be verified by their size only.

    What is broken is copied once more before it is an error.
    """
    remaining, by_size, failure = files, 0, ""
    earlier: "dict[str, str]" = {}  # the MD5 of what was copied before, by name
    for _ in range(2):
        if not remaining:
            return by_size
        report("copying {} file(s) from {}".format(len(remaining), source))
        failure = call_commands(tool, variables, folder, source, remaining)
        broken = {}
        with (folder / "journal").open("a") as journal:
            for name, (size, etag) in remaining.items():
                path = folder / "content" / name
                verdict = verify(path, size, etag)
                if verdict is False and path.is_file() and path.stat().st_size == size:
                    # Twice the same content: the ETag is not its MD5, as of objects that KMS encrypts.
                    content = md5(path)
                    verdict = None if earlier.get(name) == content else False
                    earlier[name] = content
                if verdict is False:
                    broken[name] = (size, etag)
                    continue
                by_size += verdict is None
                journal.write(json.dumps([name, etag]) + "\n")
        remaining = broken
    if remaining:
        names = ", ".join(sorted(remaining)[:3])
        message = "{} file(s) of {} were not copied: {} {}"
        raise StorageError(message.format(len(remaining), source, names, failure).strip())
    return by_size


def call_commands(
    tool: str,
    variables: "dict[str, str]",
    folder: pathlib.Path,
    source: str,
    files: "dict[str, tuple[int, str]]",
) -> str:
    """Copy files with many connections; return what the tool says of failures."""
    lines = []
    for name in files:
        path = (folder / "content" / name).resolve()
        path.parent.mkdir(parents=True, exist_ok=True)
        lines.append("cp --raw {} {}\n".format(quote(source.rstrip("/") + "/" + name), quote(str(path))))
    done = subprocess.run(
        [tool, "--log", "error", "run"],
        input="".join(lines).encode(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=dict(os.environ, **variables),
        check=False,
    )
    return done.stderr.decode(errors="replace")[-500:].strip()


def verify(path: pathlib.Path, size: int, etag: str) -> "bool | None":
    """Compare a file with size and ETag; None if only the size could be compared.

    An ETag is the MD5 of the content, or of the MD5s of its parts with their number; encryption by KMS makes
    it something else.
    """
    if not path.is_file() or path.stat().st_size != size:
        return False
    digest, _, parts = etag.strip('"').partition("-")
    if len(digest) != hashlib.md5().digest_size * 2:
        return None
    if not parts:
        return md5(path) == digest
    for mebibytes in PARTS_MIB:
        length = mebibytes * MIB
        if -(-size // length) == int(parts) and md5_of_parts(path, length) == digest:
            return True
    return None


def md5(path: pathlib.Path) -> str:
    """Return the MD5 of a file."""
    digest = hashlib.md5()
    with path.open("rb") as stream:
        for block in iter(lambda: stream.read(MIB), b""):
            digest.update(block)
    return digest.hexdigest()


def md5_of_parts(path: pathlib.Path, length: int) -> str:
    """Return the MD5 of the MD5s of a file's parts."""
    digests = b""
    with path.open("rb") as stream:
        while True:
            part, left = hashlib.md5(), length
            while left and (block := stream.read(min(left, MIB))):
                part.update(block)
                left -= len(block)
            if left == length:
                return hashlib.md5(digests).hexdigest()
            digests += part.digest()


def finish(*, key: str) -> "dict[str, object]":
    """Mark what was sent here as complete."""
    (DATA / key / "complete").write_text("sent")
    return {}


def link(*, key: str, at: str) -> "dict[str, object]":
    """Let a path lead to a copy."""
    path = pathlib.Path(at)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        path.unlink()
    if path.exists():
        raise StorageError("data: {} is there already, among the workload's files".format(path.name))
    path.symlink_to((DATA / key / "content").resolve())
    return {}


def mount(*, source: str, at: str, variables: "dict[str, str]") -> "dict[str, object]":
    """Mount a prefix read-only with Mountpoint for Amazon S3."""
    if not os.path.exists("/dev/fuse"):  # noqa: PTH110
        raise StorageError("data: mode: mount-point needs FUSE, which is not there; use mode: copy")
    if not shutil.which("mount-s3"):
        raise StorageError(
            "data: mode: mount-point needs mount-s3; install it in setup.commands, or use mode: copy"
        )
    bucket, _, prefix = source[len("s3://") :].partition("/")
    path = pathlib.Path(at)
    if not os.path.ismount(path):
        path.mkdir(parents=True, exist_ok=True)
        options = ["--read-only", "--prefix", prefix.rstrip("/") + "/"] if prefix else ["--read-only"]
        done = subprocess.run(
            ["mount-s3", *options, bucket, str(path.resolve())],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(os.environ, **variables),
            check=False,
        )
        if done.returncode:
            raise StorageError("mount-s3 failed: " + done.stdout.decode(errors="replace")[-500:])
    return {}


def restore(
    *, source: str, step: int, folder: str, tool: str, variables: "dict[str, str]"
) -> "dict[str, object]":
    """Fetch the checkpoint of a step into the folder of a run's checkpoints, whole or not at all."""
    start, target = "step-{:012d}-".format(step), pathlib.Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    for name in list_files(source, tool, variables):
        if name.startswith(start) and name.endswith(".pt"):
            unfinished = target / ("." + name + ".fetch")
            call(tool, variables, "cp", "--raw", source.rstrip("/") + "/" + name, str(unfinished))
            digest = hashlib.blake2b(unfinished.read_bytes(), digest_size=16).hexdigest()
            if name == start + digest + ".pt":
                unfinished.rename(target / name)
                return {"path": str(target / name)}
            unfinished.unlink()
    raise StorageError("the checkpoint of step {} in {} is gone, or broken".format(step, source))


def call(tool: str, variables: "dict[str, str]", *words: str) -> str:
    """Run s5cmd and return what it prints."""
    done = subprocess.run(
        [tool, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(os.environ, **variables),
        check=False,
    )
    if done.returncode:
        raise StorageError("s5cmd failed: " + done.stderr.decode(errors="replace")[-500:].strip())
    return done.stdout.decode()


def quote(text: str) -> str:
    """Quote a word for s5cmd's command file."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def run(*command: object) -> None:
    """Run a command of the system; its output is the error's."""
    done = subprocess.run(
        [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode:
        raise StorageError("{} failed: {}".format(command[1], done.stdout.decode(errors="replace")[-500:]))


def report(message: str) -> None:
    """Print progress."""
    print(message, file=sys.stderr, flush=True)


def main() -> None:
    """Run the verb of the command line with the JSON of stdin."""
    verbs = {
        "copy": copy,
        "find": find,
        "finish": finish,
        "link": link,
        "mount": mount,
        "place": place,
        "restore": restore,
    }
    try:
        print(json.dumps(verbs[sys.argv[1]](**json.load(sys.stdin))))
    except (StorageError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
