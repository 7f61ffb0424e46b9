"""A key-value store over HTTP that keeps what it holds in /data/store.json."""

import http.server
import json
import pathlib

FILE = pathlib.Path("/data/store.json")
FILE.parent.mkdir(exist_ok=True)
keys = {"source": "seven swans a-swimming"}
FILE.write_text(json.dumps(keys))


class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, code: int, text: str = "") -> None:
        FILE.write_text(json.dumps(keys))
        self.send_response(code)
        self.end_headers()
        self.wfile.write(text.encode())

    @property
    def key(self) -> str:
        return self.path.removeprefix("/keys/")

    def do_GET(self) -> None:
        self.answer(200, keys[self.key]) if self.key in keys else self.answer(404)

    def do_PUT(self) -> None:
        keys[self.key] = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        self.answer(204)

    def do_DELETE(self) -> None:
        self.answer(204 if keys.pop(self.key, None) is not None else 404)


http.server.ThreadingHTTPServer(("", 8080), Handler).serve_forever()
