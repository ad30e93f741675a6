"""What a tail, a watch and a held lock have in common: a talk that runs in the background of its client."""

from __future__ import annotations

import trio

from queen_actors.errors import QueenError, Unavailable

from .transport import Start, Stream

LEAVE_SECONDS = 0.8  # how long a stream may take to end in good order, and then to end at all


class Live:
    """One stream, from `enter` to `leave`. `news` is set when there is something to look at, its end included."""

    def __init__(self, start: Start, stream: Stream) -> None:
        self.stream = stream
        self.ended = False
        self.failure: QueenError | None = None
        self._start = start
        self._news = trio.Event()
        self._started = trio.Event()
        self._over = trio.Event()
        self._running = trio.CancelScope()
        self._entered = self._left = False

    async def enter(self) -> None:
        """Return when the broker has taken it. Raises its refusal."""
        if self._entered:
            raise RuntimeError("it is entered once: ask for another one")
        self._entered = True
        self._start(self._run)
        try:
            await self._started.wait()
        except BaseException:
            await self.leave()
            raise
        if self.failure is not None:
            raise self.failure

    async def leave(self) -> None:
        """Prompt, whatever lies unread."""
        self._left = True
        self.stream.stop()
        if not self._entered:
            return
        with trio.CancelScope(shield=True):
            with trio.move_on_after(LEAVE_SECONDS):
                await self._over.wait()
            self._running.cancel()
            with trio.move_on_after(LEAVE_SECONDS):
                await self._over.wait()

    async def _run(self) -> None:
        try:
            with self._running:
                await self.stream.run(self._started.set)
        except QueenError as error:
            self.failure = error
        finally:
            if self.failure is None and not self._left:
                self.failure = Unavailable("the client was closed")
            self.ended = True
            self._started.set()
            self._over.set()
            self.notify()

    def notify(self) -> None:
        """There is something to look at: wake who waits in `news`."""
        self._news.set()

    async def news(self) -> None:
        """Wait until something has happened since it was last asked for. Raises the failure when it has ended."""
        if self.ended:
            raise self.failure or Unavailable("it was left")
        if self._news.is_set():
            self._news = trio.Event()
        await self._news.wait()
