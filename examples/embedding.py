"""The broker inside a Trio program: no server, no port, and everything durable in one directory.

    python examples/embedding.py ./embedded-data

A worker takes orders, and commits three things in one step: the order is done, its state, and the next event.
"""

from __future__ import annotations

import sys

import trio

from queen_actors import Queen, open_broker


async def worker(queen: Queen, orders: int) -> None:
    async with queen.queue("orders").group("billing").subscribe() as messages:
        for _ in range(orders):
            order = await messages.receive()
            amount = order.data["amount"]
            await (
                queen.transaction()
                .ack(order)
                .kv.put("orders", order.partition, {"state": "billed", "amount": amount}, forever=True)
                .queue("invoices")
                .partition(order.partition)
                .push([{"transactionId": f"invoice-{order.transaction_id}", "data": {"amount": amount}}])
                .commit()
            )
            print(f"billed {order.partition}")


async def main(directory: str) -> None:
    async with open_broker(directory) as queen:
        for number, amount in enumerate((120, 75, 310)):
            # The partition is the entity: its messages are handled in order, other entities' beside them
            order = {"transactionId": f"order-{number}", "data": {"amount": amount}}
            await queen.queue("orders").partition(f"customer-{number}").push([order])
        with trio.fail_after(10):
            await worker(queen, 3)
        invoices = await queen.queue("invoices").pop(batch=10, partitions=10, wait=True)
        state = await queen.kv.get("orders", "customer-2")
        print(f"{len(invoices)} invoices, customer-2 is {state.value['state']}")


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "./embedded-data")
