"""One BLAS thread a worker, and no processes that explore ahead: the suite is parallel by itself, and more only gets in
its way.

The garbage collector looks seldom: a machine that a test has dropped is garbage for it, much at a time, and looking
through all that there is again and again is a twentieth of the suite's time.
"""

import gc
import os

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("KERNBENCH_WORKERS", "0")

gc.set_threshold(500_000, 5, 4)
