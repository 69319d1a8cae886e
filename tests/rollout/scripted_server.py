"""An HTTP server that answers as a test tells it to."""

import contextlib
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Server:
    """Answers request number i with ``script(i, path, body)``: a status and JSON or text; or never, for None."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.script: Callable[[int, str, dict[str, Any]], tuple[int, Any] | None] = lambda i, path, body: (
            404,
            "no script",
        )
        self.asked = threading.Event()
        self.given_up = threading.Event()
        lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    number = len(outer.requests)
                    outer.requests.append((self.path, body))
                    outer.headers.append({name.lower(): value for name, value in self.headers.items()})
                answer = outer.script(number, self.path, body)
                outer.asked.set()
                if answer is None:
                    with contextlib.suppress(OSError):
                        self.connection.recv(1)  # returns when the client closes the connection
                    outer.given_up.set()
                    self.close_connection = True
                    return
                status, content = answer
                if status == 0:  # the server dies in the middle
                    self.close_connection = True
                    return
                data = (content if isinstance(content, str) else json.dumps(content)).encode()
                with contextlib.suppress(ConnectionError):
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)

            def log_message(self, *arguments: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()
