"""Push orders over plain HTTP; any language can do the same. Needs httpx.

    python examples/http_producer.py --count 10 --every 0.5

A push that is sent again with the same transactionId, because its answer was lost, is stored once.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import time
import uuid

import httpx

URL = os.environ.get("QUEEN_URL", "http://127.0.0.1:6632")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, help="how many orders (default: until it is stopped)")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between them")
    options = parser.parse_args()
    run = uuid.uuid4().hex[:8]
    # A transport that tries again while the broker is not up yet
    with httpx.Client(base_url=URL, transport=httpx.HTTPTransport(retries=5)) as http:
        for number in itertools.count() if options.count is None else range(options.count):
            item = {
                "queue": "orders",
                "partition": f"customer-{number % 3}",
                "transactionId": f"order-{run}-{number}",
                "payload": {"number": number, "amount": 10 + number},
            }
            answer = http.post("/api/v1/push", json={"items": [item]})
            answer.raise_for_status()
            (stored,) = answer.json()
            print(f"order {number}: {stored['status']} at offset {stored['offset']} of {item['partition']}", flush=True)
            time.sleep(options.every)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
