"""The engine protocol on stdin and stdout: what every adapter written in Python shares.

An adapter is an object with one method a command (``load``, ``generate``, …; the page
``docs/adapters.md`` lists them). A method takes the request's fields and returns the answer without
its name, or raises :class:`Refused`, :class:`Unsupported` or :class:`Died`.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

Answer = dict[str, Any]


class Refused(Exception):
    """The engine said no, and is still there."""


class Unsupported(Exception):
    """The engine cannot do this at all: what depends on it is not covered."""


class Died(Exception):
    """The engine is gone; the process ends after saying so."""


def done() -> Answer:
    """Nothing else to say."""
    return {"answer": "done"}


def failed(kind: str, **fields: object) -> Answer:
    """A failure of the protocol: ``refused``, ``unsupported`` or ``died``."""
    return {"answer": "failed", "error": {"error": kind, **fields}}


def answer(adapter: object, request: dict[str, Any]) -> Answer:
    """Runs one request.

    An exception that the adapter does not name itself is what the engine raised: a refusal, in the
    engine's own words.
    """
    fields = dict(request)
    command = fields.pop("command", "")
    method: Callable[..., Answer] | None = getattr(adapter, command, None)
    if not callable(method) or command.startswith("_"):
        return failed("unsupported", what=command)
    try:
        return method(**fields)
    except Unsupported as error:
        return failed("unsupported", what=one_line(error))
    except Died as error:
        return failed("died", text=one_line(error), kernel=None, address=None)
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        return failed("refused", text=one_line(error))


def one_line(error: BaseException) -> str:
    """The error as one line: its message's first, after its type where that says something."""
    message = str(error).strip().splitlines()
    kind = type(error).__name__
    if isinstance(error, (Refused, Unsupported, Died)):
        return message[0] if message else kind
    return f"{kind}: {message[0]}" if message else kind


@contextmanager
def protocol_stream() -> Iterator[TextIO]:
    """The real stdout, kept for the protocol: whatever else prints goes to stderr.

    The file descriptor itself is moved, because compiled code and child processes of an engine
    print as well.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(kept, "w", encoding="utf-8") as stream:
        yield stream


def serve(adapter: object, requests: TextIO | None = None) -> None:
    """Answers requests until ``shutdown`` or the end of input."""
    with protocol_stream() as stream:
        for line in requests or sys.stdin:
            request = json.loads(line)
            reply = answer(adapter, request)
            print(json.dumps(reply, separators=(",", ":")), file=stream, flush=True)
            gone = reply.get("error", {}).get("error") == "died"
            if gone or request.get("command") == "shutdown":
                break
