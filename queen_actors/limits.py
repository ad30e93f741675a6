"""Every bound of the broker, each with its reason or its precedent. Sizes in bytes, times as named."""

from __future__ import annotations

MIB = 1 << 20

# The wire's (wire-kv-locks-timers-transactions.md section 8, wire-messaging.md sections 3, 6, 7)
BODY_BYTES = 64 * MIB
NAME_BUDGET_BYTES = 447  # tenant + queue + max(group, partition or timerKey): the reference's composite key
TENANT_BYTES = 36  # the default tenant's UUID, which takes its part of the budget
TXN_BYTES = 65_535  # a u16 length on the binary wire
KV_OPS_PER_CALL = 256
KV_OPS_PER_TRANSACTION = 64
KV_KEYS_PER_CALL = 1024
KV_KEYS_PER_TRANSACTION = 256
KV_KEY_BYTES = 512
KV_VALUE_BYTES = 65_536
KV_READ_BYTES = 4 * MIB  # what the reads of one call may return
PRECONDITION_VALUE_CHARS = 4096  # over it the current value is left out of a refusal
PREFIX_PAGE_DEFAULT, PREFIX_PAGE_MAX = 100, 1000
LOCK_OPS_PER_CALL = 64
LOCK_NAME_BYTES = LOCK_OWNER_BYTES = 256
LOCK_LIMIT_MAX = 1024
LOCK_KEYS_PER_CALL = 4096
LOCK_GET_COST = 1000
LOCK_WAITERS = 10_000  # in the line of one lock
LOCK_WAIT_SECONDS_MAX = 3600  # our own: websocket.md 6 names no bound
INT64_MAX = (1 << 63) - 1  # what the log holds
TTL_SECONDS_MAX = 10**12  # decisions.md: beyond it an expiry is no date
TIMER_OPS_PER_CALL = 256
TIMER_PAYLOAD_BYTES = MIB
TIMER_HORIZON_US = 90 * 86_400 * 1_000_000
TIMER_PAGE_DEFAULT, TIMER_PAGE_MAX = 100, 1000
TIMER_COUNT_PREFIX_BYTES = 128
TIMER_FIRE_COUNT, TIMER_FIRE_BYTES = 256, 4 * MIB  # one step of firing
TIMER_ATTEMPTS = 5  # then the message is dead-lettered
TRANSACTION_POSITIONS = 16_384
TRANSACTION_STEPS = 10_000  # our own: what one frame of the log should hold of one caller's work
CALL_DEADLINE_SECONDS = 30.0
POP_BATCH_DEFAULT, POP_BATCH_MAX = 200, 10_000
POP_BYTES = 8 * MIB  # payload bytes of one pop: what a client's 30 s can carry
POP_PARTITIONS_MAX = 64
POPS_AT_ONCE, POPS_AT_ONCE_BYTES = 64, MIB // 4  # pops of one subscriber decided in one go: a few milliseconds; past
# the bytes no other follows, so that a peer is sent little more than there is room for
POP_WAIT_MS_DEFAULT, POP_WAIT_MS_MAX = 30_000, 60_000
PUSH_ITEMS = 50_000
ACKS_PER_CALL = 50_000
FETCH_ENTRIES, FETCH_RECORDS, FETCH_BYTES = 1024, 10_000, 8 * MIB  # an offset read (16)
FETCH_WAIT_MS_MAX = 30_000
CHANGED_PAGE_MAX = 1000
MESSAGES_PAGE_DEFAULT, MESSAGES_PAGE_MAX = 200, 1000
MESSAGES_OFFSET_MAX = 100_000  # how far a list can be paged: its rows are sorted in memory
MESSAGES_SINCE_SECONDS = 3600  # a list without a start shows the last hour
TRACES_PAGE_DEFAULT, TRACES_PAGE_MAX = 200, 1000
DLQ_PAGE_DEFAULT, DLQ_PAGE_MAX = 100, 1000
ACK_WINDOW_SECONDS = 900  # how long a consumed message's ack can still be recognised, at the least
STREAM_OPS = 10_000  # state ops of one cycle, and keys of one read
STREAM_KEY_BYTES = 2048  # two names of the pipeline's own and a key of its user's
STREAM_STATE_BYTES = 32 * MIB  # of one query and partition: a worker reads all of it in every cycle
EPHEMERAL_BYTES = 256 * MIB  # of all ephemeral queues together
EPHEMERAL_QUEUE_BYTES, EPHEMERAL_QUEUE_MESSAGES = 16 * MIB, 10_000  # of a queue that nobody configured
EPHEMERAL_QUEUE_MESSAGES_MAX = 1_000_000
EPHEMERAL_QUEUES = 100_000
EPHEMERAL_GROUPS = 1_000  # of one queue: each push is handed to every one of them
EPHEMERAL_MESSAGE_COST, EPHEMERAL_CURSOR_COST, EPHEMERAL_QUEUE_COST = 400, 1_250, 1_500  # bytes, as measured
EPHEMERAL_ITEMS = 10_000  # messages of a push or a pop, acks of a call
EPHEMERAL_LEASE_SECONDS, EPHEMERAL_LEASE_SECONDS_MAX = 30, 86_400
EPHEMERAL_RETRIES, EPHEMERAL_RETRIES_MAX = 5, 1_000
EPHEMERAL_WINDOW_MS_MAX = 60_000
EPHEMERAL_WAIT_MS_MAX = 300_000
EPHEMERAL_IDLE_SECONDS = 300  # then a queue that nobody configured is forgotten
TRACE_SECONDS = 7 * 86_400
TRACES = 100_000  # trace events kept readable: a window, not an archive

# The broker's own
LOG_BACKLOG_BYTES = 64 * MIB  # effects that wait for the disk; past it callers get 429
GROUP_ENTRIES, GROUP_BYTES = 2_000, 4 * MIB  # one group commit: bounds the latency that one group adds
PARKED_POPS_PER_QUEUE = 20_000
RECORD_CACHE_BYTES = 64 * MIB  # sealed messages kept in memory for readers
STEP_EFFECTS = 500  # of a command on a whole queue: what one turn of the event loop has time for, 5 to 10 ms
JOURNAL_ROLL_BYTES = 64 * MIB  # duckdb-storage.md: about 265,000 messages, sealed in under a second
JOURNAL_ROLL_SECONDS = 3600.0
UNSEALED_BYTES = 512 * MIB  # journals that wait to be sealed, their messages in memory; past it commits slow down
SNAPSHOT_BYTES = 64 * MIB  # log since the last snapshot: bounds recovery
ACTOR_FAILURES, ACTOR_FAILURE_SECONDS = 5, 60.0  # an actor that fails so often stops the broker
SHUTDOWN_SECONDS = 10.0

# WebSocket (websocket.md)
WS_FRAME_BYTES = 8 * MIB
WS_INCOMING_BYTES = 512 * MIB  # of messages that are being received, on all connections; past it who has begun a large
# one is closed
WS_PEER_BYTES = 4 * MIB  # what may wait to be written to one peer
WS_HEARTBEAT_SECONDS = 20.0
WS_AUTH_SECONDS = 5.0
WS_WRITE_SECONDS = 10.0
WS_PIPELINE = 1024  # requests of one connection under way
WS_PIPELINE_BYTES = 64 * MIB  # and what their frames take: one HTTP body
WS_POPS = 64  # pops of one connection under way: each may come back with POP_BYTES
WS_SUBSCRIPTIONS = 1024
WS_SUB_CHARS = 256  # a subscription's name
WS_EVENT_BYTES = MIB // 2  # messages of one event: under the 1 MiB that common clients take without being told
WS_SPELLINGS_BYTES = 16 * MIB  # texts of messages and changes that several peers get
WS_LINGER_SECONDS = 5.0  # how long a close waits for the peer's own
WS_LAST_WORDS_SECONDS = 0.2  # what a dead or stuck peer had sent is still applied within this time
WS_GIVE_BACK_SECONDS = 5.0  # how long the end of a connection waits for its leases' return to be durable
WS_CREDIT_DEFAULT, WS_CREDIT_MAX = 100, 100_000
WS_TAIL_CREDIT_DEFAULT = 1_000
WS_TAIL_PARTITIONS = 100_000  # of a tail's queue: its reply names each of them
WS_WATCHES = 1024
WS_LOCK_WAITS = 256  # acquires of one connection that wait: each is a request under way (WS_PIPELINE)
WATCH_ROWS, WATCH_BYTES = 10_000, 16 * MIB  # what a watch begins with: one frame, and a picture that a client holds
WATCH_QUEUE, WATCH_QUEUE_BYTES = 1_000, MIB  # changes that wait for one watcher; past it the latest of each key
WATCH_EVENT = 256  # changes of one event
KV_HISTORY, KV_HISTORY_BYTES = 100_000, 32 * MIB  # changes that a watch can go on from
WS_CONNECTIONS = 10_000

# HTTP
HTTP_CONNECTIONS = 20_000  # WebSockets included; past it a connection is answered 503
DESCRIPTORS_KEPT = 384  # of those the process may have, these are not for connections: 64 segments that are read, those
# of a merge and a snapshot, the journals, and connections that are being refused
HTTP_HEAD_BYTES = 64 * 1024
HTTP_HEAD_SECONDS = 10.0
HTTP_BODY_SECONDS = 60.0  # a body of 64 MiB needs about 1 MiB/s
HTTP_BODIES_BYTES = 512 * MIB  # bodies of all requests under way; past it a request is answered 429
HTTP_CHUNK_LINE_BYTES = 256  # of a chunked body: its size, and extensions that nobody uses
HTTP_CHUNK_FRAMING_BYTES = 16 * 1024  # what the lines of a chunked body may take beyond what it carries
HTTP_PIPELINE_BYTES = 64 * 1024  # requests behind a parked pop: more of them end the connection
HTTP_ANSWERS_BYTES = 64 * 1024  # answers to pipelined requests that are joined into one write
HTTP_ANSWERS_SECONDS = 0.001  # how long the first of them waits for the others
HTTP_KEEP_ALIVE_SECONDS = 75.0  # longer than the idle pools of common clients and proxies keep a connection
HTTP_CHUNK_BYTES = 64 * 1024  # one write: little enough to see progress on a slow line
HTTP_WRITE_SECONDS = 30.0  # without progress of one chunk; then the peer has stopped reading
HTTP_LINGER_SECONDS = 2.0  # how long a closed connection is still read, so that the peer gets the last answer
