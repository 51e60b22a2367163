"""Run one trial of an experiment in a container of AWS Batch: python3 -c THIS.

DLCLOUD_BATCH is JSON: endpoint of S3, region, bucket, prefix, and below the prefix the key of the code and
the folder of the job; AWS_BATCH_JOB_ARRAY_INDEX says which trial of its manifest this is. Code, files and
values come from the bucket; log, records and kept files go there as one archive, whole or not at all.
"""

import datetime as dt
import gzip
import hashlib
import hmac
import io
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

TRIES = 6
TIMEOUT_S = 60
METADATA_TIMEOUT_S = 2  # an answer that is dropped on its way to the container never comes
LAST_LINES = 20
AGAIN = (403, 500, 503)  # a new role is not known everywhere at once
TOO_LATE = 75
CHUNK = 1 << 16
CONTAINER = "http://169.254.170.2"
METADATA = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254").rstrip("/")
FACTS = {
    "instance_id": "instance-id",
    "instance_type": "instance-type",
    "zone": "placement/availability-zone",
    "market": "instance-life-cycle",
    "image_id": "ami-id",
}
MOST_BYTES = 256 << 20
"""Of the files that a trial keeps without a keep.files: they are sent as one archive, from memory."""
CACHES = {".cache", ".git", ".ipynb_checkpoints", ".venv", "__pycache__", "node_modules", "venv"}
TRACKER_FILES = ("**/events.out.tfevents.*", "**/wandb/offline-run-*/**")


def fetch(
    url: str,
    method: str = "GET",
    headers: "dict[str, str] | None" = None,
    body: "bytes | None" = None,
    timeout_s: float = TIMEOUT_S,
) -> bytes:
    """Return the answer of a request."""
    request = urllib.request.Request(url, data=body, headers=headers or {}, method=method)
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        return answer.read()


def metadata(path: str) -> str:
    """Return a document of the instance's metadata service."""
    lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "300"}
    token = fetch(METADATA + "/latest/api/token", "PUT", lifetime, timeout_s=METADATA_TIMEOUT_S)
    headers = {"X-aws-ec2-metadata-token": token.decode()}
    return fetch(METADATA + "/latest/" + path, headers=headers, timeout_s=METADATA_TIMEOUT_S).decode()


def credentials() -> "dict[str, str]":
    """Return the credentials of the job's role; where there is none, of the instance's.

    Source: Amazon ECS developer guide, "Task IAM role".
    """
    relative = os.environ.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
    if relative:
        return json.loads(fetch(CONTAINER + relative))
    folder = "meta-data/iam/security-credentials/"
    return json.loads(metadata(folder + metadata(folder).split()[0]))


def call_s3(place: "dict[str, str]", method: str, key: str, body: bytes = b"") -> bytes:
    """Send a request for an object, signed; again where it fails on the way.

    Source: S3 API reference, "Signature Calculations for the Authorization Header".
    """
    for attempt in range(TRIES):
        try:
            return fetch(*signed(place, method, key, body))
        except urllib.error.HTTPError as error:
            if error.code not in AGAIN:
                raise
            failure = error
        except OSError as error:
            failure = error
        print("{} of {}: {}; again".format(method, key, failure), file=sys.stderr)
        time.sleep(2**attempt)
    raise failure


def signed(place: "dict[str, str]", method: str, key: str, body: bytes) -> "tuple":
    """Return the arguments of `fetch` for a request to S3."""
    role = credentials()
    address = urllib.parse.urlsplit(place["endpoint"])
    path = urllib.parse.quote("/{}/{}".format(place["bucket"], key))
    stamp = dt.datetime.now(dt.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    digest = hashlib.sha256(body).hexdigest()
    headers = {
        "host": address.netloc,
        "x-amz-content-sha256": digest,
        "x-amz-date": stamp,
        "x-amz-security-token": role["Token"],
    }
    names = ";".join(headers)
    lines = "".join("{}:{}\n".format(name, value) for name, value in headers.items())
    request = "{}\n{}\n\n{}\n{}\n{}".format(method, path, lines, names, digest)
    scope = "{}/{}/s3/aws4_request".format(stamp[:8], place["region"])
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(request.encode()).hexdigest()])
    secret = ("AWS4" + role["SecretAccessKey"]).encode()
    for word in scope.split("/"):
        secret = hmac.new(secret, word.encode(), hashlib.sha256).digest()
    signature = hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()
    form = "AWS4-HMAC-SHA256 Credential={}/{}, SignedHeaders={}, Signature={}"
    headers["Content-Type"] = "application/octet-stream"
    headers["Authorization"] = form.format(role["AccessKeyId"], scope, names, signature)
    return place["endpoint"] + path, method, headers, body if method == "PUT" else None


def describe_instance() -> "dict[str, str]":
    """Return what the instance says of itself; its zone alone where its metadata cannot be reached.

    Source: Amazon ECS developer guide, "Task metadata endpoint version 4".
    """
    try:
        return {name: metadata("meta-data/" + path) for name, path in FACTS.items()}
    except OSError:
        pass
    try:
        task = json.loads(fetch(os.environ["ECS_CONTAINER_METADATA_URI_V4"] + "/task"))
        return {"zone": str(task["AvailabilityZone"])}
    except (OSError, KeyError, ValueError):
        return {}


def run(folder: pathlib.Path, trial: "dict[str, str]", manifest: "dict") -> int:
    """Set the container up and run the trial's command; its output goes to the log.

    What a container prints stays in a log group of the account for ever: the last lines of a failure do.
    """
    work = folder / "work"
    work.mkdir(exist_ok=True)
    (work / "values.json").write_text(trial["values"])
    (folder / "command").write_text(trial["command"])
    steps = [["bash", "-ec", manifest["setup"]]] if manifest["setup"].strip() else []
    if manifest["requirements"].strip():
        (folder / "requirements.txt").write_text(manifest["requirements"])
        steps.append([sys.executable, "-m", "venv", "--system-site-packages", str(folder / "env")])
        pip = ["python3", "-m", "pip", "install", "-q", "--no-cache-dir", "-r"]
        steps.append([*pip, str(folder / "requirements.txt")])
    # The environment's programs come first, once it is there.
    os.environ["PATH"] = "{}:{}".format(folder / "env/bin", os.environ["PATH"])
    with (folder / "log").open("wb") as log:
        for words in steps:
            status = watch(words, folder, log, manifest)
            if status:
                return status
        os.utime(folder / "command")
        return watch(["sh", str(folder / "command")], work, log, manifest)


def watch(words: "list[str]", folder: pathlib.Path, log: "io.BufferedWriter", manifest: "dict") -> int:
    """Run a program until it ends, or until the budget does; return its exit status."""
    process = subprocess.Popen(
        words,
        cwd=folder,
        env=dict(os.environ, **manifest["variables"]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    timer = threading.Timer(max(0.0, manifest["ends_at"] - time.time()), process.kill)
    timer.daemon = True
    timer.start()
    for chunk in iter(lambda: process.stdout.read1(CHUNK), b""):
        log.write(chunk)
        log.flush()
    status = process.wait()
    timer.cancel()
    if status:
        lines = pathlib.Path(log.name).read_bytes().splitlines(keepends=True)
        sys.stdout.buffer.write(b"".join(lines[-LAST_LINES:]))
        sys.stdout.buffer.flush()
    return status if status >= 0 else 128 - status


def kept_files(work: pathlib.Path, patterns: "list[str]") -> "dict[str, pathlib.Path]":
    """Return the files that patterns keep, by name: a folder means its content, a link its file."""
    top, found = work.resolve(), set()
    for pattern in patterns:
        for path in (*work.glob(pattern), work / pattern):  # also a name with brackets, as it is written
            found.update(path.rglob("*") if path.is_dir() else [path])
    real = {path: path.resolve() for path in found}
    return {
        str(path.relative_to(work)): real[path]
        for path in sorted(found)
        if real[path].is_file() and top in real[path].parents
    }


def pack(folder: pathlib.Path, end: "dict[str, object]", patterns: "list[str]") -> bytes:
    """Return the archive of a trial that has ended."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        text = json.dumps(end).encode()
        entry = tarfile.TarInfo("end.json")
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))
        for name in ("log", "records.jsonl"):
            if (folder / name).is_file():
                archive.add(str(folder / name), name)
        begun_ns = (folder / "command").stat().st_mtime_ns
        kept = kept_files(folder / "work", [*patterns, *TRACKER_FILES])
        room = MOST_BYTES if patterns == ["**"] else sys.maxsize
        for name, real in sorted(kept.items(), key=lambda item: item[1].stat().st_size):
            status = real.stat()
            is_cache = patterns == ["**"] and not CACHES.isdisjoint(name.split("/"))
            if status.st_mtime_ns < begun_ns or is_cache:
                continue
            room -= status.st_size
            if room < 0:
                print("not kept, as keep.files does not name it: " + name, file=sys.stderr)
                continue
            archive.add(str(real), "files/" + name)
    return content.getvalue()


def main() -> int:
    """Run the trial of this container."""
    place = json.loads(os.environ["DLCLOUD_BATCH"])
    index = int(os.environ.get("AWS_BATCH_JOB_ARRAY_INDEX", "0"))
    job = place["prefix"] + "/" + place["job"]
    manifest = json.loads(gzip.decompress(call_s3(place, "GET", job + "/manifest.json.gz")))
    trial = manifest["trials"][index]
    if time.time() >= manifest["ends_at"]:
        print("the budget has ended: this trial does not begin", file=sys.stderr)
        return TOO_LATE
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        code = call_s3(place, "GET", place["prefix"] + "/" + place["code"])
        with tarfile.open(fileobj=io.BytesIO(code)) as archive:
            archive.extractall(name)  # noqa: S202 - the launcher packed it
        began = time.time()
        status = run(folder, trial, manifest)
        end = {"exit_status": status, "started_at": began, "ended_at": time.time(), **describe_instance()}
        result = pack(folder, end, manifest["keep"])
        call_s3(place, "PUT", "{}/results/{}.tar.gz".format(job, trial["run_id"]), result)
    return status


if __name__ == "__main__":
    sys.exit(main())
