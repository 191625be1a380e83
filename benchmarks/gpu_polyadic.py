"""Polyadic decomposition on a GPU: first whether everything is right there, then how fast.

    python -m benchmarks.gpu_polyadic [--size N] [--rank R]

Meant for one run of less than 8 minutes; parts that would start later than that are left out.
Without a usable CUDA device it says so in one line. All of it but the calls of cuBLAS and
numba.cuda works on any array library, so that the script itself can be tested anywhere.
"""

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensoralg import KruskalTensor
from tensoralg.gpu.mttkrp import mttkrp
from tensoralg.gpu.namespaces import namespace_of, probe_devices, to_numpy
from tensoralg.gpu.precision import PRECISIONS, precision_policy
from tensoralg.gpu.sampled_gradient import (
    draw_fibres,
    gather_fibres,
    khatri_rao_rows,
    sampled_gradient,
)
from tensoralg.polyadic import decompose
from tensoralg.solvers.alternating_sweeps import AlternatingSweeps
from tensoralg.solvers.polyadic_residual import relative_residual
from tensoralg.solvers.stochastic_steps import BlockSteps, StochasticSchedule

SIZE, RANK, SEED = 1000, 64, 9000
SMALL = (40, 50, 60)  # what is checked against the host
BUDGET = 420.0  # seconds after which no part is begun
NO_DEVICE = "No CUDA device that CuPy can use: nothing was measured."
ALLOWED = {
    "float64": 1e-12,
    "float32": 1e-5,
    "tf32": 3e-3,
    "bfloat16": 2e-2,
    "float16": 3e-3,
    "float8": 0.15,
    "int8": 3e-2,
}
TIMED = ("float32", "tf32", "bfloat16", "float8")
ENDS = 1e-5  # of the float64 fit, after the exact finish


@dataclass(frozen=True)
class Machine:
    """An array library, how to wait for it, and whether CUDA kernels run on its arrays."""

    xp: Any
    name: str
    wait: Callable[[], object] = lambda: None
    has_cuda: bool = False

    def seconds(self, call: Callable[[], object], repeats: int) -> float:
        """Mean seconds of a call, the first one left out."""
        call()
        self.wait()
        begin = time.perf_counter()
        for _ in range(repeats):
            call()
        self.wait()
        return max(time.perf_counter() - begin, 1e-9) / repeats


def find_machine() -> Machine | None:
    """CuPy's device if there is one."""
    found = [device for device in probe_devices() if device.kind == "cupy" and device.usable]
    if not found:
        return None
    import cupy

    return Machine(cupy, found[0].name, cupy.cuda.get_current_stream().synchronize, True)


def relative(found: Any, exact: Any) -> float:
    """Norm of the difference over the norm, on the host in float64."""
    wide = to_numpy(found).astype(np.float64)
    return float(np.linalg.norm(wide - exact) / np.linalg.norm(exact))


def small_problem() -> tuple[Any, list[Any]]:
    """A float32 tensor of five terms with noise, and factors of eight columns."""
    rng = np.random.default_rng(SEED)
    X = KruskalTensor(None, [rng.standard_normal((n, 5)) for n in SMALL]).to_dense()
    X += 0.1 * rng.standard_normal(SMALL)
    factors = [rng.standard_normal((n, 8)).astype(np.float32) for n in SMALL]
    return X.astype(np.float32), factors


Check = tuple[str, float, float]  # what, error, allowed


def product_checks(machine: Machine) -> Iterator[Check]:
    """MTTKRP in every mode and precision, against float64 on the host."""
    X, factors = small_problem()
    wide = [f.astype(np.float64) for f in factors]
    placed, columns = machine.xp.asarray(X), [machine.xp.asarray(f) for f in factors]
    for name in PRECISIONS:
        policy = precision_policy(name)
        errors = [
            relative(
                mttkrp(placed, columns, mode, policy=policy), mttkrp(X.astype(float), wide, mode)
            )
            for mode in range(3)
        ]
        yield f"MTTKRP, {name}", max(errors), ALLOWED[name]


def gradient_of(tensor: Any, factors: list[Any], mode: int, others: list[Any]) -> Any:
    """Gather fibres and rows, and multiply them by the array library."""
    rows = khatri_rao_rows(factors, mode, others)
    return sampled_gradient(gather_fibres(tensor, mode, others), rows, factors[mode])


def gather_checks(machine: Machine) -> Iterator[Check]:
    """Residuals, sampled gradients and sparse products, against float64 on the host."""
    X, factors = small_problem()
    wide = [f.astype(np.float64) for f in factors]
    placed, columns = machine.xp.asarray(X), [machine.xp.asarray(f) for f in factors]
    exact = relative_residual(X, wide)
    found = relative_residual(placed, [machine.xp.asarray(f) for f in wide])
    yield "residual", abs(found / exact - 1.0), 1e-12
    for mode in range(3):
        others = draw_fibres(X.shape, mode, 30, np.random.default_rng(mode))
        gradient = gradient_of(X.astype(float), wide, mode, others)
        name = f"sampled gradient, mode {mode}"
        yield name, relative(gradient_of(placed, columns, mode, others), gradient), 1e-5
        if machine.has_cuda:
            from tensoralg.gpu.cuda_kernels import cuda_sampled_gradient, cuda_sparse_mttkrp

            index = [machine.xp.asarray(i) for i in others]
            fused = cuda_sampled_gradient(placed, columns, mode, index)
            yield f"{name}, fused kernel", relative(fused, gradient), 1e-5
            where = machine.xp.asarray(np.stack(np.nonzero(X > 1)))
            product = cuda_sparse_mttkrp(where, machine.xp.asarray(X[X > 1]), columns, mode)
            dense = mttkrp(np.where(X > 1, X, 0).astype(float), wide, mode)
            yield f"sparse MTTKRP, mode {mode}", relative(product, dense), 1e-5


def decomposition_checks(machine: Machine) -> Iterator[Check]:
    """Fits of whole decompositions after the exact finish."""
    X, _ = small_problem()
    exact = decompose(X.astype(float), 5, rng=0).fit
    placed = machine.xp.asarray(X)
    for name in PRECISIONS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a low precision may stop at its floor
            starts = decompose(placed, 5, rng=0, n_starts=3, precision=name)
        yield f"decompose, {name}", max(exact - starts.fit, 0.0), ENDS


def check_lines(machine: Machine) -> tuple[list[str], bool]:
    """All checks, and whether all hold."""
    lines = ["| check against float64 on the host | error | allowed | |", "|---|---|---|---|"]
    is_right = True
    for part in (product_checks, gather_checks, decomposition_checks):
        try:
            for name, error, allowed in part(machine):
                holds = error <= allowed
                is_right &= holds
                verdict = "right" if holds else "WRONG"
                lines.append(f"| {name} | {error:.1e} | {allowed:.2g} | {verdict} |")
        except Exception as problem:  # the other parts are still worth their time
            is_right = False
            lines.append(f"| {part.__name__} | {type(problem).__name__}: {problem} | | FAILED |")
    return lines, is_right


def large_tensor(machine: Machine, size: int, rank: int) -> tuple[Any, list[Any]]:
    """A float32 tensor of that rank without noise, and other factors, on the device."""
    xp, rng = machine.xp, np.random.default_rng(SEED)
    truth, start = (
        [xp.asarray(rng.standard_normal((size, rank)).astype(np.float32)) for _ in range(3)]
        for _ in range(2)
    )
    pairs = xp.reshape(truth[1][:, None, :] * truth[2][None, :, :], (-1, rank))
    return xp.reshape(xp.matmul(truth[0], pairs.T), (size, size, size)), start


def copy_rate(machine: Machine, X: Any) -> float:
    """GB/s of a copy, read and written bytes together."""
    xp = namespace_of(X)
    return 2e-9 * 4 * X.size / machine.seconds(lambda: xp.asarray(X, copy=True), 10)


def product_rate(machine: Machine, name: str, size: int) -> float:
    """TFLOP/s of a square product whose operands are in the policy's type already."""
    xp = machine.xp
    a = xp.asarray(np.random.default_rng(0).standard_normal((size, size)).astype(np.float32))
    if not machine.has_cuda:
        return 2e-12 * size**3 / machine.seconds(lambda: xp.matmul(a, a), 3)
    from tensoralg.gpu import cupy_gemm

    policy = precision_policy(name)
    left, _ = cupy_gemm._device_operand(xp, a[:, :, None], policy, None, 1)
    right, _ = cupy_gemm._device_operand(xp, a, policy, None, 0)
    out = xp.empty((size, 1, size), dtype=np.float32)
    kind = cupy_gemm._KINDS[name]
    seconds = machine.seconds(lambda: cupy_gemm._call_cublas(xp, left, right, out, kind), 5)
    return 2e-12 * size**3 / seconds


def sweep_lines(machine: Machine, size: int, rank: int) -> list[str]:
    """Milliseconds per sweep, and which part of the measured limits that is."""
    X, start = large_tensor(machine, size, rank)
    xp = namespace_of(X)
    wide = [xp.astype(f, xp.float64) for f in start]
    copied = copy_rate(machine, X)
    lines = [
        f"Copy: {copied:.0f} GB/s. A sweep is 1.5 passes over {4e-9 * X.size:.2f} GB.",
        "",
        "| precision | ms per sweep | of the copy rate | product alone, TFLOP/s | of that |",
        "|---|---|---|---|---|",
    ]
    for name in TIMED:
        policy = None if name == "float32" else precision_policy(name)
        sweeps = AlternatingSweeps(X, wide, policy=policy)

        def pair(sweeps: AlternatingSweeps = sweeps) -> None:
            sweeps.sweep()
            sweeps.sweep()

        seconds = machine.seconds(pair, 4) / 2
        rate = product_rate(machine, name, min(8 * size, 8192))
        moved = 1e-9 * 1.5 * 4 * X.size / seconds
        multiplied = 1e-12 * 1.5 * 2 * X.size * rank / seconds
        lines.append(
            f"| {name} | {1e3 * seconds:.2f} | {moved / copied:.2f} | {rate:.0f} "
            f"| {multiplied / rate:.2f} |"
        )
    return lines


def step_lines(machine: Machine, size: int, rank: int) -> list[str]:
    """Stochastic steps per second, and the sampled gradient alone."""
    X, start = large_tensor(machine, size, rank)
    xp = machine.xp
    schedule = StochasticSchedule()
    lines = ["| what | per second |", "|---|---|"]
    for name in ("float32", "bfloat16"):
        policy = None if name == "float32" else precision_policy(name, rounding="stochastic")
        steps = BlockSteps(
            start, schedule, dtype=xp.float32, norm=1.0, policy=policy,
            rng=np.random.default_rng(0),
        )  # fmt: skip
        seconds = machine.seconds(lambda steps=steps: steps.run(X, 100, 1.0, signs=False), 3)
        lines.append(f"| steps, {schedule.fibres(rank)} fibres, {name} | {100 / seconds:.0f} |")
    if machine.has_cuda:
        from tensoralg.gpu.cuda_kernels import cuda_sampled_gradient

        drawn = draw_fibres(X.shape, 0, schedule.fibres(rank), np.random.default_rng(0))
        others = [xp.asarray(i) for i in drawn]
        fused = machine.seconds(lambda: cuda_sampled_gradient(X, start, 0, others), 50)
        plain = machine.seconds(lambda: gradient_of(X, start, 0, drawn), 50)
        lines.append(f"| gradient, fused kernel | {1 / fused:.0f} |")
        lines.append(f"| gradient, array library | {1 / plain:.0f} |")
    return lines


def peer_lines(machine: Machine, size: int, rank: int) -> list[str]:
    """TensorLy's sweep on the same device, from runs of two lengths."""
    import tensorly
    from tensorly.decomposition import parafac

    X, _ = large_tensor(machine, size, rank)
    backend = "cupy" if machine.has_cuda else "numpy"

    def sweeps(count: int) -> None:
        parafac(X, rank, n_iter_max=count, init="random", tol=0, random_state=0)

    with tensorly.backend_context(backend):
        times = [machine.seconds(lambda count=count: sweeps(count), 1) for count in (1, 4)]
    return [f"TensorLy on {backend}, float32: {1e3 * (times[1] - times[0]) / 3:.1f} ms per sweep."]


def report(machine: Machine, size: int = SIZE, rank: int = RANK) -> tuple[str, bool]:
    """All parts that the budget has time for, and whether the checks hold."""
    begin = time.perf_counter()
    checks, is_right = check_lines(machine)
    lines = [f"{machine.name}, {size}^3, {rank} terms.", "", *checks]
    for part in (sweep_lines, step_lines, peer_lines):
        lines.append("")
        if time.perf_counter() - begin > BUDGET:
            lines.append(f"{part.__name__}: left out, the time is spent")
            continue
        try:
            lines += part(machine, size, rank)
        except Exception as problem:  # what was measured before is still worth printing
            lines.append(f"{part.__name__} failed: {type(problem).__name__}: {problem}")
            is_right = is_right and part is peer_lines
    return "\n".join(lines), is_right


def run(size: int = SIZE, rank: int = RANK) -> str:
    """Measure and return Markdown; one line where there is no GPU."""
    machine = find_machine()
    return NO_DEVICE if machine is None else report(machine, size, rank)[0]


def main() -> int:
    """Measure and print; 1 where a check fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=SIZE)
    parser.add_argument("--rank", type=int, default=RANK)
    arguments = parser.parse_args()
    machine = find_machine()
    if machine is None:
        print(NO_DEVICE)
        return 0
    text, is_right = report(machine, arguments.size, arguments.rank)
    print(text)
    return 0 if is_right else 1


if __name__ == "__main__":
    raise SystemExit(main())
