"""What every test process needs before torch is loaded."""

import os

# Cells are split by forking, which a pool of threads does not survive; and threads change numbers.
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"
