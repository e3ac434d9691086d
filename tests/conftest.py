"""One BLAS thread per process: the suite is parallel by itself, and more only gets in its way. Processes that explore
ahead (KERNBENCH_WORKERS) are started as users have them; where pytest itself has several threads, as under xdist, only
by programs that tests start. They cost the few tests that reach them 7 % of CPU time.

The garbage collector looks seldom: a machine that a test has dropped is garbage for it, much at a time, and looking
through all that there is again and again is a twentieth of the suite's time.
"""

import gc
import os

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

gc.set_threshold(500_000, 5, 4)
