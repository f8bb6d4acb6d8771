"""A process that has imported the service, and forks others that run modules of it: ``python -m tests.forked.parent``.

Each line of its standard input asks for one process. It answers with two lines: the id of the process, and its status.
Where the request names a file for the status, it answers with the id alone, and writes the status into that file once
the process has ended. Such processes are killed when this one ends.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from tests.services import die_with_parent


class Replaced(BaseException):
    """The process was to be replaced by another program of Python."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        super().__init__(arguments)
        self.arguments = arguments
        self.environment = environment


def _replace(_program: str, arguments: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    raise Replaced(arguments, environment)


def _run(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run the command ``scoreline …``, or a module, given as ``-m module …``, with this environment."""
    os.environ.clear()
    os.environ.update(environment)
    if arguments[0] == "scoreline":
        sys.argv = list(arguments)
        sys.modules["__main__"] = ModuleType("__main__")
        importlib.import_module("scoreline.start").main()
        return
    place = arguments.index("-m")
    module = arguments[place + 1]
    sys.argv = list(arguments[place + 1 :])
    for name in (module, f"{module}.__main__"):
        # It runs under another name, and must not be there twice. A package stays: its modules are needed.
        if not hasattr(sys.modules.get(name), "__path__"):
            sys.modules.pop(name, None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _status(request: Mapping[str, Any]) -> int:
    """Run what was asked for, and return the exit status."""
    arguments, environment = request["arguments"], request["environment"]
    while True:
        try:
            _run(arguments, environment)
        except Replaced as replaced:
            arguments, environment = replaced.arguments, replaced.environment
        except SystemExit as ended:
            if isinstance(ended.code, str):
                print(ended.code, file=sys.stderr)
                return 1
            return ended.code or 0
        except BaseException:
            traceback.print_exc()
            return 1
        else:
            return 0


def _become(request: Mapping[str, Any]) -> NoReturn:
    """Run what was asked for in this process, as if Python had been started for it, and end."""
    os.chdir(request["folder"])
    writing = os.O_WRONLY | os.O_APPEND  # both may be one file
    flags = (os.O_RDONLY, writing, writing)
    for number, (path, how) in enumerate(zip(request["files"], flags, strict=True)):
        opened = os.open(path, how)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.execve = _replace  # type: ignore[assignment]
    status = _status(request)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    # The end of the interpreter would take all imported modules apart, which takes longer than most commands.
    os._exit(status)


_unfinished: dict[int, Path] = {}
"""The processes whose status goes to a file, by their ids."""


def _write_statuses(*_: object) -> None:
    """Write down how processes have ended, unless they still run."""
    for child, path in list(_unfinished.items()):
        with suppress(ChildProcessError):  # The signal that one has ended may come in the middle of this function.
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                del _unfinished[child]
                whole = path.with_suffix(".whole")
                whole.write_text(str(os.waitstatus_to_exitcode(status)))
                whole.rename(path)


def main() -> None:
    signal.signal(signal.SIGCHLD, _write_statuses)
    die = die_with_parent(signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an import prints is no answer
    while line := sys.stdin.readline():
        request = json.loads(line)
        for module in request["imports"]:
            importlib.import_module(module)
        gc.freeze()  # so that no collection of a forked process walks, and copies, what was imported
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if request["status"] and die is not None:
                die()
            os.close(answers.fileno())
            _become(request)
        print(child, file=answers, flush=True)
        if request["status"]:
            _unfinished[child] = Path(request["status"])
            _write_statuses()  # it may have ended before this line
            continue
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers, flush=True)


if __name__ == "__main__":
    main()
