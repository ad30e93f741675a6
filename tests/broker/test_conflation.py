"""Groups that take the newest message alone, where not all of them are in memory (`wire-messaging.md` 7.6)."""

from __future__ import annotations

import trio
from broker_kit import ack, configure, pop, push, started, txns

from queen_actors.storage.memory import MemoryStore


async def test_a_delay_hides_no_newer_message_that_is_sealed(autojump_clock: object) -> None:
    """Of what is sealed and out of the index the last one is the newest that is visible, while what is remembered is
    too young; not the oldest, and each one behind it after that."""
    store = MemoryStore(retain=True)
    async with started(store, record_cache_bytes=0) as broker:
        await configure(broker, delayed_processing_seconds=10, dedup_window_seconds=60)
        await push(broker, *(f"t{number}" for number in range(5)))
        await store.seal()
        await trio.sleep(7200)
        await broker.passivate()
        await push(broker, "young")
        found = await pop(broker, group="g", conflation=True, subscription_mode="all", batch=10)
        assert txns(found) == ["t4"]
        assert all(await ack(broker, found))
        assert txns(await pop(broker, group="g", conflation=True, batch=10)) == []
        await trio.sleep(11)
        assert txns(await pop(broker, group="g", conflation=True, batch=10)) == ["young"]
