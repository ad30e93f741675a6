"""A reminder for later that is a message: scheduled, pushed back, cancelled, delivered.

    python examples/delayed_reminder.py

Scheduling the same key again moves the timer. It fires into its queue like any message; a subscriber has it at once.
"""

from __future__ import annotations

import os

import trio

from queen_actors import connect

URL = os.environ.get("QUEEN_URL", "http://127.0.0.1:6632")


async def main() -> None:
    async with connect(URL) as queen, queen.queue("reminders").subscribe() as messages:
        for cart in ("cart-1", "cart-2", "cart-3"):
            await queen.timers.schedule("reminders", cart, {"cart": cart}, delay="300ms", partition=cart)
        moved = await queen.timers.schedule(
            "reminders", "cart-2", {"cart": "cart-2"}, delay="900ms", partition="cart-2"
        )
        print(f"cart-2: {moved.status} to {moved.deliver_at}")
        cancelled = await queen.timers.cancel("reminders", "cart-3")
        print(f"cart-3: {cancelled.status}")
        with trio.fail_after(10):
            for _ in range(2):
                message = await messages.receive()
                print(f"{message.timer_key}: fired, and here at {message.created_at}")
                await message.ack()


if __name__ == "__main__":
    trio.run(main)
