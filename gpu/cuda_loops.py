"""Bodies of the kernels of `tensoralg.gpu.cuda_kernels`, imported on first use.

They name the module ``cuda`` as a global, which numba's simulator replaces.
"""

from typing import Any

import numpy as np
from numba import cuda

__all__ = ["gradient_kernel", "sparse_kernel"]


def gradient_kernel(rank: int, dtype: str, staged: int) -> Any:
    """Make the kernel: a thread per row of the factor, a block per few fibres."""
    kind = np.dtype(dtype).type

    def gradient(
        flat: Any, starts: Any, step: int, stacked: Any, rows: Any, factor: Any, out: Any
    ) -> None:
        H = cuda.shared.array((staged, rank), kind)
        a = cuda.local.array(rank, kind)
        total = cuda.local.array(rank, kind)
        first = cuda.blockIdx.y * staged
        # no min(): numba asks a driver for it, and kernels must compile without one
        count = starts.shape[0] - first
        if count > staged:
            count = staged
        for entry in range(cuda.threadIdx.x, count * rank, cuda.blockDim.x):
            s, q = entry // rank, entry % rank
            product = stacked[rows[0, first + s], q]
            for k in range(1, rows.shape[0]):
                product *= stacked[rows[k, first + s], q]
            H[s, q] = product
        cuda.syncthreads()
        i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
        if i < out.shape[0]:
            for q in range(rank):
                a[q] = factor[i, q]
                total[q] = 0
            for s in range(count):
                error = -kind(flat[starts[first + s] + i * step])
                for q in range(rank):
                    error += a[q] * H[s, q]
                for q in range(rank):
                    total[q] += error * H[s, q]
            for q in range(rank):
                cuda.atomic.add(out, (i, q), total[q])

    return gradient


def sparse_kernel(rank: int, dtype: str, run: int) -> Any:
    """Make the kernel: a thread per column and run of nonzeros, neighbours in a row together."""
    kind = np.dtype(dtype).type

    def sparse(target: Any, rows: Any, values: Any, stacked: Any, out: Any) -> None:
        index = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
        q = index % rank
        first = (index // rank) * run
        last = first + run
        if last > values.shape[0]:
            last = values.shape[0]
        if first < last:
            row = target[first]
            total = kind(0)
            for n in range(first, last):
                if target[n] != row:
                    cuda.atomic.add(out, (row, q), total)
                    row = target[n]
                    total = kind(0)
                product = values[n]
                for k in range(rows.shape[0]):
                    product *= stacked[rows[k, n], q]
                total += product
            cuda.atomic.add(out, (row, q), total)

    return sparse
