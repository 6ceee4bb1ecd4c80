"""Which objects converted weights after loading, seen as calls.

Every class that has a ``process_weights_after_loading`` of its own is wrapped when this is
installed, so that a conversion that a cold load makes and a reload leaves out shows, whoever calls
it and whatever the engine counts.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from . import versions
from .effects import Picture

METHOD = "process_weights_after_loading"


class Conversion(NamedTuple):
    """An outermost call that ended well."""

    owner: Any
    """The object that converted."""
    layer: Any
    """The layer that it was given."""
    had_effect: bool
    """Whether it left anything that was not there before. Looked into at the cold load alone, for
    the price of digesting the layer twice."""


#: In the order of their ends.
CALLS: list[Conversion] = []
_ACTIVE: list[tuple[int, int]] = []
_MARK = "__coldproof_wrapped__"
_COLD = [True]


def install() -> None:
    """Wraps the method of all classes that are known now. May be called again."""
    queue = versions.post_load_bases()
    seen = set()
    while queue:
        cls = queue.pop()
        if cls in seen:
            continue
        seen.add(cls)
        queue.extend(type.__subclasses__(cls))
        method = cls.__dict__.get(METHOD)
        if callable(method) and not hasattr(method, _MARK):
            setattr(cls, METHOD, _watched(method))


def _watched(method: Any) -> Any:
    @functools.wraps(method)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        # The experts of a layer are chosen while its method converts: wrap what was imported since.
        install()
        layer = args[0] if args else kwargs.get("layer")
        call = (id(self), id(layer))
        # A class that calls its base's method converts once.
        outermost = call not in _ACTIVE
        before = Picture(layer, self) if outermost and _COLD else None
        _ACTIVE.append(call)
        try:
            result = method(self, *args, **kwargs)
        finally:
            _ACTIVE.pop()
        if outermost:
            had_effect = before is None or before != Picture(layer, self)
            CALLS.append(Conversion(self, layer, had_effect))
        return result

    setattr(watched, _MARK, True)
    return watched


def drain() -> list[Conversion]:
    """The calls since the last time. With the first of them the cold load has ended."""
    calls = list(CALLS)
    CALLS.clear()
    _COLD.clear()
    return calls
