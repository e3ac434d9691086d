"""One BLAS thread a worker: the suite runs in parallel by itself, and threads that spin for a core only get in each other's way."""

import os

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
