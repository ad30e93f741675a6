"""DuckDB as this store uses it: in-memory instances that attach files of their own or of the log.

One instance is one thread's. Files are attached under names that are used once, because an instance that still holds
a file by its path would go on serving it after it was replaced. Writing goes through appenders and single statements
in autocommit: inside an explicit transaction, COMMIT after a failed statement reports success and writes nothing.
"""

from __future__ import annotations

import os

import duckdb

from queen_actors import limits

SHARES = 4
"""An instance for reading has one of so many parts of the memory limit, the one that builds files has the rest."""


def connect(memory_mb: int, spill: str) -> duckdb.DuckDBPyConnection:
    """A new in-memory instance that never checkpoints by itself. Raises OSError, duckdb.Error."""
    os.makedirs(spill, exist_ok=True)
    return duckdb.connect(
        ":memory:",
        config={
            "threads": 1,  # the calling thread alone: the best latency for those beside it
            "memory_limit": f"{memory_mb}MiB",
            "temp_directory": spill,
            "wal_autocheckpoint": "1TB",
            "checkpoint_on_detach": "DISABLED",  # a second checkpoint of a file is what a power cut can break
            "disabled_compression_methods": "zstd,dict_fsst",  # a fifth of the CPU, for half as much disk again
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        },
    )


def literal(text: str) -> str:
    """The text as an SQL string."""
    return "'" + text.replace("'", "''") + "'"


def name(identifier: str) -> str:
    """The text as an SQL identifier."""
    return '"' + identifier.replace('"', '""') + '"'


SMALL_BYTES = 4 * limits.MIB
SMALL_BLOCK = 16_384
"""A file of the least has six blocks or more; of DuckDB's usual 256 KiB each they would take 1.6 MB for one message."""


def create(connection: duckdb.DuckDBPyConnection, path: str, alias: str, expected_bytes: int) -> None:
    """Make a new file of about this size, attached under the name. Raises duckdb.Error."""
    options = f" (BLOCK_SIZE {SMALL_BLOCK})" if expected_bytes < SMALL_BYTES else ""
    connection.execute(f"ATTACH {literal(path)} AS {name(alias)}{options}")


def attach(connection: duckdb.DuckDBPyConnection, path: str, alias: str) -> None:
    """Attach a finished file, read-only, under the name. Raises duckdb.Error."""
    connection.execute(f"ATTACH {literal(path)} AS {name(alias)} (READ_ONLY)")


def detach(connection: duckdb.DuckDBPyConnection, alias: str) -> None:
    connection.execute(f"DETACH {name(alias)}")
