"""Counts a process's calls, the opcodes that they run and their calls into C, between each SIGUSR2 and the next one,
in every thread that Python starts.

Python imports a module of this name at its start where the module search path has one.
"""

import json
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType

Tracer = Callable[[FrameType, str, object], "Tracer"]

_calls: Counter[CodeType] = Counter()
_opcodes: Counter[CodeType] = Counter()
_c_calls: Counter[CodeType] = Counter()
_counting = threading.Event()


def _step(frame: FrameType, event: str, _argument: object) -> Tracer:
    if event == "opcode":
        _opcodes[frame.f_code] += 1
    return _step


def _enter(frame: FrameType, event: str, _argument: object) -> Tracer:
    if event == "call":
        _calls[frame.f_code] += 1
    frame.f_trace_opcodes = True
    frame.f_trace_lines = False
    return _step


def _enter_in_thread(frame: FrameType, event: str, argument: object) -> Tracer | None:
    return _enter(frame, event, argument) if _counting.is_set() else None


def _profile_in_thread(frame: FrameType, event: str, argument: object) -> None:
    if _counting.is_set():
        _profile(frame, event, argument)


def _profile(frame: FrameType, event: str, _argument: object) -> None:
    if event == "c_call":
        _c_calls[frame.f_code] += 1


def _switch(_number: int, _frame: FrameType | None) -> None:
    if sys.gettrace() is None:
        for counts in (_calls, _opcodes, _c_calls):
            counts.clear()
        _counting.set()
        sys.setprofile(_profile)
        sys.settrace(_enter)
        return
    _counting.clear()
    sys.settrace(None)
    sys.setprofile(None)
    rows = [
        (code.co_filename, code.co_qualname, _calls[code], opcodes, _c_calls[code])
        for code, opcodes in list(_opcodes.items())
    ]
    part = Path(os.environ["POINTSMAN_TRACE_FILE"] + f".{os.getpid()}.part")
    part.write_text(json.dumps(rows))
    part.rename(part.with_suffix(""))


if "POINTSMAN_TRACE_FILE" in os.environ:
    signal.signal(signal.SIGUSR2, _switch)
    # From their start: the interpreter lets no thread trace another one.
    threading.settrace(_enter_in_thread)  # pyright: ignore[reportArgumentType] - typeshed wants a tracer that never ends
    threading.setprofile(_profile_in_thread)
