"""Least squares by MPI: each process has rows of its own, all have one gradient.

    shoal launch --hosts hosts.txt --once -- mpirun python mpi_job.py

Nothing in here is Shoal's. `--once` starts mpirun on the first host; it finds the
others, and how many processes each has, in the file of hosts that it is told of.
"""

import socket

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
rows = np.random.default_rng(world.rank).standard_normal((256, 8))
truth = np.arange(8.0)
targets = rows @ truth
weights = np.zeros(8)
for _ in range(200):
    mine = rows.T @ (rows @ weights - targets) / len(rows)
    weights -= 0.1 * world.allreduce(mine) / world.size
error = float(np.abs(weights - truth).max())
print(f"rank {world.rank} of {world.size} on {socket.gethostname()}: error {error:.1e}")
