"""Prepares the process that the nursery forks from; imported there last.

It leaves the session of the test run, so that a signal to all processes of the run doesn't end it: without it the run
wouldn't learn which of its forks still live. It ends when the run does.

Everything imported so far leaves the garbage collector's sight. A collection in a fork would write to every object that
it inherited, and so copy the memory that forks share.
"""

import gc
import os

os.setsid()
gc.collect()
gc.freeze()
