"""Which objects converted weights after loading, seen as calls.

Every class that has a ``process_weights_after_loading`` of its own is wrapped when this is
installed, so that a conversion that a cold load makes and a reload leaves out shows, whoever calls
it and whatever the engine counts.
"""

from __future__ import annotations

import functools
from typing import Any

from . import versions

METHOD = "process_weights_after_loading"
#: (the object that converted, the layer that it was given) of every outermost call that ended well,
#: in the order of their ends.
CALLS: list[tuple[Any, Any]] = []
_ACTIVE: list[tuple[int, int]] = []
_MARK = "__coldproof_wrapped__"


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
        _ACTIVE.append(call)
        try:
            result = method(self, *args, **kwargs)
        finally:
            _ACTIVE.pop()
        if outermost:
            CALLS.append((self, layer))
        return result

    setattr(watched, _MARK, True)
    return watched


def drain() -> list[tuple[Any, Any]]:
    """The calls since the last time."""
    calls = list(CALLS)
    CALLS.clear()
    return calls
