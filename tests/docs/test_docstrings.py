"""Everything that a user of the client can name says what it does."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import FunctionType, ModuleType

import pytest

import queen_actors.blocking
import queen_actors.client
import queen_actors.domain.kv


def modules() -> Iterator[ModuleType]:
    for package in (queen_actors.client, queen_actors.blocking):
        yield package
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            yield importlib.import_module(found.name)
    yield queen_actors.domain.kv


def without_a_docstring(owner: ModuleType | type, module: str, path: str) -> Iterator[str]:
    """What is defined there under a public name, and inside of it, and says nothing."""
    for name, found in vars(owner).items():
        if name.startswith("_") or getattr(found, "__module__", module) != module:
            continue
        told = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
        if isinstance(told, FunctionType | type) or inspect.isclass(told):
            if not (told.__doc__ or "").strip():
                yield f"{path}{name}"
            if isinstance(told, type):
                yield from without_a_docstring(told, module, f"{path}{name}.")


@pytest.mark.parametrize("module", list(modules()), ids=lambda module: module.__name__)
def test_every_public_name_has_a_docstring(module: ModuleType) -> None:
    """Of the client, of its blocking face, and of the key-value commands; modules included."""
    assert module.__doc__
    assert list(without_a_docstring(module, module.__name__, "")) == []
