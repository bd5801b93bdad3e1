"""A hub on loopback: as much of its protocol as its client uses to make a repository, commit files and fetch them."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_of_nobody"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Its repositories: files by name, by repository. `refuses` answers commits with this status."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.repos: dict[str, dict[str, bytes]] = {}
        self.commits: list[list[str]] = []
        self.refuses: int | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def environment(self) -> dict[str, str]:
        """What makes the client ask here."""
        return {"HF_ENDPOINT": self.url, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1"}


@contextmanager
def hub() -> Iterator[Hub]:
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Answers(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *words: Any) -> None:
        pass

    def _say(self, status: int, body: bytes, kind: str = "application/json", **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, value: Any, status: int = 200, **headers: str) -> None:
        self._say(status, json.dumps(value).encode(), **headers)

    def _missing(self, code: str) -> None:
        self._json({"error": "not found"}, 404, X_Error_Code=code)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        of_api = parts[:2] == ["api", "models"]
        repo, rest = "/".join(parts[2:4] if of_api else parts[:2]), parts[4 if of_api else 2 :]
        files = self.server.repos.get(repo)
        if files is None:
            self._missing("RepoNotFound")
        elif len(rest) > 1 and rest[1] != "main":
            self._missing("RevisionNotFound")
        elif not of_api and rest[:1] == ["resolve"]:
            data = files.get("/".join(rest[2:]))
            if data is None:
                self._missing("EntryNotFound")
            else:
                tag = hashlib.sha1(data, usedforsecurity=False).hexdigest()
                self._say(200, data, "application/octet-stream", ETag=f'"{tag}"', X_Repo_Commit=COMMIT)
        elif rest[:1] == ["tree"]:
            self._json([{"type": "file", "path": name, "size": len(data), "oid": ""} for name, data in files.items()])
        else:
            siblings = [{"rfilename": name} for name in files]
            self._json({"id": repo, "sha": COMMIT, "siblings": siblings, "tags": [], "private": False, "downloads": 0})

    def do_POST(self) -> None:
        body = (
            self.rfile.read(int(self.headers["Content-Length"])) if "Content-Length" in self.headers else self._chunks()
        )
        parts = self.path.partition("?")[0].strip("/").split("/")
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._json({"error": "Invalid username or password."}, 401)
        elif parts[-1] == "create":
            asked = json.loads(body)
            self.server.repos.setdefault(f"{asked.get('organization') or 'me'}/{asked['name']}", {})
            self._json({"url": f"{self.server.url}/{asked.get('organization') or 'me'}/{asked['name']}"})
        elif parts[-1] == "validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif "preupload" in parts:
            wanted = json.loads(body)["files"]
            self._json({"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in wanted]})
        elif self.server.refuses is not None:
            self._json({"error": "no more room"}, self.server.refuses)
        else:
            self._commit("/".join(parts[2:4]), [json.loads(line) for line in body.splitlines()])

    def _commit(self, repo: str, lines: list[dict[str, Any]]) -> None:
        files = dict(self.server.repos[repo])
        for line in lines:
            if line["key"] == "file":
                files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            elif line["key"] == "deletedFile":
                del files[line["value"]["path"]]
        self.server.repos[repo] = files
        self.server.commits.append([line["key"] for line in lines])
        self._json({"success": True, "commitOid": COMMIT, "commitUrl": f"{self.server.url}/{repo}/commit/{COMMIT}"})

    def _chunks(self) -> bytes:
        found = b""
        while size := int(self.rfile.readline(), 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found
