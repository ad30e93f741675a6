"""A rate limit in one call: a counter with a ceiling and a lifetime.

    python examples/rate_limiter.py customer-42 --limit 3 --requests 5

Past the ceiling the increment does not apply, and says so. The lifetime is that of the first increment, so the counter
starts again when the window is over.
"""

from __future__ import annotations

import argparse
import os

import trio

from queen_actors import Queen, connect

URL = os.environ.get("QUEEN_URL", "http://127.0.0.1:6632")


async def allowed(queen: Queen, customer: str, limit: int) -> bool:
    hit = await queen.kv.incr("limits", f"api:{customer}", 1, max=limit, ttl="1m")
    return hit.applied


async def main(customer: str, limit: int, requests: int) -> None:
    async with connect(URL) as queen:
        for number in range(1, requests + 1):
            print(f"request {number}: {'ok' if await allowed(queen, customer, limit) else 'over the limit'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("customer", nargs="?", default="customer-42")
    parser.add_argument("--limit", type=int, default=3)
    parser.add_argument("--requests", type=int, default=5)
    options = parser.parse_args()
    trio.run(main, options.customer, options.limit, options.requests)
