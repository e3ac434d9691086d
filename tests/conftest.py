"""One BLAS thread a worker: the suite is parallel by itself, and spinning threads only get in each other's way."""

import os

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
