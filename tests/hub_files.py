"""A hub cache as huggingface_hub lays it out, and a small hub to download from."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from model_files import GOLDEN

COMMIT = "8fe770c78eb13fe33bf81501612faeddf4d6f331"
REPO = "LongSafari/hyenadna-small-32k-seqlen-hf"


def port_files() -> dict[str, bytes]:
    """What a repository of the port has, code and all; the model is that of the golden files."""
    stem = GOLDEN / "hyenadna/hf_causal_lm"
    return {
        "config.json": stem.with_suffix(".config.json").read_bytes(),
        "model.safetensors": stem.with_suffix(".safetensors").read_bytes(),
        "modeling_hyena.py": b"raise SystemExit('code of a model must not run')\n",
        "training_args.bin": b"\x80\x02not for us",
        "runs/model.safetensors": b"of another run",
        "README.md": b"# A model\n",
    }


def original_files() -> dict[str, bytes]:
    """What a repository of the authors' layout has."""
    return {
        "config.json": (GOLDEN / "hyenadna/orig_standalone_head.config.json").read_bytes(),
        "weights.ckpt": (GOLDEN / "hyenadna/orig_lightning.ckpt").read_bytes(),
    }


def cached(
    cache: Path, files: Mapping[str, bytes], repo: str = REPO, revision: str = "main"
) -> Path:
    """Puts files into a cache: blobs, a snapshot of links to them, and a reference."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    snapshot = folder / "snapshots" / COMMIT
    for name, content in files.items():
        blob = folder / "blobs" / hashlib.sha256(content).hexdigest()
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        link = snapshot / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(Path("../" * (name.count("/") + 2)) / "blobs" / blob.name)
    (folder / "refs").mkdir(parents=True, exist_ok=True)
    (folder / "refs" / revision).write_text(COMMIT)
    return snapshot


class Hub:
    """Repositories by id, each a mapping of file names to contents; what was asked for."""

    def __init__(self, repositories: Mapping[str, Mapping[str, bytes]]) -> None:
        self.repositories = repositories
        self.asked: list[str] = []
        self.url = ""

    def downloads(self) -> set[str]:
        """Names of the files whose content was sent."""
        return {path.partition(f"/resolve/{COMMIT}/")[2] for path in self.asked} - {""}


@contextmanager
def serve(repositories: Mapping[str, Mapping[str, bytes]]) -> Iterator[Hub]:
    """A hub on this machine, for HF_ENDPOINT; every repository has one commit, on main."""
    hub = Hub(repositories)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(send=False)

        def do_GET(self) -> None:
            hub.asked.append(self.path)
            self._answer(send=True)

        def _answer(self, *, send: bool) -> None:
            status, content, headers = answer(hub.repositories, self.path.partition("?")[0])
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if send:
                self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def answer(
    repositories: Mapping[str, Mapping[str, bytes]], path: str
) -> tuple[int, bytes, dict[str, str]]:
    """Status, content and headers of the hub's interface for models."""
    for repo, files in repositories.items():
        api = f"/api/models/{repo}"
        if path in (f"{api}/revision/main", f"{api}/revision/{COMMIT}", api):
            siblings = [{"rfilename": name} for name in files]
            return as_json({"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings})
        if path in (f"{api}/tree/{COMMIT}", f"{api}/tree/main"):
            rows = [
                {"type": "file", "path": name, "size": len(content), "oid": digest(content)}
                for name, content in files.items()
            ]
            return as_json(rows)
        if path.startswith(f"{api}/"):
            return 404, b"", {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "no revision"}
        for name, content in files.items():
            if path == f"/{repo}/resolve/{COMMIT}/{name}":
                return 200, content, {"ETag": f'"{digest(content)}"', "X-Repo-Commit": COMMIT}
    return 404, b"", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "no repository"}


def as_json(value: Any) -> tuple[int, bytes, dict[str, str]]:
    return 200, json.dumps(value).encode(), {"Content-Type": "application/json"}


def digest(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
