"""The families of calls: keys, locks as they are on the wire, timers, ephemeral queues, and what an operator asks."""

from __future__ import annotations

from functools import partial
from types import TracebackType
from typing import Self

from queen_actors import client
from queen_actors.client import admin
from queen_actors.client.durations import Duration

from .face import Face, chains, gives, on_trio, waits, within
from .portal import Portal


class Watch(Face[client.Watch]):
    """`with queen.kv.watch("carts", prefix="customer-") as changes: for change in changes: ...`"""

    def __enter__(self) -> Self:
        self.portal.call(self.wrapped.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.portal.call(partial(self.wrapped.__aexit__, kind, error, trace))

    @property
    def rows(self) -> dict[str, client.KvResult]:
        """The keys as they are after the changes that were handed out."""
        return self.portal.call_sync(lambda: dict(self.wrapped.rows))

    @property
    def version(self) -> int | None:
        """How far that is."""
        return self.wrapped.version

    @property
    def waiting(self) -> int:
        """Changes that are here and not handed out yet."""
        return self.wrapped.waiting

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> client.KvChange:
        return self.receive()

    def receive(self, timeout: Duration | None = None) -> client.KvChange:
        """The next change. Raises TimeoutError when there is none in time, QueenError when the watch has ended."""
        return within(self.portal, timeout, self.wrapped.receive, "change")


def _watch(portal: Portal, wrapped: client.Watch) -> Watch:
    return Watch(portal, wrapped)


class Kv(Face[client.Kv]):
    """`queen.kv`. A missed condition is an answer, not an error: read `applied`, or the truth of the result."""

    op = client.Kv.op
    batch = waits(client.Kv.batch)
    get = waits(client.Kv.get)
    get_many = waits(client.Kv.get_many)
    get_prefix = waits(client.Kv.get_prefix)
    list_all = waits(client.Kv.list_all)
    put = waits(client.Kv.put)
    put_if_absent = waits(client.Kv.put_if_absent)
    once = waits(client.Kv.once)
    delete = waits(client.Kv.delete)
    incr = waits(client.Kv.incr)
    check = waits(client.Kv.check)
    watch = on_trio(client.Kv.watch, _watch)


class Locks(Face[client.Locks]):
    """`queen.locks`: for tools and tests. A program holds a lock by its handle, `queen.lock(...)`."""

    batch = waits(client.Locks.batch)
    acquire = waits(client.Locks.acquire)
    renew = waits(client.Locks.renew)
    release = waits(client.Locks.release)
    get = waits(client.Locks.get)


class TimerBuilder(Face[client.TimerBuilder]):
    """`queen.timer(queue)`: `.key(k).payload(p).after(timedelta(hours=24)).schedule()`."""

    key = chains(client.TimerBuilder.key)
    payload = chains(client.TimerBuilder.payload)
    after = chains(client.TimerBuilder.after)
    after_ms = chains(client.TimerBuilder.after_ms)
    partition = chains(client.TimerBuilder.partition)
    txn = chains(client.TimerBuilder.txn)
    schedule = waits(client.TimerBuilder.schedule)
    reschedule = waits(client.TimerBuilder.reschedule)
    cancel = waits(client.TimerBuilder.cancel)


def _builder(portal: Portal, wrapped: client.TimerBuilder) -> TimerBuilder:
    return TimerBuilder(portal, wrapped)


class Timers(Face[client.Timers]):
    """`queen.timers`. Scheduling a key again replaces its timer; the broker's clock decides when it is due."""

    batch = waits(client.Timers.batch)
    schedule = waits(client.Timers.schedule)
    reschedule = waits(client.Timers.reschedule)
    cancel = waits(client.Timers.cancel)
    peek = waits(client.Timers.peek)
    list = waits(client.Timers.list)
    list_all = waits(client.Timers.list_all)
    count = waits(client.Timers.count)
    timer = gives(client.Timers.timer, _builder)


class Ephemeral(Face[client.Ephemeral]):
    """`queen.ephemeral`. Nothing of it survives the broker, the options of a queue neither."""

    configure = waits(client.Ephemeral.configure)
    push = waits(client.Ephemeral.push)
    pop = waits(client.Ephemeral.pop)
    ack = waits(client.Ephemeral.ack)
    reset = waits(client.Ephemeral.reset)
    delete = waits(client.Ephemeral.delete)
    queues = waits(client.Ephemeral.queues)
    depth = waits(client.Ephemeral.depth)


class Admin(Face[admin.Admin]):
    """`queen.admin`. Answers are the wire's own objects; further query parameters go as keywords."""

    get_overview = waits(admin.Admin.get_overview)
    list_queues = waits(admin.Admin.list_queues)
    get_queue = waits(admin.Admin.get_queue)
    get_queue_depth = waits(admin.Admin.get_queue_depth)
    get_namespaces = waits(admin.Admin.get_namespaces)
    get_tasks = waits(admin.Admin.get_tasks)
    list_consumer_groups = waits(admin.Admin.list_consumer_groups)
    get_consumer_group = waits(admin.Admin.get_consumer_group)
    get_lagging_consumers = waits(admin.Admin.get_lagging_consumers)
    delete_consumer_group = waits(admin.Admin.delete_consumer_group)
    delete_consumer_group_for_queue = waits(admin.Admin.delete_consumer_group_for_queue)
    seek_consumer_group = waits(admin.Admin.seek_consumer_group)
    move_subscription = waits(admin.Admin.move_subscription)
    list_messages = waits(admin.Admin.list_messages)
    get_message = waits(admin.Admin.get_message)
    delete_message = waits(admin.Admin.delete_message)
    retry_message = waits(admin.Admin.retry_message)
    get_traces_for_message = waits(admin.Admin.get_traces_for_message)
    get_traces_by_name = waits(admin.Admin.get_traces_by_name)
    get_trace_names = waits(admin.Admin.get_trace_names)
    health = waits(admin.Admin.health)
