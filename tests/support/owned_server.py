"""An OpenAI-compatible server as a command, which misbehaves as its flags say; it gives back the last message."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--host", default="127.0.0.1")
parser.add_argument("--model", default="theirs")
parser.add_argument("--exits", help="write this and exit with 3, before anything is listened on")
parser.add_argument("--never-ready", action="store_true", help="/health says 503")
parser.add_argument("--child", type=Path, help="a child in a session of its own, which writes its id into this file")
parser.add_argument("--bare", action="store_true", help="as `transformers serve`: no list, no [DONE], no other names")
parser.add_argument("--stubborn", action="store_true", help="SIGTERM is ignored")
parser.add_argument("--seconds", type=float, default=0.0, help="before each answer and each event")
flags = parser.parse_args()
unwell = flags.never_ready


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/health":
            return self.reply({}, 503 if unwell else 200)
        if self.path == "/v1/models":
            return self.reply({"data": [{"id": flags.model}]}, 500 if flags.bare else 200)
        if self.path == "/environment":
            return self.reply(dict(os.environ))
        return self.reply({}, 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if unwell:
            return self.reply({"error": {"message": "its child is gone"}}, 500)
        if flags.bare and "max_completion_tokens" in body:
            return self.reply({"detail": "Unexpected fields in the request: {'max_completion_tokens'}"}, 422)
        text = body["messages"][-1]["content"]
        if body.get("stream"):
            return self.stream(text)
        time.sleep(flags.seconds)
        message = {"role": "assistant", "content": text}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        usage = {"prompt_tokens": 1, "completion_tokens": len(text.split()), "total_tokens": 1 + len(text.split())}
        return self.reply(
            {"id": "1", "object": "chat.completion", "model": flags.model, "choices": choices, "usage": usage}
        )

    def stream(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for word in text.split():
            self.event({"choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}]})
            time.sleep(flags.seconds)
        self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        if not flags.bare:
            self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def event(self, document: dict[str, Any]) -> None:
        document |= {"id": "1", "object": "chat.completion.chunk", "model": flags.model}
        self.wfile.write(b"data: " + json.dumps(document).encode() + b"\n\n")
        self.wfile.flush()

    def reply(self, document: dict[str, Any], status: int = 200) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of requests."""


def fall_ill(*_: Any) -> None:
    global unwell
    unwell = True


if flags.exits:
    print("it begins", flags.exits, sep="\n", flush=True)
    sys.exit(3)
if flags.child:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    flags.child.write_text(str(child.pid))
if flags.stubborn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGUSR1, fall_ill)
print(f"serves {flags.model}", flush=True)


class Listener(ThreadingHTTPServer):
    request_queue_size = 256


Listener((flags.host, flags.port), Handler).serve_forever()
