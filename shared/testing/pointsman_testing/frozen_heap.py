"""Takes everything imported so far out of the garbage collector's sight. The nursery imports this last.

A collection in a fork would write to every object that it inherited, and so copy the memory that forks share.
"""

import gc

gc.collect()
gc.freeze()
