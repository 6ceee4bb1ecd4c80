"""What the cold load of this process wrote: its loader is watched from before the engine starts."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from . import versions
from .applications import Applications

#: What was recorded of the first load of every model that was loaded here.
_LOADS: list[Applications] = []
_MARK = "__coldproof_watched__"


def install() -> None:
    """Wraps the loader that reads a checkpoint folder. May be called again."""
    loader = versions.default_loader()
    method = loader.load_weights
    if hasattr(method, _MARK):
        return

    @functools.wraps(method)
    def watched(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        if of(model) is not None:
            return method(self, model, *args, **kwargs)
        recorder = Applications(model)
        with delivering(recorder), recorder:
            result = method(self, model, *args, **kwargs)
        _LOADS.append(recorder)
        return result

    setattr(watched, _MARK, True)
    loader.load_weights = watched


@contextmanager
def delivering(recorder: Applications) -> Iterator[None]:
    """Passes what vLLM reads from a checkpoint folder through the recorder."""
    loader = versions.default_loader()
    original = loader.get_all_weights

    def delivered(this: Any, *args: Any, **kwargs: Any) -> Any:
        return recorder.deliver(original(this, *args, **kwargs))

    loader.get_all_weights = delivered
    try:
        yield
    finally:
        loader.get_all_weights = original


def of(model: Any) -> Applications | None:
    """What was recorded of the model's first load; nothing where another loader filled it."""
    return next((recorder for recorder in _LOADS if recorder.model is model), None)
