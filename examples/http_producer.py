"""Push orders over plain HTTP; any language can do the same. Needs httpx.

    python examples/http_producer.py --count 10 --every 0.5

A push that is sent again with the same transactionId, because its answer was lost, is stored once. So whatever goes
wrong on the way is no reason to give up, nor is a broker that has not started yet.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import sys
import time
import uuid
from typing import Any

import httpx

URL = os.environ.get("QUEEN_URL", "http://127.0.0.1:6632")


def push(http: httpx.Client, item: dict[str, Any]) -> dict[str, Any]:
    """Push one message, again and again until the broker has it; what was stored."""
    told = False
    while True:
        try:
            answer = http.post("/api/v1/push", json={"items": [item]})
            if answer.status_code not in (429, 503):  # those mean: not now
                answer.raise_for_status()
                (stored,) = answer.json()
                return dict(stored)
            reason = f"it answers {answer.status_code}"
        except (httpx.NetworkError, httpx.TimeoutException, httpx.RemoteProtocolError) as error:
            reason = str(error) or type(error).__name__
        if not told:
            print(f"waiting for the broker at {URL}: {reason}", file=sys.stderr, flush=True)
            told = True
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, help="how many orders (default: until it is stopped)")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between them")
    options = parser.parse_args()
    run = uuid.uuid4().hex[:8]
    with httpx.Client(base_url=URL) as http:
        for number in itertools.count() if options.count is None else range(options.count):
            item = {
                "queue": "orders",
                "partition": f"customer-{number % 3}",
                "transactionId": f"order-{run}-{number}",
                "payload": {"number": number, "amount": 10 + number},
            }
            stored = push(http, item)
            print(f"order {number}: {stored['status']} at offset {stored['offset']} of {item['partition']}", flush=True)
            time.sleep(options.every)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
