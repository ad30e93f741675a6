"""One scenario in a process: `play.py MODULE FUNCTION URL`."""

from __future__ import annotations

import asyncio
import importlib
import sys

from queen import Queen


async def main(module: str, function: str, url: str) -> None:
    scenario = getattr(importlib.import_module(module), function)
    async with Queen(url) as queen:
        await scenario(queen)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
