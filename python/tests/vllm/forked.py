"""Engines as forks of one process that has imported vLLM: the import is most of what a start costs.

``serve`` runs in that process and forks an engine for each caller. Run as a program this file is
the caller: it hands over its arguments, environment and files, and ends as its engine ends.
"""

from __future__ import annotations

import array
import contextlib
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAM = "coldproof.vllm"
#: What an engine imports when it starts.
MODULES = (
    "vllm.entrypoints.llm",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.registry",
    "vllm.model_executor.models.llama",
    "coldproof.vllm.worker",
    "coldproof.vllm.forcing",
)
#: An import on a machine that has read nothing of it yet, in seconds.
READY = 300


@contextlib.contextmanager
def interpreter(folder: Path) -> Iterator[str]:
    """What stands for this interpreter where an engine is started: ``-m coldproof.vllm`` forks."""
    place = folder / "engines"
    # It ends when its standard input does: it outlives no test run, however that ends.
    command = [sys.executable, __file__, "serve", str(place)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as server:
        deadline = time.monotonic() + READY
        while not place.exists():
            assert server.poll() is None, "the process that imports vLLM ended"
            assert time.monotonic() < deadline, "the process that imports vLLM hangs"
            time.sleep(0.05)
        script = folder / "python"
        words = f'exec "{sys.executable}" "{__file__}" start "{place}" "$@"'
        script.write_text(f"#!/bin/sh\n{words}\n", encoding="utf-8")
        script.chmod(0o755)
        yield str(script)


def serve(place: Path) -> None:
    """Imports vLLM, then forks for each caller."""
    from coldproof.vllm import versions

    versions.set_environment()
    for module in MODULES:
        importlib.import_module(module)

    listener = socket.socket(socket.AF_UNIX)
    half_made = place.with_suffix(".new")
    listener.bind(str(half_made))
    listener.listen()
    half_made.rename(place)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while listener in select.select([listener, sys.stdin], [], [])[0]:
        caller, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            attend(caller)
        caller.close()


def attend(caller: socket.socket) -> None:
    """Runs one engine and tells its caller how it ended; does not return."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    files = array.array("i")
    length, carried, _, _ = caller.recvmsg(4, socket.CMSG_SPACE(3 * files.itemsize))
    files.frombytes(carried[0][2])
    wanted = json.loads(caller.makefile("rb").read(int.from_bytes(length, "little")))
    engine = os.fork()
    if engine == 0:
        threading.Thread(target=die_with, args=(caller,), daemon=True).start()
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.environ.clear()
        os.environ.update(wanted["environment"])
        os.chdir(wanted["folder"])
        run(wanted["arguments"])
    for file in files:
        os.close(file)
    os.closerange(0, 3)
    _, status = os.waitpid(engine, 0)
    with contextlib.suppress(OSError):
        caller.sendall(json.dumps(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def run(arguments: list[str]) -> None:
    """The program as ``python -m`` runs it; does not return."""
    sys.argv = arguments
    sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    code: object = 1
    try:
        runpy.run_module(PROGRAM, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def die_with(caller: socket.socket) -> None:
    """Ends this process when its caller is gone."""
    caller.recv(1)
    os._exit(1)


def start(place: str, arguments: list[str]) -> int:
    """Has an engine started, and waits for its end; other programs get the real interpreter."""
    if arguments[:2] != ["-m", PROGRAM]:
        os.execv(sys.executable, [sys.executable, *arguments])
    server = socket.socket(socket.AF_UNIX)
    server.connect(place)
    environment = dict(os.environ)
    wanted = {"arguments": arguments[1:], "environment": environment, "folder": str(Path.cwd())}
    words = json.dumps(wanted).encode()
    files = array.array("i", [0, 1, 2])
    carried = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)]
    server.sendmsg([len(words).to_bytes(4, "little")], carried)
    server.sendall(words)
    # The engine alone holds them now: whoever reads its output sees the end of it.
    os.closerange(0, 3)
    ended = server.makefile("rb").read()
    code = json.loads(ended) if ended else 1
    if code < 0:
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(Path(sys.argv[2]))
    sys.exit(start(sys.argv[2], sys.argv[3:]))
