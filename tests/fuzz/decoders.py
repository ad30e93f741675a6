"""Bytes against everything that reads bytes: each decoder gives a value, or raises what it says that it raises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import jwt
import msgspec
import zstandard

from queen_actors.actors.cipher import Cipher, parse_key
from queen_actors.api.access import Access
from queen_actors.api.auth import BearerTokens
from queen_actors.api.messages import Request
from queen_actors.api.protocol import OPERATIONS
from queen_actors.api.routes import TABLE, Router
from queen_actors.client.address import address_of
from queen_actors.domain.effects import Appended, Counters, Entry, KvPut, Record, decode_entries, encode_entries
from queen_actors.errors import DataDirectoryError, QueenError
from queen_actors.serve.requests import Refused, RequestReader
from queen_actors.storage.directory import noted_slots
from queen_actors.storage.fileops import FileOps
from queen_actors.storage.journal import JournalReader, JournalWriter
from queen_actors.values import parse_instant
from queen_actors.wire import (
    ack,
    binary,
    ephemeral,
    frames,
    groups,
    kv,
    letters,
    locks,
    pop,
    push,
    queue,
    reads,
    socket,
    streams,
    timers,
    transaction,
    watch,
)

from .mutate import ODD_TEXTS, as_json, damaged, mutated, odd_value
from .summary import Summary

HORIZON = 90 * 86_400 * 1_000_000
SECRET = "a secret of thirty-two bytes or so!!"
KEY = "00" * 32
SLOW_SECONDS = 2.0
"""Of this process's time, for one input: longer is harm to all the others."""
REFUSALS = frozenset((400, 401, 403, 404, 413, 431, 503))


class Decoder(NamedTuple):
    """What is called, what it is made to read, and what it may raise. `texts`: its inputs are JSON."""

    call: Callable[[bytes], object]
    seeds: Sequence[bytes]
    raises: tuple[type[Exception], ...] = (QueenError,)
    texts: bool = False


def _json(call: Callable[[bytes], object], *values: Any) -> Decoder:
    return Decoder(call, [json.dumps(value).encode() for value in values], texts=True)


def _bodies() -> dict[str, Decoder]:
    """The bodies of the HTTP routes."""
    example = {name: dict(operation.request) for name, operation in OPERATIONS.items()}
    ops = {
        "kv": [
            {"op": "get", "ns": "n", "key": "k"},
            {"op": "getMany", "ns": "n", "keys": ["a", "b"]},
            {"op": "getPrefix", "ns": "n", "prefix": "a", "after": "b", "limit": 5, "keysOnly": True},
            {
                "op": "put",
                "ns": "n",
                "key": "p",
                "value": {"a": [1, "x"]},
                "ttlSeconds": 5,
                "expect": 3,
                "required": True,
            },
            {"op": "incr", "ns": "n", "key": "i", "delta": 1.5, "min": -1e3, "max": 10, "forever": True},
            {"op": "check", "ns": "n", "key": "c", "expect": 0},
        ],
        "locks": [
            {"op": "acquire", "name": "l", "ttlSeconds": 30, "owner": "w", "limit": 3},
            {"op": "renew", "name": "m", "token": 5, "slot": 0, "ttlSeconds": 3},
            {"op": "get", "name": "n"},
        ],
    }
    acks = {"transactionId": "t", "partitionId": "7", "status": "completed", "leaseId": "l", "error": {"a": 1}}
    bundle = {
        "operations": [*example["transaction"]["operations"], {"type": "ack", **acks, "consumerGroup": "g"}],
        "kv": ops["kv"][3:],
        "timers": example["timers"]["operations"],
        "positions": [{"queue": "q", "consumerGroup": "g", "offset": 3, "partition": "p"}],
        "requiredLeases": ["l"],
    }
    return {
        "push": _json(push.parse_push, example["push"]),
        "ack": _json(ack.parse_acks, acks, {"acknowledgments": [acks], "consumerGroup": "g"}),
        "extend": _json(ack.parse_extend, {"seconds": 60}, None),
        "kv": _json(kv.parse_kv, ops["kv"], {"operations": ops["kv"][:2]}),
        "kv path put": _json(lambda body: kv.parse_kv_path("put", "n", "k", b"", body), {"value": 1, "ttlSeconds": 3}),
        "kv path delete": _json(lambda body: kv.parse_kv_path("delete", "n", "k", b"", body), {"expect": 3}),
        "locks": _json(locks.parse_locks, {"operations": ops["locks"]}),
        "timers": _json(lambda body: timers.parse_timers(body, HORIZON), example["timers"]),
        "transaction": _json(lambda body: transaction.parse_transaction(body, HORIZON), bundle),
        "configure": _json(
            queue.parse_configure, {"queue": "q", "options": {"leaseTime": 3, "ttl": None}, "mode": "merge"}
        ),
        "trace": _json(
            queue.parse_trace, {"transactionId": "t", "partitionId": "7", "traceNames": ["a"], "data": {"a": 1}}
        ),
        "seek": _json(groups.parse_seek, {"toEnd": True}, {"timestamp": "2026-08-01T00:00:00Z"}),
        "subscription": _json(groups.parse_subscription, {"subscriptionTimestamp": "2026-08-01T00:00:00Z"}),
        "redirect": _json(letters.parse_redirect, {"queue": "q", "partition": "p"}),
        "fetch": _json(reads.parse_fetch, {"entries": [{"queue": "q", "partition": "p", "offset": 0}], "maxWaitMs": 5}),
        "changed": _json(reads.parse_changed, {"entries": [{"queue": "q", "since": "2026-08-01", "after": "p17"}]}),
        "stream register": _json(
            streams.parse_register, {"name": "n", "source_queue": "q", "config_hash": "h", "reset": True}
        ),
        "stream state": _json(streams.parse_state_read, {"query_id": "i", "partition_id": "7", "keys": ["k"]}),
        "stream cycle": _json(
            streams.parse_cycle,
            {
                "query_id": "i",
                "partition_id": "7",
                "state_ops": [{"type": "upsert", "key": "k", "value": 1}],
                "push_items": [{"queue": "q", "payload": 1}],
                "ack": {"transactionId": "t", "leaseId": "l", "count": 1},
            },
        ),
        "ephemeral configure": _json(
            ephemeral.parse_configure, {"queue": "q", "options": {"maxBytes": 3, "policy": "reject"}}
        ),
        "ephemeral push": _json(ephemeral.parse_push, {"queue": "q", "messages": [{"payload": 1}]}),
        "ephemeral ack": _json(ephemeral.parse_acks, {"queue": "q", "acks": [{"id": "i", "status": "ok"}]}),
        "ephemeral reset": _json(ephemeral.parse_reset, {"queue": "q"}),
    }


def _text(number: int) -> bytes:
    return number.to_bytes(2, "little") + b"q" * number


def _binaries() -> dict[str, Decoder]:
    """The binary bodies, in each of their forms."""
    item = _text(3) + (5).to_bytes(4, "little") + b'{"a"}'[:0] + b"[1,2]"
    group = _text(2) + _text(1) + (2).to_bytes(4, "little") + item + item
    plain = (1).to_bytes(4, "little") + group
    frame = b"\0" + uuid.UUID(int=7).bytes + _text(4) + b'{"b":1}'
    inner = zstandard.compress(2 * (len(frame).to_bytes(4, "little") + frame))
    framed = _text(1) + _text(0) + (2).to_bytes(4, "little") + len(inner).to_bytes(4, "little") + inner
    packed = len(plain).to_bytes(4, "little") + zstandard.compress(plain)
    head = b'{"kv":[{"op":"check","ns":"n","key":"k","expect":1}]}'
    bundle = len(head).to_bytes(4, "little") + head + (1).to_bytes(4, "little") + framed
    return {
        "binary push": Decoder(
            binary.parse_binary_push,
            [
                b"QPB1\x04" + plain,
                b"QPB1\x05" + packed,
                b"QPB1\x08" + (1).to_bytes(4, "little") + framed,
                b"QPB1\x02" + (0).to_bytes(4, "little"),
            ],
        ),
        "binary transaction": Decoder(
            lambda body: binary.parse_binary_transaction(body, HORIZON, None),
            [b"QTB1\x00" + bundle, b"QTB1\x02" + bundle],
        ),
    }


_ROUTER = Router()
_ROLE = jwt.encode({"role": "admin", "sub": "me", "exp": 10**10}, SECRET, algorithm="HS256").encode()
_TOKENS = BearerTokens(SECRET, ("HS256", "HS384", "HS512"))


def _token(data: bytes) -> object:
    request = Request("GET", b"/", headers={"authorization": "Bearer " + data.decode("latin-1")})
    check = _TOKENS(request, Access.READ)
    try:
        return check.send(None)  # type: ignore[attr-defined]  # it is a coroutine
    except StopIteration as done:
        return done.value


def _queries() -> dict[str, Decoder]:
    """Query strings, paths, page tokens, instants, tokens."""

    def query(parse: Callable[[dict[str, str]], object]) -> Callable[[bytes], object]:
        return lambda data: parse(frames.parse_query(data))

    def count(fields: dict[str, str]) -> object:
        return timers.parse_count({"mode": "count", **fields})

    return {
        "pop query": Decoder(
            query(lambda fields: pop.parse_pop(fields, "q", "p")),
            [
                b"batch=10&wait=true&timeout=1e3&consumerGroup=g%20h&conflation=true",
                b"subscriptionFrom=2026-08-01T00:00:00Z",
            ],
        ),
        "discovery query": Decoder(query(pop.parse_pop), [b"namespace=n&task=t&partitions=3&leaseSeconds=5&autoAck=1"]),
        "letters query": Decoder(
            query(queue.parse_letters), [b"queue=q&from=2026-08-01&to=2027-01-01T00:00&limit=5&offset=9"]
        ),
        "messages query": Decoder(
            query(lambda f: reads.parse_messages(f, 10**15)), [b"queue=q&status=pending&from=2026-08-01"]
        ),
        "page query": Decoder(query(reads.parse_page), [b"limit=5&offset=99999999999999999999"]),
        "timers query": Decoder(query(timers.parse_list), [b"after=a%00b&limit=-5", b"limit=\xd9\xa3"]),
        "timers count": Decoder(query(count), [b"prefix=a", b"prefix=a&after=b"]),
        "ephemeral query": Decoder(query(ephemeral.parse_pop), [b"queue=q&group=g&batch=5&wait=true&timeout=10"]),
        "path": Decoder(
            lambda data: [_ROUTER.find(method, data) for method in ("GET", "POST", "PUT", "DELETE")],
            [route.pattern.replace("*", "%2f").replace(":", "%C3%A9").encode() for route in TABLE],
        ),
        "token": Decoder(_token, [_ROLE, b"a.b.c", b"eyJhbGciOiJub25lIn0.e30."]),
        "subprotocol": Decoder(lambda data: socket.bearer_of(data.decode("latin-1")), [b"queen.bearer." + _ROLE]),
        "instant": Decoder(
            lambda data: parse_instant(data.decode("latin-1")), [b"2026-08-01T00:00:00.123456+02:00"], (ValueError,)
        ),
        "key": Decoder(lambda data: parse_key(data.decode("latin-1")), [KEY.encode(), b"AAAA" * 11], (ValueError,)),
        "ciphertext": Decoder(Cipher(KEY).open, [Cipher(KEY).seal(b'{"a":1}')]),
        "address": Decoder(
            lambda data: address_of(data.decode("latin-1")),
            [b"http://localhost:6632", b"https://[::1]:99/"],
            (ValueError,),
        ),
    }


def _frame_of(parse: Callable[[socket.Frame], object]) -> Callable[[bytes], object]:
    # a text frame that is no UTF-8 ends its connection before anybody reads it (tests/fuzz/socket.py sends such)
    return lambda data: parse(socket.parse_frame(data.decode("utf-8", "replace").encode()))


def _frames() -> dict[str, Decoder]:
    """What a WebSocket's text frames hold, and requests out of the bytes of a connection."""
    errors = (QueenError, socket.NotAnObject)

    def read(data: bytes) -> list[object]:
        reader = RequestReader()
        found: list[object] = []
        for piece in (data[: len(data) // 2], data[len(data) // 2 :]):
            reader.receive(piece)
            while (message := reader.next()) is not None:
                found.append(message)
                if reader.other_protocol:
                    return found
        return found

    made = {
        f"frame {op}": Decoder(
            _frame_of(parse), [json.dumps({"id": 1, "op": op, **OPERATIONS[op].request}).encode()], errors, True
        )
        for op, parse in {
            "subscribe": socket.parse_subscribe,
            "tail": socket.parse_tail,
            "credit": socket.parse_credit,
            "unsubscribe": socket.parse_sub,
            "auth": socket.parse_token,
            "watch": watch.parse_watch,
            "unwatch": watch.parse_unwatch,
        }.items()
    }
    body = b'{"operations":[]}'
    made["request"] = Decoder(
        read,
        [
            b"POST /api/v1/kv?x=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 17\r\n\r\n" + body,
            b"POST /api/v1/kv HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n11\r\n"
            + body
            + b"\r\n0\r\n\r\n",
            b"GET /health HTTP/1.0\r\n\r\nGET /health HTTP/1.1\r\nHost: y\r\nConnection: close\r\n\r\n",
        ],
        (Refused,),
    )
    return made


def _entries() -> bytes:
    effects = (Appended(1, (Record(0, 5, "id", "txn", b'{"a":1}'),)), KvPut("n", "k", b"1", 3, None, 1, 2))
    return encode_entries([Entry(10, Counters(3, 1, 1), effects), Entry(11, Counters(4, 1, 1), effects)])


def _files(directory: Path) -> dict[str, Decoder]:
    """What lies on the disk: entries, a journal, the notes of a POSITION file."""
    path = directory / "journal"
    writer = JournalWriter.create(FileOps(), str(path), 0)
    for _ in range(3):
        writer.append(_entries(), 2)
    writer.finish()

    def journal(data: bytes) -> object:
        path.write_bytes(data)
        reader = JournalReader(str(path))
        return [decode_entries(body) for _, body in reader.frames()]

    def notes(data: bytes) -> object:
        path.write_bytes(data)
        return noted_slots(str(path))

    return {
        "entries": Decoder(decode_entries, [_entries()], (msgspec.DecodeError,)),
        "journal": Decoder(journal, [path.read_bytes()], (DataDirectoryError, msgspec.DecodeError)),
        "notes": Decoder(notes, [b"QNACTPOS" + bytes(4116)], ()),
    }


def decoders(directory: Path) -> dict[str, Decoder]:
    """Every one by its name."""
    return {**_bodies(), **_binaries(), **_queries(), **_frames(), **_files(directory)}


def _control(data: bytes) -> object:
    return {0: "Q"}[data[:1] == b"Q"]


CONTROL = Decoder(_control, [b""], ())
"""Not one of ours: it raises what a decoder may not, so that whoever looks for such a thing can be tried."""


def make(random: Random, decoder: Decoder) -> bytes:
    """One input: a seed that is changed as a value, as bytes, or not at all."""
    seed = random.choice(decoder.seeds)
    kind = random.randrange(10)
    if decoder.texts and kind < 6:
        value = json.loads(seed)
        return as_json(random, mutated(random, value) if kind < 5 else odd_value(random))
    if kind == 9:
        return random.choice(ODD_TEXTS).encode() if random.random() < 0.5 else random.randbytes(random.randrange(60))
    return damaged(random, seed)


def wrong(decoder: Decoder, data: bytes) -> str | None:
    """What is wrong with how the decoder took the input; None when nothing is. `answers` are its endings."""
    began = time.process_time()
    try:
        decoder.call(data)
    except decoder.raises as error:
        if isinstance(error, QueenError) and not isinstance(error, DataDirectoryError):
            if error.status not in REFUSALS:
                return f"raised {error!r} with status {error.status}"
            if not error.detail:
                return f"raised {type(error).__name__} without a word"
    except Exception as error:  # what is looked for
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"raised {error!r} at {Path(where.filename).name}:{where.lineno}"
    took = time.process_time() - began
    return f"took {took:.1f} s" if took > SLOW_SECONDS else None


def fuzz(seed: int, seconds: float, *, only: str | None = None, engine: str = "own") -> Summary:
    """So long, each decoder in its turn."""
    summary = Summary("decoders", seed)
    with tempfile.TemporaryDirectory(prefix="queen-decoders-") as directory:
        chosen = {name: one for name, one in decoders(Path(directory)).items() if only in (None, name)}
        if engine == "atheris":
            with_atheris(summary, list(chosen), seconds)
            return summary
        deadline = time.monotonic() + seconds
        turn = 0
        while time.monotonic() < deadline:
            for name, decoder in chosen.items():
                random = Random(f"{seed}:{turn}:{name}")
                for _ in range(20):
                    data = make(random, decoder)
                    summary.inputs += 1
                    told = wrong(decoder, data)
                    if told is not None:
                        summary.violations.append(f"{name}: {told}: {data[:1000]!r}")
            turn += 1
    summary.figures = {"decoders": len(chosen), "turns": turn}
    return summary


def with_atheris(summary: Summary, names: Sequence[str], seconds: float) -> None:
    """Each decoder in a process of its own, which atheris guides by what the code of the product covers."""
    try:
        import atheris  # noqa: F401 - is it here?
    except ImportError:
        summary.not_run.append("atheris is not installed here")
        return
    each = max(1, seconds / len(names))
    command = [sys.executable, "-m", "tests.fuzz.guided", str(summary.seed), str(each), *names]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, errors="replace")
    counted = [line for line in done.stderr.splitlines() if line.startswith("stat::number_of_executed_units:")]
    summary.inputs += sum(int(line.split(":")[-1]) for line in counted)
    told = [line.split(maxsplit=2) for line in done.stdout.splitlines() if line.startswith("ENDED ")]
    ended = {name: status for _, status, name in told}
    found = [line for line in done.stdout.splitlines() if line.startswith("VIOLATION ")]
    summary.violations += [line.removeprefix("VIOLATION ") for line in found]
    broken = [f"{name} {ended.get(name, 'not at all')}" for name in names if ended.get(name) != "0"]
    if broken and not found:
        summary.violations.append(f"atheris ended with: {', '.join(broken)}: {done.stderr[-500:]}")
    summary.figures = {"decoders": len(names)}
