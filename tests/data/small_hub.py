"""A hub of one dataset on this machine: as much of the Hugging Face hub's interface as reading a dataset needs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "a" * 40


class Handler(BaseHTTPRequestHandler):
    name: str
    files: dict[str, bytes]

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        api, resolve = f"/api/datasets/{self.name}", f"/datasets/{self.name}/resolve/"
        if path == f"{api}/tree/{COMMIT}":
            self.answer([facts(name, content) for name, content in self.files.items()])
        elif path in (api, f"{api}/revision/{COMMIT}", f"{api}/revision/main"):
            siblings = [{"rfilename": name} for name in self.files]
            self.answer({"id": self.name, "sha": COMMIT, "siblings": siblings, "private": False, "tags": []})
        elif path.startswith(f"{api}/revision"):
            self.answer(b"", 404, "RevisionNotFound")
        elif path.startswith(resolve) and path.rsplit("/", 1)[-1] in self.files:
            self.answer(self.files[path.rsplit("/", 1)[-1]])
        elif path.startswith((api, resolve)):
            self.answer(b"", 404, "EntryNotFound")
        else:
            self.answer(b"", 404, "RepoNotFound")

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """Facts of some files."""
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.answer([facts(name, content) for name, content in self.files.items() if name in asked])

    def answer(self, content: object, code: int = 200, fault: str | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(code)
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{sha1(data).hexdigest()}"', "Content-Length": str(len(data))}
        for key, value in (headers | ({"X-Error-Code": fault} if fault else {})).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Nothing."""


def facts(name: str, content: bytes) -> dict[str, object]:
    return {"type": "file", "path": name, "size": len(content), "oid": sha1(content).hexdigest()}


@contextmanager
def small_hub(name: str, files: dict[str, bytes]) -> Iterator[str]:
    """Serves one dataset; its address."""
    handler = type("OneDataset", (Handler,), {"name": name, "files": files})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
