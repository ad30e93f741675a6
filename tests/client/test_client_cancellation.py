"""A cancellation stays one, however many nurseries it came through."""

from __future__ import annotations

import threading

import pytest
import trio
from blocking_kit import Opens, both

from queen_actors import Unavailable
from queen_actors.client.cancellation import is_cancellation


async def _inside_a_nursery() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        await trio.sleep_forever()


async def test_cancelled_bare_and_in_groups() -> None:
    """Whatever holds nothing but Cancelled is a cancellation; a failure among it is not."""
    for wait in (trio.sleep_forever, _inside_a_nursery):
        seen: list[BaseException] = []
        with trio.move_on_after(0):
            try:
                await wait()
            except BaseException as error:
                seen.append(error)
                raise
        assert [is_cancellation(error) for error in seen] == [True]
    assert not is_cancellation(ValueError())
    assert not is_cancellation(BaseExceptionGroup("", [ValueError()]))


@both
def test_a_call_that_is_cancelled_inside_a_nursery(opens: Opens) -> None:
    """The client is left while a call is inside a nursery, as while it connects: it ends with Unavailable."""
    with opens() as queen:
        ended: list[BaseException] = []

        def call() -> None:
            with pytest.raises(Unavailable) as refused:
                queen.portal.call(_inside_a_nursery)
            ended.append(refused.value)

        thread = threading.Thread(target=call)
        thread.start()
        while not queen.portal._scopes:
            pass
    thread.join(60)
    assert len(ended) == 1
