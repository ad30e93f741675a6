"""Consume orders over a WebSocket, frame by frame, with a WebSocket library and nothing else (websockets).

    python examples/websocket_consumer.py --count 10

The broker pushes each message the moment it is durable. Its lease lives with the connection: if this process dies, the
message is with another consumer at once.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

URL = os.environ.get("QUEEN_URL", "http://127.0.0.1:6632")
STOP = threading.Event()
"""Ctrl-C was pressed."""


def open_socket() -> ClientConnection:
    """Connect, trying until the broker is there: it may be starting."""
    address = URL.replace("http", "ws", 1) + "/api/v1/ws"
    told = False
    while True:
        try:
            return connect(address, subprotocols=[Subprotocol("queen.v1")])
        except (OSError, InvalidHandshake) as error:
            if isinstance(error, InvalidStatus) and error.response.status_code not in (429, 503):
                raise SystemExit(f"the broker refused: {error}") from None
            if not told:
                print(f"waiting for the broker at {URL}: {error}", file=sys.stderr, flush=True)
                told = True
            if STOP.wait(0.2):
                raise SystemExit from None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, help="how many orders (default: until it is stopped)")
    left = parser.parse_args().count
    with open_socket() as socket:
        subscribe = {"id": 1, "op": "subscribe", "sub": "s", "queue": "orders", "group": "shipping", "credit": 10}
        socket.send(json.dumps(subscribe))
        while not STOP.is_set() and (left is None or left > 0):
            try:
                frame = json.loads(socket.recv(timeout=0.2))
            except TimeoutError:
                continue
            if frame.get("ok") is False:
                raise SystemExit(f"the broker refused: {frame['error']}")
            if frame.get("event") != "messages":
                continue  # the welcome, replies, heartbeats
            acks = []
            for message in frame["messages"]:
                print(f"shipped {json.dumps(message['data'])} of {frame['partition']}", flush=True)
                acks.append(
                    {
                        "transactionId": message["transactionId"],
                        "partitionId": message["partitionId"],
                        "leaseId": frame["leaseId"],
                        "status": "completed",
                    }
                )
            socket.send(json.dumps({"id": 2, "op": "ack", "consumerGroup": "shipping", "acknowledgments": acks}))
            left = None if left is None else left - len(acks)
        while left == 0 and json.loads(socket.recv()).get("id") != 2:
            pass  # leave when the last ack is answered: it is durable then


if __name__ == "__main__":
    # Ctrl-C as an exception could strike inside the client while it holds a lock that its close needs
    signal.signal(signal.SIGINT, lambda *_: STOP.set())
    try:
        main()
    except ConnectionClosed as end:
        raise SystemExit(f"the broker has ended the connection: {end}") from None
