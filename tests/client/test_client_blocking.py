"""The blocking client says what the Trio client says, over both transports."""

from __future__ import annotations

import inspect
from datetime import timedelta
from pathlib import Path

import pytest
from blocking_kit import Opens, both

from queen_actors import BadRequest, DataDirectoryError, LockNotHeldError, TransactionError, blocking, client
from queen_actors.blocking import families, transaction
from queen_actors.client import admin
from queen_actors.client import transaction as client_transaction

LOCK_ATTRIBUTES = {"name", "owner", "limit", "ttl_seconds", "lost", "lost_reason"}
HOLDING = {"adopt", "leave", "now", "start", "told_lost", "undo_later"}
TALK = {"disconnected", "event", "opened", "opening", "patience"}
FACES = [
    (blocking.Queen, client.Queen, {"caller", "extend", "start", "aclose"}, set()),
    (blocking.Queue, client.Queue, set(), set()),
    (blocking.Message, client.Message, set(), set()),
    (blocking.Subscription, client.Subscription, {"deliver", "handled", "lost"}, {"workers"}),
    (blocking.DeadLetters, client.DeadLetters, set(), set()),
    (blocking.Kv, client.Kv, {"one"}, set()),
    (blocking.Locks, client.Locks, set(), set()),
    (blocking.Timers, client.Timers, {"new_id"}, set()),
    (blocking.TimerBuilder, client.TimerBuilder, {"named", "scheduled"}, set()),
    (blocking.Ephemeral, client.Ephemeral, set(), set()),
    (families.Admin, admin.Admin, set(), set()),
    (blocking.Lock, client.Lock, {"make_room", "release_quietly", "settled", "refused", *HOLDING}, LOCK_ATTRIBUTES),
    (blocking.Tail, client.Tail, {*TALK}, {"positions"}),
    (blocking.Watch, client.Watch, {*TALK}, {"rows", "version"}),
    (blocking.Transaction, client.Transaction, {"add_push", "add_kv", "add_timer", "new_id"}, set()),
    (transaction.TransactionQueue, client_transaction.TransactionQueue, set(), set()),
    (transaction.TransactionKv, client_transaction.TransactionKv, {"add"}, set()),
    (transaction.TransactionTimer, client_transaction.TransactionTimer, {"named", "scheduled"}, set()),
]
"""A face, what it stands in front of, what of that is not for users, and attributes of its instances."""


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(("face", "trio_class", "inner", "attributes"), FACES)
def test_the_surface_is_the_trio_clients(face: type, trio_class: type, inner: set[str], attributes: set[str]) -> None:
    """Every public method is there, with the parameters of the Trio client's: what is added there is added here."""
    ours = public(face) - {"portal", "wrapped"}
    assert ours == (public(trio_class) | attributes) - inner
    for name in ours - attributes:
        method, original = getattr(face, name), getattr(trio_class, name)
        if not inspect.isfunction(original):
            continue
        assert not inspect.iscoroutinefunction(method)
        there, here = inspect.signature(original).parameters, inspect.signature(method).parameters
        extra = {"timeout"} if name in ("receive", "receive_batch") else set()
        assert [one for one in here if one not in extra] == list(there), name
        assert {one.default for one in there.values()} <= {one.default for one in here.values()}, name
        assert method.__doc__ or not original.__doc__, name


@both
def test_the_seeds_lock_example(opens: Opens) -> None:
    """The lock example of the seed page, without its awaits."""
    with opens() as queen:
        lock = queen.lock("daily-report", ttl_seconds=30)
        if lock.acquire():
            try:
                queen.transaction().guard(lock).queue("reports").push(
                    [{"transactionId": "report-2026-10-22", "data": {"day": "2026-10-22"}}]
                ).commit()
            finally:
                lock.release()
        assert not queen.locks.get("daily-report").held
        assert [message.data for message in queen.queue("reports").pop()] == [{"day": "2026-10-22"}]
        with pytest.raises(LockNotHeldError):
            queen.transaction().guard(lock).queue("reports").push(1).commit()


@both
def test_the_seeds_kv_example(opens: Opens) -> None:
    """Put, get, compare and set, and a counter with a ceiling."""
    with opens() as queen:
        queen.kv.put("carts", "customer-42", {"items": 3}, ttl=timedelta(days=7))
        cart = queen.kv.get("carts", "customer-42")
        assert queen.kv.put("carts", "customer-42", {"items": 4}, ttl=timedelta(days=7), expect=cart["version"])
        lost = queen.kv.put("carts", "customer-42", {"items": 5}, ttl=timedelta(days=7), expect=cart["version"])
        assert (lost.applied, lost.reason, lost.value) == (False, "version", {"items": 4})
        assert queen.kv.incr("limits", "api", delta=100, max=100, ttl=timedelta(minutes=1))
        assert queen.kv.incr("limits", "api", delta=1, max=100, ttl=timedelta(minutes=1)).reason == "limit"
        assert [row.value for row in queen.kv.batch([queen.kv.op.get("limits", "api")])] == [100]
        assert [row.key for row in queen.kv.list_all("carts", "customer-")] == ["customer-42"]


@both
def test_a_step_that_does_everything(opens: Opens) -> None:
    """Ack, marker, push, key and timer in one commit; the timer arrives."""
    with opens() as queen:
        queen.queue("orders").partition("order-7").push({"data": {"id": 7}, "transactionId": "order-7-paid"})
        with queen.queue("orders").subscribe(group="billing") as messages:
            result = (
                queen.transaction()
                .ack(messages.receive())
                .once("paid", "order-7", ttl=timedelta(days=1))
                .queue("receipts")
                .partition("customer-123")
                .push([{"data": {"order": 7}, "transactionId": "receipt-7"}])
                .kv.put("orders", "order-7", {"status": "paid"}, ttl=timedelta(days=30))
                .timer("reminders")
                .key("order-7")
                .payload({"orderId": 7})
                .partition("order-7")
                .after(timedelta(milliseconds=50))
                .schedule()
                .commit()
            )
            assert result
        assert queen.kv.get("orders", "order-7").value == {"status": "paid"}
        (receipt,) = queen.queue("receipts").pop()
        assert (receipt.data, receipt.partition) == ({"order": 7}, "customer-123")
        (reminder,) = queen.queue("reminders").pop(wait=60)
        assert reminder.data == {"orderId": 7}
        assert reminder.ack()
        assert queen.queue("orders").pop(group="billing") == []


@both
def test_timers(opens: Opens) -> None:
    """Scheduled, moved, read and cancelled, by call and by builder."""
    with opens() as queen:
        assert queen.timers.schedule("q", "k", {"n": 1}, delay="24h").status == "scheduled"
        assert queen.timer("q").key("k").payload({"n": 2}).after("48h").schedule().status == "rescheduled"
        assert queen.timers.peek("q", "k").data == {"n": 2}
        assert queen.timers.count("q", "k") == 1
        assert queen.timer("q").key("k").cancel()
        assert queen.timers.list_all("q") == []


@both
def test_iterating_a_subscription(opens: Opens) -> None:
    """`for message in messages`, every verdict, and what was not settled comes again after leaving."""
    with opens() as queen:
        queue = queen.queue("q").group("g")
        queue.config({"retryLimit": 0}).create()
        queue.push(["done", "bad", "open"])
        seen = []
        with queue.subscribe() as messages:
            for message in messages:
                seen.append(message.data)
                if message.data == "done":
                    assert message.ack()
                elif message.data == "bad":
                    assert message.dead_letter("it is bad").dlq
                else:
                    assert message.renew(60)
                    assert messages.lost_reason(message) is None
                    break
        assert seen == ["done", "bad", "open"]
        (again,) = queue.pop(wait=60)
        assert (again.data, again.delivery_attempt) == ("open", 2)
        assert [one["errorMessage"] for one in queue.dlq().limit(10).get()["messages"]] == ["it is bad"]
        assert queen.renew([again])[0].success
        assert queen.ack(again, "retry")


@both
def test_batches_and_timeouts(opens: Opens) -> None:
    """A batch is settled by its last; a receive that waits for nothing says so in time."""
    with opens() as queen:
        queen.queue("q").push(list(range(20)))
        with queen.queue("q").subscribe(group="g") as messages:
            got: list[int] = []
            for batch in messages.batches(most=7):
                got += [message.data for message in batch]
                assert messages.ack(batch)
                if len(got) == 20:
                    break
            assert got == list(range(20))
            with pytest.raises(TimeoutError, match="no message within"):
                messages.receive(timeout="50ms")
            queen.queue("q").push("later")
            assert messages.receive(timeout=60).data == "later"


@both
def test_consuming_with_a_handler(opens: Opens) -> None:
    """A handler that returns acks, one that raises nacks; it may use the client."""
    with opens() as queen:
        queen.queue("q").config({"retryLimit": 0, "dlqAfterMaxRetries": True}).create()
        queen.queue("q").push(["good", "bad", "last"])

        def handle(message: blocking.Message) -> None:
            queen.kv.put("seen", f"m{message.offset}", message.data, forever=True)
            if message.data == "bad":
                raise ValueError("no good")

        queen.queue("q").consume(handle, group="g", limit=3)
        assert [row.value for row in queen.kv.list_all("seen", "m")] == ["good", "bad", "last"]
        (dead,) = queen.queue("q").dlq("g").get()["messages"]
        assert dead["errorMessage"] == "ValueError: no good"


@both
def test_errors_come_out_as_they_are(opens: Opens) -> None:
    """The broker's and the client's own errors, and the block's."""
    mine = KeyError("mine")

    def block() -> None:
        with opens() as queen:
            with pytest.raises(BadRequest) as bad:
                queen.kv.put("Not a namespace", "k", 1, forever=True)
            assert bad.value.reason == "kv_bad_namespace"
            step = queen.transaction().queue("q").push({"data": 1, "transactionId": "once"})
            assert step.commit()
            with pytest.raises(TransactionError) as again:
                step.commit()
            assert again.value.reason == "duplicate"
            with pytest.raises(ValueError, match="exactly one"):
                queen.kv.put("n", "k", 1)
            raise mine

    with pytest.raises(KeyError) as caught:
        block()
    assert caught.value is mine


def test_what_cannot_be_opened_says_so(tmp_path: Path) -> None:
    """A bad address, and a data directory that is taken."""
    with pytest.raises(ValueError, match="must look like"), blocking.connect("ftp://host"):
        pass
    with (
        blocking.open_broker(tmp_path / "data"),
        pytest.raises(DataDirectoryError, match="in use"),
        blocking.open_broker(tmp_path / "data"),
    ):
        pass


def test_a_directory_is_found_again(tmp_path: Path) -> None:
    """What a block has stored is there for the next one."""
    with blocking.open_broker(tmp_path / "data") as queen:
        queen.kv.put("n", "k", "kept", forever=True)
    with blocking.open_broker(tmp_path / "data") as queen:
        assert queen.kv.get("n", "k").value == "kept"
