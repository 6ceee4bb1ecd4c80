"""Every arm in a guarded process of its own: started, watched, and ended when it hangs.

A process that has imported vLLM and has not touched the card forks one child for each arm, which
saves the import. Where a child could not open the card, arms are started from nothing instead.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cells import Cell

LIMITS = {"start": 120, "generate A": 90, "generate cold": 90, "generate control": 30}
OTHER_LIMIT = 60
REPLAY_LIMIT = 15
"""Seconds that a generation after an update may take: it may hang the card."""


@dataclass
class Task:
    """One arm of one cell."""

    cell: Cell
    arm: str
    notes: Path
    log: Path
    port: int
    pid: int = 0
    began: float = 0.0
    ended: str = ""
    """How it ended: empty while it runs, ``done``, ``died``, ``hung`` or ``out of time``."""
    findings: dict[str, Any] = field(default_factory=dict)
    doing: str = "begin"
    since: float = 0.0
    seconds: float = 0.0
    _read: int = 0

    def read(self) -> None:
        """Take in what it wrote down since it was last asked."""
        if not self.notes.exists():
            return
        with self.notes.open() as file:
            file.seek(self._read)
            while (line := file.readline()).endswith("\n"):
                self._read = file.tell()
                entry = json.loads(line)
                entry.pop("at", None)
                if "doing" in entry:
                    self.doing, self.since = entry["doing"], time.monotonic()
                self.findings.update(entry)

    def limit(self) -> float:
        """Return the seconds that its present step may take."""
        if self.doing == "start" and self.cell.compiled:
            return 240
        if self.doing.startswith("generate") and self.doing not in LIMITS:
            return REPLAY_LIMIT
        return LIMITS.get(self.doing, OTHER_LIMIT)


Body = Callable[[Task], None]


def environment(task: Task) -> dict[str, str]:
    """Return what an arm's environment has on top."""
    threads = "4" if task.cell.compiled else "1"
    extra = {"VLLM_PORT": str(task.port), "TORCHINDUCTOR_COMPILE_THREADS": threads}
    return {**extra, **task.cell.environment}


def fork(task: Task, body: Body) -> int:
    """Start an arm in a child of this process."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        with task.log.open("a") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        os.environ.update(environment(task))
        body(task)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # A card in error can hang what would tidy up here.
        os._exit(code)


def spawn(task: Task, command: list[str]) -> int:
    """Start an arm as a process of its own, which imports everything anew."""
    own = {**os.environ, **environment(task)}
    opened = (os.POSIX_SPAWN_OPEN, 1, str(task.log), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    files = [opened, (os.POSIX_SPAWN_DUP2, 1, 2)]
    return os.posix_spawn(command[0], command, own, file_actions=files)


def can_fork_to_card() -> str:
    """Say why a child of this process cannot use the card; empty if it can."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        said = ""
        try:
            import torch

            torch.zeros(1, device="cuda").cpu()
        except BaseException as error:
            said = repr(error)
        os.write(write, said.encode()[:4000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(pid, 0)
    return said


def run_all(tasks: list[Task], start: Callable[[Task], int], slots: int, deadline: float) -> None:
    """Run tasks in their order, as many at once as there are slots, until the deadline."""
    waiting = list(tasks)
    running: list[Task] = []
    while waiting or running:
        now = time.monotonic()
        while waiting and len(running) < slots and now < deadline:
            task = waiting.pop(0)
            task.began = task.since = now
            task.pid = start(task)
            running.append(task)
        if now >= deadline:
            for task in waiting:
                task.ended = "out of time"
            waiting = []
        for task in running:
            _look(task, now >= deadline)
        running = [task for task in running if not task.ended]
        time.sleep(0.05)


def _look(task: Task, late: bool) -> None:
    """Take in a task's notes, and end it if it is over, hangs or is late."""
    pid, status = os.waitpid(task.pid, os.WNOHANG)
    task.read()
    if pid:
        task.ended = "done" if status == 0 else "died"
    elif late or time.monotonic() - task.since > task.limit():
        os.kill(task.pid, signal.SIGKILL)
        task.ended = "out of time" if late else "hung"
        _reap(task.pid)
    task.seconds = time.monotonic() - task.began


def _reap(pid: int) -> None:
    """Wait a little for a process that was ended: the driver may take its time."""
    until = time.monotonic() + 5
    while time.monotonic() < until and os.waitpid(pid, os.WNOHANG)[0] == 0:
        time.sleep(0.05)
