"""Settings: what an operator may choose, with the defaults. Bounds that nobody should move are in `limits.py`.

`load` reads them from the environment: each field `some_field` from `QUEEN_ACTORS_SOME_FIELD`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from . import limits

PREFIX = "QUEEN_ACTORS_"
"""What the name of an environment variable of ours begins with."""
_TRIALS = frozenset(("FAULT", "STEPS", "SEEDS", "KILLS"))
"""Read by the crash points (`storage/faultpoints.py`) and by the tests, whose servers inherit them."""
_SERVICE_LINK = re.compile(r"SERVICE_HOST|SERVICE_PORT(_.*)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_.*)?")
"""What Kubernetes sets in every container beside a service that is called `queen-actors`."""

Port = Annotated[int, Meta(ge=0, le=65_535)]
Size = Annotated[int, Meta(gt=0)]
Seconds = Annotated[float, Meta(gt=0)]
FrameSize = Annotated[int, Meta(gt=0, le=limits.WS_PIPELINE_BYTES)]
LogLevel = Literal["debug", "info", "warning", "error"]
Lane = Literal["fast", "web"]


class Settings(Struct, frozen=True):
    """Everything that can be set; sizes in bytes, times in seconds."""

    data: str | None = "./queen-data"
    """The data directory; None keeps everything in memory."""
    host: str = "127.0.0.1"
    port: Port = 6632
    """The TCP port; 0 takes any free one."""
    subscription_mode: Literal["all", "new"] = "all"
    """Where a group starts that names no mode (decisions.md)."""
    timer_horizon_seconds: Size = limits.TIMER_HORIZON_US // 1_000_000
    journal_roll_bytes: Size = limits.JOURNAL_ROLL_BYTES
    journal_roll_seconds: Seconds = limits.JOURNAL_ROLL_SECONDS
    snapshot_bytes: Size = limits.SNAPSHOT_BYTES
    record_cache_bytes: Size = limits.RECORD_CACHE_BYTES
    shutdown_seconds: Seconds = limits.SHUTDOWN_SECONDS
    heartbeat_seconds: Seconds = limits.WS_HEARTBEAT_SECONDS
    ws_frame_bytes: FrameSize = limits.WS_FRAME_BYTES
    """The longest frame that a WebSocket's peer may send."""
    ws_peer_bytes: Size = limits.WS_PEER_BYTES
    """What may wait to be written to one WebSocket's peer; past it nothing more is claimed for it."""
    lane: Lane = "fast"
    """What serves HTTP/1.1: our own lane, or `web`, hypercorn, which serves HTTP/2 in any case."""
    certfile: str = ""
    """Turns TLS on: the PEM file of the certificate, with those between it and its root, and perhaps with the key."""
    keyfile: str = ""
    """The PEM file of the certificate's private key, not encrypted; empty: it is in `certfile`."""
    allowed_origins: tuple[str, ...] = ()
    """Origins that a browser may connect a WebSocket from; empty: any."""
    jwt_secret: str = ""
    """Turns bearer tokens on: the shared secret of HS256, HS384 and HS512."""
    jwt_public_key: str = ""
    """Turns bearer tokens on: the PEM public key of RS*, ES* or EdDSA signatures."""
    encryption_key: str = ""
    """What payloads of queues with `encryptionEnabled` are encrypted with: 32 bytes in base64 or hex."""
    access_log: bool = False
    log_level: LogLevel = "warning"


def load(environ: Mapping[str, str], **flags: Any) -> Settings:
    """The settings: a flag that is not None wins over the environment, which wins over the defaults.

    `memory` (`QUEEN_ACTORS_MEMORY`) is `data` None. `PORT` counts when `QUEEN_ACTORS_PORT` is not there. Booleans are
    true, false, 1 or 0; a list is separated by commas; an empty variable counts as absent.

    Raises ValueError, with the name and the value of what is wrong; also for a variable that is no setting.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    chosen: dict[str, Any] = {}
    hints = get_type_hints(Settings, include_extras=True)
    _refuse_unknown(environ, [variable(field) for field in hints] + [PREFIX + "MEMORY"])
    for field, kind in hints.items():
        names = [variable(field)] + (["PORT"] if field == "port" else [])
        name = next((name for name in names if environ.get(name)), None)
        if field in given:
            chosen[field] = _convert(f"--{field.replace('_', '-')}", given[field], kind)
        elif name is not None:
            chosen[field] = _convert(name, environ[name], kind)
    memory = PREFIX + "MEMORY"
    if given.get("memory") or ("data" not in given and _convert(memory, environ.get(memory) or "false", bool)):
        chosen["data"] = None
    return Settings(**chosen)


def variable(field: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + field.upper()


def _refuse_unknown(environ: Mapping[str, str], known: list[str]) -> None:
    """Raise ValueError for a variable of ours that nothing reads: it was meant to do something."""
    for name in sorted(environ):
        rest = name.removeprefix(PREFIX)
        if rest == name or name in known or rest in _TRIALS or _SERVICE_LINK.fullmatch(rest):
            continue
        nearest = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0)[0]
        raise ValueError(f"{name} is no setting; the nearest is {nearest}. Rename it, or unset it.")


def _convert(name: str, value: object, kind: Any) -> Any:
    if kind == tuple[str, ...] and isinstance(value, str):
        value = tuple(part.strip() for part in value.split(",") if part.strip())
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as wrong:
        choices = get_args(kind) if get_origin(kind) is Literal else ()
        expected = f"expected one of {', '.join(choices)}" if choices else wrong
        raise ValueError(f"{name}={value}: {expected}") from None
