"""MLflow's REST API, as far as runs need it: experiments, runs, metrics, files.

The standard library suffices: `mlflow-skinny` would bring protobuf, FastAPI, the SDK of Databricks and others
for seven calls whose form has not changed since MLflow 1.
"""

import base64
import http.client
import json
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

from dlcloud.analysis.tracking import POSITION_TAG, RUN_TAG, TrackedPoint, batches
from dlcloud.model.errors import TrackerError, TrackerRefusedError

TIMEOUT_S = 10.0
MOST_METRICS = 1000  # Source: MLflow, REST API, runs/log-batch: 1,000 metrics, 100 parameters, 100 tags
MOST_PARAMETERS = 100
MOST_RUNS = 1000
LONGEST_VALUE = 500
"""Of a parameter; newer servers take 6,000 characters."""
LONGEST_TAG = 5000
ARTIFACTS = "mlflow-artifacts:/"
"""The location of files that the server itself stores, as it does by default."""
PASSING = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.REQUEST_TIMEOUT}

Answer = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """A run on the server: how much of its records it has, and whether it has all."""

    tracker_id: str
    artifacts: str
    position: int = 0
    is_complete: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MlflowServer:
    """A server at `url`.

    Args:
        url: Without a user or a password.
        variables: The process's; MLFLOW_TRACKING_USERNAME, _PASSWORD and _TOKEN are its credentials,
            MLFLOW_TRACKING_INSECURE_TLS trusts any certificate.

    Raises:
        TrackerError: From any method: the server does not answer.
        TrackerRefusedError: It refused, and would again.
    """

    url: str
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)

    def experiment(self, name: str) -> str:
        """Return the id of an experiment, which is made if there is none."""
        try:
            answer = self._call("GET", "experiments/get-by-name", {"experiment_name": name})
            return str(answer["experiment"]["experiment_id"])
        except TrackerRefusedError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
        return str(self._call("POST", "experiments/create", {"name": name})["experiment_id"])

    def runs(self, experiment: str) -> dict[str, TrackedRun]:
        """Return the runs that dlcloud sent to an experiment, by their own ids."""
        return {run_id: run for page in self._pages(experiment) for run_id, run in page.items()}

    def create(self, experiment: str, name: str, tags: Mapping[str, str], at_ms: int) -> TrackedRun:
        """Begin a run."""
        body = {"experiment_id": experiment, "run_name": name, "start_time": at_ms, "tags": _pairs(tags)}
        info = self._call("POST", "runs/create", body)["run"]["info"]
        return TrackedRun(tracker_id=str(info["run_id"]), artifacts=str(info.get("artifact_uri", "")))

    def log(self, run: TrackedRun, points: Sequence[TrackedPoint], position: int) -> None:
        """Add metrics; with the last of them, that the records up to `position` were sent."""
        for piece in batches(points, MOST_METRICS):
            is_last = not points or piece[-1] is points[-1]
            metrics = [
                {"key": point.key, "value": point.value, "step": point.step, "timestamp": point.at_ms}
                for point in piece
            ]
            tags = _pairs({POSITION_TAG: str(position)}) if is_last else []
            self._call("POST", "runs/log-batch", {"run_id": run.tracker_id, "metrics": metrics, "tags": tags})

    def describe(self, run: TrackedRun, parameters: Mapping[str, str]) -> None:
        """Add parameters."""
        pairs = [{"key": key, "value": value[:LONGEST_VALUE]} for key, value in parameters.items() if value]
        for start in range(0, len(pairs), MOST_PARAMETERS):
            body = {"run_id": run.tracker_id, "params": pairs[start : start + MOST_PARAMETERS]}
            self._call("POST", "runs/log-batch", body)

    def end(self, run: TrackedRun, status: str, at_ms: int) -> None:
        """End a run: FINISHED, FAILED or KILLED."""
        self._call("POST", "runs/update", {"run_id": run.tracker_id, "status": status, "end_time": at_ms})

    def upload(self, run: TrackedRun, name: str, path: Path) -> None:
        """Store a file with a run, where the server stores files.

        Raises:
            TrackerRefusedError: It leaves that to its clients (`mlflow server --no-serve-artifacts`).
        """
        _, is_served, folder = run.artifacts.partition(ARTIFACTS)
        if not is_served:
            raise TrackerRefusedError(f"{self.url} stores no files itself, but in {run.artifacts}")
        place = "/".join(quote(part) for part in [*folder.strip("/").split("/"), *name.split("/")])
        with path.open("rb") as content:
            headers = {"Content-Type": "application/octet-stream", "Content-Length": str(path.stat().st_size)}
            url = self._url(f"mlflow-artifacts/artifacts/{place}")
            self._send(Request(url, content, headers, method="PUT"))

    def _pages(self, experiment: str) -> Iterator[dict[str, TrackedRun]]:
        token = ""
        while True:
            body = {
                "experiment_ids": [experiment],
                "filter": f"tags.`{RUN_TAG}` LIKE '%'",
                "max_results": MOST_RUNS,
                **({"page_token": token} if token else {}),
            }
            answer = self._call("POST", "runs/search", body)
            yield dict(map(_tracked, answer.get("runs", [])))
            token = answer.get("next_page_token", "")
            if not token:
                return

    def _call(self, method: str, path: str, values: Mapping[str, Any]) -> Answer:
        url = self._url(f"mlflow/{path}")
        if method == "GET":
            return self._send(Request(f"{url}?{urlencode(values)}"))
        headers = {"Content-Type": "application/json"}
        return self._send(Request(url, json.dumps(values).encode(), headers, method=method))

    def _url(self, path: str) -> str:
        return f"{self.url.rstrip('/')}/api/2.0/{path}"

    def _send(self, request: Request) -> Answer:
        for name, value in _credentials(self.variables).items():
            request.add_header(name, value)
        try:
            with urlopen(request, timeout=TIMEOUT_S, context=self._context()) as answer:
                content = json.loads(answer.read() or b"{}")
        except HTTPError as error:
            raise self._refusal(error) from error
        except (OSError, URLError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", "") or error
            raise TrackerError(f"MLflow at {self.url} does not answer: {reason}") from error
        return content if isinstance(content, dict) else {}

    def _refusal(self, error: HTTPError) -> TrackerError:
        with error:
            text = error.read(2000).decode("utf-8", "replace")
        try:
            text = str(json.loads(text).get("message", text))
        except (ValueError, AttributeError):
            text = text.strip() or str(error.reason)
        message = f"MLflow at {self.url} answers {error.code}: {text[:300]}"
        if error.code in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            hint = "set MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            return TrackerRefusedError(message, hint, status=error.code)
        if error.code >= HTTPStatus.INTERNAL_SERVER_ERROR or error.code in PASSING:
            return TrackerError(message)
        return TrackerRefusedError(message, status=error.code)

    def _context(self) -> ssl.SSLContext | None:
        insecure = self.variables.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() == "true"
        return ssl._create_unverified_context() if insecure else None  # noqa: S323, SLF001  as MLflow itself


def _tracked(run: Mapping[str, Any]) -> tuple[str, TrackedRun]:
    tags = {tag["key"]: tag["value"] for tag in run["data"].get("tags", [])}
    position = str(tags.get(POSITION_TAG, "0"))
    info = run["info"]
    return str(tags.get(RUN_TAG, "")), TrackedRun(
        tracker_id=str(info["run_id"]),
        artifacts=str(info.get("artifact_uri", "")),
        position=int(position) if position.isdigit() else 0,
        is_complete=info.get("status") != "RUNNING",
    )


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value[:LONGEST_TAG]} for key, value in values.items()]


def _credentials(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the header by which MLflow's own client logs in."""
    user, password = (variables.get(f"MLFLOW_TRACKING_{name}", "") for name in ("USERNAME", "PASSWORD"))
    if user:
        return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}
    token = variables.get("MLFLOW_TRACKING_TOKEN", "")
    return {"Authorization": f"Bearer {token}"} if token else {}
