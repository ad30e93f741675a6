"""What streaming is compared with: trio-websocket as its documentation shows it, in a process of its own.

`loop`: when as many clients as wanted are there, a plain loop of `send_message`, one message to each connection in
turn, as fast as it goes. `echo`: every message back to its sender.
"""

from __future__ import annotations

import sys

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, WebSocketRequest, serve_websocket

wanted, text = int(sys.argv[2]) if len(sys.argv) > 2 else 0, sys.argv[3] if len(sys.argv) > 3 else ""
connections: list[WebSocketConnection] = []
complete = trio.Event()
gone = trio.Event()


async def loop(request: WebSocketRequest) -> None:
    connection = await request.accept()
    connections.append(connection)
    if len(connections) < wanted:
        await gone.wait()
        return
    try:
        while True:
            for one in connections:
                await one.send_message(text)
    except ConnectionClosed:
        connections.clear()
        gone.set()


async def echo(request: WebSocketRequest) -> None:
    connection = await request.accept()
    try:
        while True:
            await connection.send_message(await connection.get_message())
    except ConnectionClosed:
        return


async def main() -> None:
    handler = {"loop": loop, "echo": echo}[sys.argv[1]]
    async with trio.open_nursery() as nursery:
        server = await nursery.start(serve_websocket, handler, "127.0.0.1", 0, None)
        print(f"http://127.0.0.1:{server.port}", flush=True)


if __name__ == "__main__":
    trio.run(main)
