"""An ephemeral queue: messages in memory alone, which survive nothing (`wire-messaging.md`, section 18).

Its messages are in one order over all its partitions, which says what is oldest; in each partition they come in that
order. Every group owes each message that came after it joined, and a message leaves when no group owes it any more, or
when the queue's bounds or its age say so. As long as there is no group, messages wait for the first one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from msgspec import Struct

from queen_actors import limits
from queen_actors.values import QUEUE_MODE, SECOND

from .deliveries import Group, Leases, Message


class Options(Struct, frozen=True):
    """The bounds of one queue; times in microseconds, 0 for none. `window` and `window_count`: how long, and for how
    many messages, a waiting pop lets its batch grow."""

    max_bytes: int = limits.EPHEMERAL_QUEUE_BYTES
    max_length: int = limits.EPHEMERAL_QUEUE_MESSAGES
    drop_oldest: bool = False
    ttl: int = 0
    lease: int = limits.EPHEMERAL_LEASE_SECONDS * SECOND
    retry_limit: int = limits.EPHEMERAL_RETRIES
    window: int = 0
    window_count: int = 0


class Delivery(Struct, frozen=True):
    """One message on its way to a consumer; `attempts` were made before this one."""

    number: int
    partition: str
    attempts: int
    payload: bytes


class Drops(Struct):
    """How many messages were lost so far: to the bounds, to their age, and (by one group) to the retry limit."""

    bounds: int = 0
    ttl: int = 0
    retry: int = 0


class EphemeralPop(Struct, frozen=True):
    """`wait` in microseconds, 0 answers at once; `partition` None takes from all of them in turn."""

    queue: str
    partition: str | None = None
    group: str = QUEUE_MODE
    batch: int = 1
    wait: int = 0
    auto_ack: bool = False


class EphemeralAck(Struct, frozen=True):
    """One acknowledgment by a message's id; not `completed` sends it round again."""

    id: str
    completed: bool


class EphemeralMessage(Struct, frozen=True):
    """A delivered message; `attempts` were made before."""

    id: str
    partition: str
    attempts: int
    payload: bytes


class EphemeralView(Struct, frozen=True):
    """One queue with its counts."""

    queue: str
    declared: bool
    length: int
    bytes: int
    partitions: int
    groups: int
    drops: Drops
    options: Options


class PartitionDepth(Struct, frozen=True):
    partition: str
    pending: int
    bytes: int


class GroupDepth(Struct, frozen=True):
    """`skipped`: messages that went before the group had them."""

    group: str
    pending: int
    skipped: int


class Depth(Struct, frozen=True):
    """What waits to be delivered to one group or, when none was named, to the one that is furthest behind."""

    pending: int
    partitions: tuple[PartitionDepth, ...]
    groups: tuple[GroupDepth, ...]


class EphemeralQueue:
    """The whole of one queue. Time and the messages' numbers are arguments; `settle` first, then anything else."""

    def __init__(self, name: str, now: int, options: Options | None = None) -> None:
        self.name = name
        self.options = options or Options()
        self.declared = options is not None
        self.touched = now
        self.bytes = 0
        self.drops = Drops()
        self._messages: OrderedDict[int, Message] = OrderedDict()
        self._partitions: dict[str, list[int]] = {}
        """Messages and payload bytes of each partition that has some."""
        self._groups: dict[str, Group] = {}
        self._leases = Leases()

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def cost(self) -> int:
        """What it takes of the broker's memory, nearly."""
        cursors = sum([len(group.cursors) for group in self._groups.values()])
        messages = self.bytes + len(self) * limits.EPHEMERAL_MESSAGE_COST
        return messages + cursors * limits.EPHEMERAL_CURSOR_COST + limits.EPHEMERAL_QUEUE_COST

    @property
    def partitions(self) -> int:
        return len(self._partitions)

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(self._groups)

    def available(self, group: str, partition: str | None) -> int:
        """How many messages can be taken now."""
        found = self._groups.get(group)
        if found is None:
            return len(self)
        if partition is None:
            return found.available
        cursor = found.cursors.get(partition)
        return 0 if cursor is None else cursor.available

    def enough(self, available: int, batch: int, waited: int) -> bool:
        """May a waiting pop answer with what is available, the first of it for `waited` microseconds?"""
        options = self.options
        if available >= batch or not (options.window or options.window_count):
            return available > 0
        if options.window and available and waited >= options.window:
            return True
        return bool(options.window_count) and available >= options.window_count

    def due(self) -> int | None:
        """When `settle` has something to do; None when nothing will come of itself."""
        ends = [self._leases.next_end]
        oldest = next(iter(self._messages.values()), None)
        if self.options.ttl and oldest is not None:
            ends.append(oldest.at + self.options.ttl)
        return min((end for end in ends if end is not None), default=None)

    # -- time ------------------------------------------------------------------------------------------------------

    def settle(self, now: int) -> list[tuple[str, str]]:
        """What time has done: old messages go, and what consumers have had too long comes back. Returns the (group,
        partition) of each message that did."""
        if self.options.ttl:
            while self._messages:
                oldest = next(iter(self._messages.values()))
                if oldest.at + self.options.ttl > now:
                    break
                self.drops.ttl += 1
                self._lose(oldest)
        back: list[tuple[str, str]] = []
        for group, number in self._leases.due(now):
            message = self._messages[number]
            self._leases.remove(group, message)
            if self._return(group, message):
                back.append((group, message.partition))
        return back

    # -- messages in -----------------------------------------------------------------------------------------------

    def excess(self, sizes: Sequence[int]) -> int | None:
        """How many of the oldest messages must go before these fit; None: they do not, and nothing is dropped."""
        length, size = len(self) + len(sizes), self.bytes + sum(sizes)
        if len(sizes) > self.options.max_length or sum(sizes) > self.options.max_bytes:
            return None
        count = 0
        if length > self.options.max_length or size > self.options.max_bytes:
            if not self.options.drop_oldest:
                return None
            for message in self._messages.values():
                if length <= self.options.max_length and size <= self.options.max_bytes:
                    break
                count, length, size = count + 1, length - 1, size - len(message.payload)
        return count

    def freed(self, count: int) -> int:
        """What dropping the `count` oldest gives back of `cost`."""
        messages = self._messages.values()
        sizes = [len(message.payload) for message, _ in zip(messages, range(count), strict=False)]
        return sum(sizes) + len(sizes) * limits.EPHEMERAL_MESSAGE_COST

    def push(self, partition: str, payloads: Sequence[bytes], first: int, now: int, excess: int) -> None:
        """Append messages, numbered from `first` on, which is above every number before; `excess` of the oldest go."""
        for _ in range(excess):
            self.drops.bounds += 1
            self._lose(next(iter(self._messages.values())))
        place = self._partitions.setdefault(partition, [0, 0])
        for number, payload in enumerate(payloads, first):
            message = Message(number, partition, payload, now, len(self._groups))
            self._messages[number] = message
            place[0] += 1
            place[1] += len(payload)
            self.bytes += len(payload)
            for group in self._groups.values():
                group.cursor(partition).ready.append(message)
                group.more(partition)

    def join(self, group: str) -> None:
        """The group is there from now on; it owes every message that waits."""
        if group in self._groups:
            return
        joined = self._groups[group] = Group()
        for message in self._messages.values():
            message.owed += 1
            joined.cursor(message.partition).ready.append(message)
            joined.more(message.partition)

    # -- messages out ----------------------------------------------------------------------------------------------

    def take(self, group: str, partition: str | None, batch: int, now: int, auto_ack: bool) -> list[Delivery]:
        """Up to `batch` messages for a group that has joined, of one partition or of those whose turn it is; with
        `auto_ack` they are finished, otherwise leased."""
        joined = self._groups[group]
        if partition is not None:
            return self._take(group, joined, partition, batch, now, auto_ack)
        taken: list[Delivery] = []
        while joined.turn and len(taken) < batch:
            name = next(iter(joined.turn))
            joined.turn.move_to_end(name)
            taken += self._take(group, joined, name, batch - len(taken), now, auto_ack)
        return taken

    def _take(self, group: str, joined: Group, partition: str, count: int, now: int, auto_ack: bool) -> list[Delivery]:
        cursor = joined.cursors.get(partition)
        taken: list[Delivery] = []
        while cursor is not None and len(taken) < count and cursor.available:
            message = cursor.take()
            joined.less(partition)
            taken.append(Delivery(message.number, partition, cursor.attempts.get(message.number, 0), message.payload))
            if auto_ack:
                self._finish(joined, message)
            else:
                self._leases.add(group, message, now + self.options.lease)
        joined.tidy(partition, self._leases.held(group, partition))
        return taken

    def ack(self, group: str, partition: str, number: int, completed: bool) -> str:
        """What becomes of a message that the group was given: acked (also when its retries are spent, and it is
        dropped), redelivered, or unknown, when it is not with a consumer of the group."""
        message = self._messages.get(number)
        if message is None or message.partition != partition or not self._leases.remove(group, message):
            return "unknown"
        if completed:
            self._finish(self._groups[group], message)
            self._groups[group].tidy(message.partition, self._leases.held(group, message.partition))
            return "acked"
        return "redelivered" if self._return(group, message) else "acked"

    def reset(self) -> int:
        """Drop every message and lease; the groups stay. Returns how many messages that were."""
        count = len(self)
        self._messages.clear()
        self._partitions.clear()
        self._leases.clear()
        self.bytes = 0
        for name in self._groups:
            self._groups[name] = Group()
        return count

    def _return(self, group: str, message: Message) -> bool:
        """Not finished: it comes back, unless its retries are spent."""
        joined = self._groups[group]
        cursor = joined.cursors[message.partition]
        attempts = cursor.attempts.get(message.number, 0)
        if attempts >= self.options.retry_limit:
            self.drops.retry += 1
            self._finish(joined, message)
            joined.tidy(message.partition, self._leases.held(group, message.partition))
            return False
        cursor.attempts[message.number] = attempts + 1
        cursor.put_back(message)
        joined.more(message.partition)
        return True

    def _finish(self, group: Group, message: Message) -> None:
        """One group owes it no more."""
        group.cursors[message.partition].attempts.pop(message.number, None)
        message.owed -= 1
        if not message.owed:
            self._remove(message)

    def _lose(self, message: Message) -> None:
        """The oldest message goes, whoever owes it."""
        for name, group in self._groups.items():
            cursor = group.cursors.get(message.partition)
            if cursor is None:
                continue
            if cursor.lose(message):
                group.less(message.partition)
                group.skipped += 1
            self._leases.remove(name, message)
            group.tidy(message.partition, self._leases.held(name, message.partition))
        self._remove(message)

    def _remove(self, message: Message) -> None:
        del self._messages[message.number]
        self.bytes -= len(message.payload)
        place = self._partitions[message.partition]
        place[0] -= 1
        place[1] -= len(message.payload)
        if not place[0]:
            del self._partitions[message.partition]

    # -- counts ----------------------------------------------------------------------------------------------------

    def depth(self, group: str | None) -> Depth:
        """Counts for one group; None: for the named group that is furthest behind, else for queue mode, else all."""
        partitions = tuple(
            PartitionDepth(name, self._pending(group, name), size) for name, (_, size) in self._partitions.items()
        )
        groups = tuple(GroupDepth(name, found.available, found.skipped) for name, found in self._groups.items())
        return Depth(self._pending(group, None), partitions, groups)

    def _pending(self, group: str | None, partition: str | None) -> int:
        everything = len(self) if partition is None else self._partitions[partition][0]
        if group is not None:
            return self.available(group, partition) if group in self._groups else everything
        named = [name for name in self._groups if name != QUEUE_MODE] or list(self._groups)
        return max((self.available(name, partition) for name in named), default=everything)
