"""Power cuts: the process dies, and of its files there is what was flushed to the disk, and nothing else."""

from __future__ import annotations

import resource
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import ClassVar

import trio

from .campaign import Campaign, stories
from .node import Node
from .summary import Summary

SOURCE = Path(__file__).with_name("shim.c")
DESCRIPTORS = 8192
"""The shim holds one for each file that was ever flushed."""


class NoCompiler(Exception):
    """There is none here, or it failed: the text says so."""


def build_shim(directory: Path) -> Path:
    """Compile the shim. Raises NoCompiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NoCompiler("no C compiler (cc, gcc or clang) is installed, and the shim has to be compiled")
    shim = directory.resolve() / "shim.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(shim), str(SOURCE), "-ldl", "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoCompiler(f"the shim could not be compiled: {done.stderr[-500:]}")
    return shim


class PowerNode(Node):
    """A process whose disk is watched by the shim."""

    def __init__(self, directory: Path, shim: Path, ignore: str = "", **settings: str) -> None:
        """`ignore`: a part of the names of the files whose flushes are to do nothing; `/`: the directory's."""
        super().__init__(directory.resolve(), **settings)
        self._shadow = directory.resolve() / "shadow"
        self.environment = {"LD_PRELOAD": str(shim), "SHIM_DATA": str(self.data), "SHIM_SHADOW": str(self._shadow)}
        if ignore:
            self.environment["SHIM_IGNORE"] = ignore

    def spawn(self, fault: str | None = None) -> None:
        shutil.rmtree(self._shadow, ignore_errors=True)
        self._shadow.mkdir()
        self.data.mkdir(exist_ok=True)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < DESCRIPTORS <= hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))
        super().spawn(fault)

    def cut(self) -> None:
        """The data directory, as the disk had it. Only while the process is dead."""
        names = self._shadow / "names"
        listed = names.read_text().splitlines() if names.exists() else None
        if listed is None:  # it died before the shim began
            return
        shutil.rmtree(self.data)
        self.data.mkdir()
        for inode, name in (line.split(" ", 1) for line in listed):
            content = self._shadow / f"i{inode}"
            if content.exists():
                shutil.copyfile(content, self.data / name)
            else:  # its name reached the disk, and none of its bytes
                (self.data / name).touch()


class PowerCampaign(Campaign):
    """One data directory's story of power cuts."""

    death: ClassVar[str] = "cuts"

    def __init__(self, directory: Path, seed: int, summary: Summary, *, shim: Path, ignore: str = "") -> None:
        self._shim = shim
        self._ignore = ignore
        super().__init__(directory, seed, summary)

    def make_node(self, **settings: str) -> Node:
        return PowerNode(self.directory, self._shim, self._ignore, **settings)

    async def after_death(self) -> None:
        assert isinstance(self.node, PowerNode)
        await trio.to_thread.run_sync(self.node.cut)


async def cuts(directory: Path, seed: int, count: int, ignore: str = "") -> Summary:
    """So many power cuts, at any moment and at named points of the log's work."""
    summary = Summary("power", seed)
    try:
        shim = await trio.to_thread.run_sync(build_shim, directory)
    except NoCompiler as error:
        summary.not_run.append(f"power cuts: {error}")
        return summary
    await stories(partial(PowerCampaign, shim=shim, ignore=ignore), directory, summary, count, points=0.5)
    return summary
