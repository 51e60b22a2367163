"""A server of MLflow's REST API as far as dlcloud calls it; it refuses what the real one refuses."""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

KEY = re.compile(r"^[\w.\- /]{1,250}$")


class RefusedError(Exception):
    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


class FakeMlflow:
    """What the server holds; `is_down` makes it answer 503."""

    def __init__(self):
        self.experiments, self.runs, self.files = {}, {}, {}
        self.is_down = False
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def answer(self, method, path, query, body):
        if self.is_down:
            raise RefusedError(503, "down")
        with self._lock:
            if method == "PUT":
                self.files[path.partition("/artifacts/")[2]] = body
                return {}
            values = json.loads(body) if body else query
            name = path.removeprefix("/api/2.0/mlflow/").replace("/", "_").replace("-", "_")
            return getattr(self, name)(**values)

    def experiments_get_by_name(self, experiment_name):
        if experiment_name not in self.experiments:
            raise RefusedError(404, f"No Experiment with name={experiment_name}")
        return {"experiment": {"experiment_id": self.experiments[experiment_name]}}

    def experiments_create(self, name):
        self.experiments[name] = str(len(self.experiments) + 1)
        return {"experiment_id": self.experiments[name]}

    def runs_create(self, experiment_id, run_name, start_time, tags):
        assert experiment_id in self.experiments.values()
        assert isinstance(start_time, int)
        run_id = f"{len(self.runs):032x}"
        info = {
            "run_id": run_id,
            "experiment_id": experiment_id,
            "run_name": run_name,
            "status": "RUNNING",
            "artifact_uri": f"mlflow-artifacts:/{experiment_id}/{run_id}/artifacts",
        }
        self.runs[run_id] = {"info": info, "data": {"tags": tags, "params": [], "metrics": []}}
        return {"run": self.runs[run_id]}

    def runs_log_batch(self, run_id, metrics=(), params=(), tags=()):
        if len(metrics) > 1000 or len(params) > 100 or len(tags) > 100:
            raise RefusedError(400, "A batch logging request can contain at most 1000 metrics")
        data = self.runs[run_id]["data"]
        for item in [*metrics, *params]:
            if not KEY.match(item["key"]):
                raise RefusedError(400, f"Invalid key {item['key']}")
        for param in params:
            before = [other["value"] for other in data["params"] if other["key"] == param["key"]]
            if before not in ([], [param["value"]]):
                raise RefusedError(400, "Changing param values is not allowed")
            data["params"] += [param] if not before else []
        data["metrics"] += [metric for metric in metrics if metric not in data["metrics"]]
        names = {tag["key"] for tag in tags}
        data["tags"] = [tag for tag in data["tags"] if tag["key"] not in names] + [*tags]
        return {}

    def runs_update(self, run_id, status, end_time):
        assert status in {"FINISHED", "FAILED", "KILLED"}
        self.runs[run_id]["info"] |= {"status": status, "end_time": end_time}
        return {"run_info": self.runs[run_id]["info"]}

    def runs_search(self, experiment_ids, filter, max_results, page_token="0"):  # noqa: A002  MLflow's word
        assert filter == "tags.`dlcloud.run` LIKE '%'"
        runs = [run for run in self.runs.values() if run["info"]["experiment_id"] in experiment_ids]
        start = int(page_token)
        end = start + min(max_results, 2)
        return {"runs": runs[start:end]} | ({"next_page_token": str(end)} if end < len(runs) else {})


def _handler(fake):
    class Handler(BaseHTTPRequestHandler):
        def _serve(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            url = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            try:
                status, answer = 200, fake.answer(self.command, url.path, query, body)
            except RefusedError as error:
                status, answer = error.status, {"error_code": "X", "message": str(error)}
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = _serve  # noqa: N815  the standard library's names

        def log_message(self, *_):
            pass

    return Handler
