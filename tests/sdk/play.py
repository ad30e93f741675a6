"""Scenarios in a process: `play.py URL MODULE FUNCTION ...`. One line of JSON, behind `REPORT: `, for each."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import traceback

from queen import Queen

SCENARIO_SECONDS = 120.0  # the streams wait for two starts of a server, which take their time on a busy machine


async def main(url: str, module: str, *functions: str) -> None:
    scenarios = importlib.import_module(module)
    for function in functions:
        error = ""
        try:
            async with asyncio.timeout(SCENARIO_SECONDS), Queen(url) as queen:
                await getattr(scenarios, function)(queen)
        except Exception:  # the boundary of a scenario: the next one runs whatever became of this one
            error = traceback.format_exc()
        print("\nREPORT: " + json.dumps({"function": function, "error": error}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
