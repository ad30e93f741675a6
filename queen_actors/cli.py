"""The command line: serve, demo, sql, doctor, version.

Exit codes: 0 done; 1 a demo or a query that failed, or a data directory with problems; 2 it could not start (arguments,
data directory, address); 3 the storage failed; 4 it did not stop within its time; 128 + n the second signal, n, ended
it at once.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast, get_args

import msgspec
import structlog
import trio

from . import __version__, limits
from .actors.cipher import Cipher
from .api.auth import authorizer
from .broker import running
from .config import Lane, LogLevel, Settings, load
from .demo import run as run_demo
from .errors import DataDirectoryError, QueenError, StorageFailed
from .serve.listen import serve
from .serve.tls import server_context
from .storage import store_of
from .storage.doctor import examine, told
from .storage.sql import VIEWS, query

if sys.platform != "win32":
    import resource

EXIT_FAILED, EXIT_START, EXIT_STORAGE, EXIT_LATE = 1, 2, 3, 4
SWITCH_SECONDS = 0.0005  # with a busy event loop the default of 5 ms makes a 0.2 ms commit take 10 ms
LATE_SECONDS = 0.5  # what the end of a stop that bounds itself may take beyond its time


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code. `argv` without the program's name; None takes the process's."""
    options = _parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = options.command
    return command(options)


def _parser() -> argparse.ArgumentParser:
    defaults = Settings()
    parser = argparse.ArgumentParser(prog="queen-actors", description="A message broker: queues, keys, locks, timers.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = commands.add_parser(
        "serve",
        help="run the broker as a server",
        description="Run the broker until SIGTERM or SIGINT, which stop it gracefully; a second one ends it at once.",
        epilog="Every setting is read from a variable too, QUEEN_ACTORS_DATA and so on, and the port from PORT. "
        "A flag wins.",
    )
    where = serve.add_mutually_exclusive_group()
    where.add_argument("--data", metavar="DIR", help=f"the data directory (default {defaults.data})")
    where.add_argument("--memory", action="store_true", help="keep everything in memory, nothing on disk")
    serve.add_argument("--host", help=f"the address to listen on (default {defaults.host})")
    serve.add_argument("--port", help=f"the port, 0 for any free one (default {defaults.port})")
    serve.add_argument("--certfile", metavar="PEM", help="serve TLS with this certificate (default: no TLS)")
    serve.add_argument("--keyfile", metavar="PEM", help="its private key (default: in the certificate's file)")
    serve.add_argument("--lane", choices=get_args(Lane), help=f"what serves HTTP/1.1 (default {defaults.lane})")
    serve.add_argument("--log-level", choices=get_args(LogLevel), help=f"(default {defaults.log_level})")
    serve.set_defaults(command=_serve)

    demo = commands.add_parser("demo", help="show what it does, in some seconds, in a temporary directory")
    demo.set_defaults(command=_demo)

    sql = commands.add_parser(
        "sql",
        help="query a stopped broker's log",
        description=f"Run one SELECT over the views {', '.join(VIEWS[:-1])} and {VIEWS[-1]}.",
    )
    sql.add_argument("query", help="one SELECT")
    sql.add_argument("--data", metavar="DIR", default=defaults.data, help="the data directory (default %(default)s)")
    sql.add_argument("--format", choices=_PRINTERS, default="table", help="(default %(default)s)")
    sql.set_defaults(command=_sql)

    doctor = commands.add_parser(
        "doctor",
        help="say what is wrong with a stopped broker's data directory",
        description="Look at every file of a data directory, and say what is wrong and what can be done. Nothing is "
        "changed without --repair. Exit codes: 0 healthy, or healthy again; 1 there are problems; 2 it could not look.",
        epilog="The key of encrypted payloads is read from QUEEN_ACTORS_ENCRYPTION_KEY, and the directory from "
        "QUEEN_ACTORS_DATA; the flag wins.",
    )
    doctor.add_argument("--data", metavar="DIR", help=f"the data directory (default {defaults.data})")
    doctor.add_argument(
        "--repair",
        action="store_true",
        help="do what is safe: nothing that was answered is given up, what is changed is kept beside, and the log is "
        "not touched unless a start would accept it afterwards",
    )
    doctor.set_defaults(command=_doctor)

    version = commands.add_parser("version", help="print the version")
    version.set_defaults(command=_version)
    return parser


def _version(_: argparse.Namespace) -> int:
    print(f"queen-actors {__version__}")
    return 0


def _demo(_: argparse.Namespace) -> int:
    return run_demo()


# -- serve -------------------------------------------------------------------------------------------------------------


class CannotStart(Exception):
    """The server could not begin to listen; the text says what to do."""


def _serve(options: argparse.Namespace) -> int:
    names = ("data", "memory", "host", "port", "certfile", "keyfile", "lane", "log_level")
    flags = {name: getattr(options, name) for name in names}
    try:
        settings = load(os.environ, **flags)
        authorizer(settings)
        server_context(settings)
        Cipher(settings.encryption_key)
    except ValueError as wrong:
        return _give_up(EXIT_START, str(wrong))
    sys.setswitchinterval(SWITCH_SECONDS)
    _allow_descriptors()
    _log_to_stderr(settings.log_level)
    if settings.access_log:
        logging.getLogger("queen_actors.access").setLevel(logging.INFO)
    try:
        trio.run(_until_signal, settings)
    except (CannotStart, DataDirectoryError, StorageFailed, BaseExceptionGroup) as failure:
        causes = list(_leaves(failure))
        for kind, code in ((StorageFailed, EXIT_STORAGE), (DataDirectoryError, EXIT_START), (CannotStart, EXIT_START)):
            told = next((cause for cause in causes if isinstance(cause, kind)), None)
            if told is not None:
                return _give_up(code, str(told))
        raise
    return 0


_FEWER_DESCRIPTORS = (10_240, 4_096, 1_024)
"""What is tried where a system allows less than it says, as macOS does."""


def _allow_descriptors() -> None:
    """Have as many descriptors as all connections and the log's files may take, if the system lets the process."""
    if sys.platform == "win32":
        return
    wanted = limits.HTTP_CONNECTIONS + limits.DESCRIPTORS_KEPT
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    for allowed in (most, *(fewer for fewer in _FEWER_DESCRIPTORS if soft < fewer < most)):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
            return


async def _until_signal(settings: Settings) -> None:
    """Serve until the first signal, then stop gracefully. Raises CannotStart, DataDirectoryError, StorageFailed, each
    perhaps inside a group."""
    stop = trio.Event()
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_obey, signals, stop, settings.shutdown_seconds)
            async with running(store_of(settings), settings) as broker, trio.open_nursery() as serving:
                try:
                    addresses = await serving.start(partial(serve, broker, settings, shutdown=stop))
                except OSError as error:
                    raise CannotStart(f"cannot listen on {settings.host} port {settings.port}: {error}") from error
                where = "in memory" if settings.data is None else f"data: {settings.data}"
                print(f"queen-actors {__version__} at {' '.join(addresses)} ({where})", flush=True)
            nursery.cancel_scope.cancel()


async def _obey(signals: AsyncIterator[int], stop: trio.Event, seconds: float) -> None:
    """The first signal sets `stop`, and the time of a graceful stop begins; the second one ends the process."""
    await anext(signals)
    stop.set()
    late = threading.Timer(seconds + LATE_SECONDS, _end_late)
    late.daemon = True  # a thread, because what is late may be the event loop
    late.start()
    os._exit(128 + await anext(signals))


def _end_late() -> None:
    _give_up(EXIT_LATE, "it did not stop in time; what was answered is on disk")
    os._exit(EXIT_LATE)


def _leaves(failure: BaseException) -> Iterator[BaseException]:
    if isinstance(failure, BaseExceptionGroup):
        for inner in cast("BaseExceptionGroup[BaseException]", failure).exceptions:
            yield from _leaves(inner)
    else:
        yield failure


def _log_to_stderr(level: str) -> None:
    """Every logger's records as structured lines: coloured for a terminal, JSON for everything else."""
    terminal = sys.stderr.isatty()
    meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    rendering = (
        [structlog.dev.ConsoleRenderer()]
        if terminal
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ExtraAdder(),
        ],
        processors=[meta, *rendering],
    )
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


# -- sql ---------------------------------------------------------------------------------------------------------------


def _sql(options: argparse.Namespace) -> int:
    _allow_descriptors()
    try:
        columns, rows = query(options.data, options.query)
    except QueenError as error:
        return _give_up(EXIT_START if isinstance(error, DataDirectoryError) else EXIT_FAILED, error.detail)
    _PRINTERS[options.format](columns, rows)
    return 0


# -- doctor ------------------------------------------------------------------------------------------------------------


def _doctor(options: argparse.Namespace) -> int:
    try:
        settings = load(os.environ, data=options.data)
        cipher = Cipher(settings.encryption_key)
    except ValueError as wrong:
        return _give_up(EXIT_START, str(wrong))
    path = settings.data or Settings().data or ""
    try:
        report = examine(path, cipher.open if settings.encryption_key else None, repair=options.repair)
    except DataDirectoryError as error:
        return _give_up(EXIT_START, error.detail)
    for line in told(path, report, repaired=options.repair):
        print(line)
    return EXIT_FAILED if report.left else 0


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Aligned columns, numbers to the right; NULL is left empty."""
    texts = [["" if value is None else str(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *texts, strict=True)]
    numeric = [
        all(isinstance(value, (int, float, type(None))) for value in column) for column in zip(*rows, strict=True)
    ]
    print("  ".join(name.ljust(width) for name, width in zip(columns, widths, strict=True)).rstrip())
    print("  ".join("-" * width for width in widths))
    for row in texts:
        cells = zip(row, widths, numeric, strict=True)
        print("  ".join(text.rjust(width) if right else text.ljust(width) for text, width, right in cells).rstrip())
    print(f"({len(rows)} row{'' if len(rows) == 1 else 's'})")


def _print_json(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """One array of objects, a row a line."""
    lines = [msgspec.json.encode(dict(zip(columns, row, strict=True)), enc_hook=str).decode() for row in rows]
    print("[" + ",\n ".join(lines) + "]")


def _print_csv(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    writer = csv.writer(sys.stdout)
    writer.writerow(columns)
    writer.writerows(rows)


_PRINTERS: dict[str, Callable[[Sequence[str], Sequence[Sequence[Any]]], None]] = {
    "table": _print_table,
    "json": _print_json,
    "csv": _print_csv,
}


def _give_up(code: int, sentence: str) -> int:
    """One sentence on stderr, and the exit code."""
    print(f"queen-actors: {' '.join(sentence.split())}", file=sys.stderr)
    return code
