"""The process from which each long body gets a process of its own: ``python -m api.reading_process``.

The API starts it with a socket as its standard input, and first sends the :class:`api.reading.ReadingContext`. Then,
for each body, the API sends one end of a further connection. This process forks, and its child reads the body. The
child has the tokenizer already, and its memory returns to the system with its end. If it lacks the model that a body
names, the API has this process load it, and another child reads the body.

Whatever the child does, even inside a function that holds the interpreter's lock, these end it:

- The API closes the connection, or ends itself: the kernel sends the child a signal.
- The memory of the child exceeds ``text_process_bytes``: it gets no more from the kernel.

This process forks one child at a time, has no threads, and ends when the API closes its socket.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import pickle
import resource
import signal
import socket
import traceback
from collections.abc import Callable, Iterator
from functools import partial

# The functions that the API calls are imported before the first fork, so that no child has to do it.
import api.batches.reading
import api.requests.batch
import api.requests.calls
import api.requests.job_set
import api.requests.submission
import api.requests.tokenizing
from api.models.loading import load_into
from api.models.models import NotLoadedError
from api.reading import ReadingContext
from api.text_process.messages import (
    FORK,
    LOAD,
    OUT_OF_MEMORY,
    Ended,
    Failed,
    NotLoaded,
    Read,
    Refused,
    Result,
    pack,
    receive,
    send,
)
from scoring.error_codes import RequestError
from settings.logs import configure_logs

NICENESS = 10
"""By how much the children give way to other processes."""

PRELOADED = (
    api.batches.reading,
    api.requests.batch,
    api.requests.calls,
    api.requests.job_set,
    api.requests.submission,
    api.requests.tokenizing,
)


def main() -> None:
    """Fork a child for each connection that the API sends, until the API closes the socket."""
    configure_logs(fields={"process": "text"})
    # A signal to the whole group of processes, such as Ctrl-C, is for the API, which still answers its open requests.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # Long bodies can wait for a processor; the API, which answers everybody else, can't.
    os.nice(NICENESS)
    control = socket.socket(fileno=0)
    with contextlib.suppress(EOFError):
        reading: ReadingContext = pickle.loads(receive(control)[0])
        # Collections in a child would otherwise write to the shared pages, and so copy them.
        gc.collect()
        gc.freeze()
        while True:
            asked, descriptors, _, _ = socket.recv_fds(control, len(FORK), 1)
            if asked == LOAD:
                load_into(reading.models, pickle.loads(receive(control)[0]))
                gc.collect()
                gc.freeze()
                continue
            if not descriptors:
                return
            with socket.socket(fileno=descriptors[0]) as connection:
                _fork(connection, reading)


def _fork(connection: socket.socket, reading: ReadingContext) -> None:
    """Have a child read the body that comes over a connection, and wait for its end."""
    child = os.fork()
    if child == 0:
        exit_code = 1
        try:
            _read(connection, reading)
            exit_code = 0
        except MemoryError:
            exit_code = OUT_OF_MEMORY
        finally:
            os._exit(exit_code)
    _, status = os.waitpid(child, 0)
    if status:
        with contextlib.suppress(OSError):
            send(connection, pack(Ended(os.waitstatus_to_exitcode(status))))


def _read(connection: socket.socket, reading: ReadingContext) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)  # the socket of the parent, whose end the API would not notice otherwise
    os.dup2(nowhere, 2)  # a library that gets no memory writes about it and aborts; the API has a log for that
    # Whatever becomes garbage is freed with the process.
    gc.disable()
    call, body = receive(connection)
    reading.models.catalogue, function, arguments, keywords = pickle.loads(call)
    _limit_memory(reading.limits.text_process_bytes)
    with _killed_when_closed(connection):
        parts = pack(_result(partial(function, reading, body, *arguments, **keywords)))
    send(connection, parts)


def _result(function: Callable[[], object]) -> Result:
    try:
        return Read(function())
    except RequestError as error:
        return Refused(vars(error))
    except NotLoadedError as error:
        return NotLoaded(error.entry)
    except MemoryError:
        raise
    except BaseException:  # tokenizers raises such an exception for a bug in its Rust code
        return Failed(traceback.format_exc())


def _limit_memory(most: int) -> None:
    """Let this process have that many bytes of memory in addition to what it has now."""
    with open("/proc/self/statm") as statm:
        data_pages = int(statm.read().split()[5])
    now = data_pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (now + most, now + most))


@contextlib.contextmanager
def _killed_when_closed(connection: socket.socket) -> Iterator[None]:
    """Have the kernel end this process when the other side closes a connection, over which nothing is sent meanwhile.

    The kernel sends SIGIO whenever something happens to the connection. Nothing but its end can happen now, and a
    process that does not handle SIGIO is ended by it.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(connection, fcntl.F_GETFL)
    fcntl.fcntl(connection, fcntl.F_SETFL, flags | os.O_ASYNC)
    with contextlib.suppress(BlockingIOError):
        if not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
            raise EOFError  # it was closed before
    yield
    fcntl.fcntl(connection, fcntl.F_SETFL, flags)


if __name__ == "__main__":
    main()
