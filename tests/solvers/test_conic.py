"""Conic programs: known optima, every adapter, residuals, refusals and failures."""

import math

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from tensoralg.core.errors import ProblemTooLargeError, ShapeError
from tensoralg.core.index_maps import listed_multiplicities
from tensoralg.core.indices import multi_indices
from tensoralg.solvers import conic
from tensoralg.solvers.conic import ConicBlock, ConicProblem, ConicResult, solve_conic
from tensoralg.solvers.conic_scaling import problem_scales
from tensoralg.solvers.moment_matrices import dehomogenize
from tensoralg.solvers.moment_relaxation import build_relaxation
from tensoralg.solvers.svec import (
    lower_columns,
    smat,
    svec,
    svec_positions,
    svec_side,
    svec_size,
    triangle_indices,
)
from tensoralg.solvers.uniform_shift import shift_problem

# SCS is a first-order method: fewer digits are asked of it
ACCURACY = {"clarabel": 1e-7, "sdpa": 1e-6, "scs": 1e-5}


@pytest.fixture(params=sorted(ACCURACY))
def solver(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if name not in conic.available_solvers():
        pytest.skip(f"{name} is not installed")
    return name


def symmetric(rng: np.random.Generator, side: int) -> np.ndarray:
    matrix = rng.normal(size=(side, side))
    return matrix + matrix.T


def largest_eigenvalue(matrix: np.ndarray) -> ConicProblem:
    """Least y with y I - matrix positive semidefinite."""
    identity = svec(np.eye(len(matrix)))
    return ConicProblem(np.ones(1), (ConicBlock(-matrix, -identity[:, None]),))


def theta(side: int, edges: list[tuple[int, int]]) -> ConicProblem:
    """Lovasz' number: least t with t I + sum y_e E_e - J positive semidefinite."""
    columns = [-svec(np.eye(side))]
    for i, j in edges:
        pattern = np.zeros((side, side))
        pattern[i, j] = pattern[j, i] = 1.0
        columns.append(-svec(pattern))
    block = ConicBlock(-np.ones((side, side)), np.array(columns).T)
    return ConicProblem(np.eye(len(columns))[0], (block,))


def known_pair(
    seed: int, n_variables: int, sides: tuple[int, ...], n_equations: int = 0
) -> tuple[ConicProblem, float]:
    """A random problem built around a strictly complementary pair, and its optimum."""
    rng = np.random.default_rng(seed)
    y = rng.normal(size=n_variables)
    c, blocks = np.zeros(n_variables), []
    for side in sides:
        basis = np.linalg.qr(rng.normal(size=(side, side)))[0]
        half = (side + 1) // 2
        slack = basis[:, :half] * rng.uniform(1, 2, half) @ basis[:, :half].T
        dual = basis[:, half:] * rng.uniform(1, 2, side - half) @ basis[:, half:].T
        G = np.array([svec(symmetric(rng, side)) for _ in range(n_variables)]).T
        blocks.append(ConicBlock(slack + smat(G @ y), G))
        c -= G.T @ svec(dual)
    E = rng.normal(size=(n_equations, n_variables))
    c -= E.T @ rng.normal(size=n_equations)
    return ConicProblem(c, tuple(blocks), E, E @ y), float(c @ y)


def check_identities(problem: ConicProblem, result: ConicResult, accuracy: float) -> None:
    """The identities that the module promises, from scratch and without `svec`."""
    gradient = np.array(problem.c)
    dual, product = 0.0, 0.0
    for block, Z in zip(problem.blocks, result.multipliers, strict=True):
        G = block.G.toarray()
        coefficients = [smat(column) for column in G.T]
        gradient += [float((Z * g).sum()) for g in coefficients]
        S = block.h - sum(
            (y * g for y, g in zip(result.y, coefficients, strict=True)), np.zeros_like(block.h)
        )
        dual -= float((Z * block.h).sum())
        product += float((Z * S).sum())
        assert np.array_equal(Z, Z.T)
        assert np.linalg.eigvalsh(Z)[0] > -accuracy
        assert np.linalg.eigvalsh(S)[0] > -accuracy
    gradient += problem.equality_matrix.T @ result.equality_multipliers
    dual -= float(problem.equality_vector @ result.equality_multipliers)
    np.testing.assert_allclose(gradient, 0, atol=accuracy)
    np.testing.assert_allclose(
        problem.equality_matrix @ result.y, problem.equality_vector, atol=accuracy
    )
    assert abs(product) < accuracy * 10
    assert result.dual_objective == pytest.approx(dual, abs=1e-12, rel=1e-12)
    assert result.objective == pytest.approx(float(problem.c @ result.y), abs=1e-12, rel=1e-12)


# --- svec -------------------------------------------------------------------------------------


@given(st.integers(1, 6), st.integers(0, 1000))
def test_svec_is_an_isometry_with_an_exact_order(side: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    X, Y = symmetric(rng, side), symmetric(rng, side)
    assert svec(X).shape == (svec_size(side),)
    assert svec(X) @ svec(Y) == pytest.approx((X * Y).sum())
    np.testing.assert_allclose(smat(svec(X)), X, rtol=1e-15)
    # written out: down each column to the diagonal
    position = 0
    for j in range(side):
        for i in range(j + 1):
            assert svec(X)[position] == X[i, j] * (1.0 if i == j else math.sqrt(2.0))
            assert svec_positions(np.array(j), np.array(i)) == position
            position += 1


@pytest.mark.parametrize("side", range(1, 7))
def test_lower_columns_walks_the_other_triangle(side: int) -> None:
    X = symmetric(np.random.default_rng(side), side)
    weight = np.where(np.eye(side, dtype=bool), 1.0, math.sqrt(2.0))
    expected = [(X * weight)[i, j] for j in range(side) for i in range(j, side)]
    np.testing.assert_array_equal(svec(X)[lower_columns(side)], expected)


def test_svec_stacks_and_refusals() -> None:
    rng = np.random.default_rng(0)
    stack = np.array([symmetric(rng, 3) for _ in range(4)]).reshape(2, 2, 3, 3)
    assert svec(stack).shape == (2, 2, 6)
    np.testing.assert_allclose(smat(svec(stack)), stack)
    assert [svec_side(svec_size(s)) for s in range(8)] == list(range(8))
    rows, columns = triangle_indices(4)
    assert (rows <= columns).all()
    for size in (2, 4, -1):
        with pytest.raises(ShapeError, match="holds no triangle"):
            svec_side(size)
    with pytest.raises(ShapeError, match="accepted is"):
        svec(np.ones((2, 3)))


# --- every adapter ----------------------------------------------------------------------------


@pytest.mark.parametrize("side", range(1, 7))
def test_an_asymmetric_pattern_goes_through_every_adapter(solver: str, side: int) -> None:
    """Both y and Z are pinned to patterns in which no two entries agree."""
    pattern = np.arange(1.0, svec_size(side) + 1) ** 1.5 / svec_size(side)
    target = smat(pattern) + 3.0 * side * np.eye(side)
    # least <W, Y> with Y - target >= 0: Y = target, and the multiplier is W
    weight = smat(np.cos(np.arange(svec_size(side)))) + 2.0 * side * np.eye(side)
    block = ConicBlock(-target, -np.eye(svec_size(side)))
    result = solve_conic(ConicProblem(svec(weight), (block,)), solver=solver)
    accuracy = 100 * ACCURACY[solver]
    np.testing.assert_allclose(smat(result.y), target, atol=accuracy * side)
    np.testing.assert_allclose(result.multipliers[0], weight, atol=accuracy * side)


@pytest.mark.parametrize("n_equations", [0, 2])
@pytest.mark.parametrize("sides", [(4,), (1, 2, 3, 4, 5, 6), (1, 1, 5)])
def test_known_optimum_and_identities(
    solver: str, sides: tuple[int, ...], n_equations: int
) -> None:
    problem, optimum = known_pair(7, 6 if len(sides) > 3 else 4, sides, n_equations)
    result = solve_conic(problem, solver=solver)
    assert result.solver == solver
    assert result.status in ("solved", "inaccurate")
    assert result.objective == pytest.approx(optimum, abs=100 * ACCURACY[solver])
    check_identities(problem, result, 100 * ACCURACY[solver])


def test_largest_eigenvalue(solver: str) -> None:
    matrix = symmetric(np.random.default_rng(3), 5)
    values, vectors = np.linalg.eigh(matrix)
    result = solve_conic(largest_eigenvalue(matrix), solver=solver)
    assert result.objective == pytest.approx(values[-1], abs=10 * ACCURACY[solver])
    # the multiplier is the projection on the eigenvector
    np.testing.assert_allclose(
        result.multipliers[0], np.outer(vectors[:, -1], vectors[:, -1]), atol=1e-4
    )


def test_theta_of_the_pentagon(solver: str) -> None:
    result = solve_conic(theta(5, [(i, (i + 1) % 5) for i in range(5)]), solver=solver)
    assert result.objective == pytest.approx(math.sqrt(5), abs=10 * ACCURACY[solver])


def test_clarabel_is_exact_to_the_default_tolerance() -> None:
    for problem, optimum in (
        (theta(5, [(i, (i + 1) % 5) for i in range(5)]), math.sqrt(5)),
        (theta(3, []), 3.0),
        (theta(7, [(i, (i + 1) % 7) for i in range(7)]), 3.3176672),
    ):
        result = solve_conic(problem)
        assert result.solver == "clarabel"
        assert result.status == "solved"
        assert max(result.primal_residual, result.dual_residual, result.gap) <= 1e-9
        assert result.objective == pytest.approx(optimum, abs=1e-7)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), exponent=st.integers(-8, 8))
def test_units_do_not_matter(seed: int, exponent: int) -> None:
    problem, _ = known_pair(seed, 3, (3, 2))
    factor, unit = 10.0**exponent, np.array([1e-6, 1.0, 1e6])
    scaled = ConicProblem(
        problem.c * unit * factor,
        tuple(
            ConicBlock(b.h * factor, b.G @ scipy.sparse.diags_array(unit)) for b in problem.blocks
        ),
    )
    one, other = solve_conic(problem), solve_conic(scaled)
    assert one.status != "failed"
    assert other.status != "failed"
    size = abs(one.objective) + 1
    assert other.objective / factor**2 == pytest.approx(one.objective, abs=1e-6 * size)


@pytest.mark.parametrize("weight", [1 / 64, 64.0])
def test_the_weight_of_the_objective_changes_no_answer(solver: str, weight: float) -> None:
    problem, optimum = known_pair(11, 4, (4, 3), 1)
    result = solve_conic(problem, solver=solver, objective_weight=weight)
    assert result.objective == pytest.approx(optimum, abs=1000 * ACCURACY[solver])
    check_identities(problem, result, 1000 * ACCURACY[solver])
    # residuals are measured in the problem's units, whatever the solver was given
    assert max(result.primal_residual, result.dual_residual, result.gap) < 1e-5


@pytest.mark.parametrize(("n", "d", "k"), [(3, 3, 3), (4, 3, 3), (5, 3, 2)])
def test_a_larger_weight_of_the_objective_gives_digits_to_the_multipliers(
    monkeypatch: pytest.MonkeyPatch, n: int, d: int, k: int
) -> None:
    monkeypatch.setattr(conic, "_SECOND", math.inf)  # no second attempt
    counts = np.array([len(set(a)) for a in multi_indices(n, d).tolist()])
    entries = np.array([1, 0.3, 0.35])[counts - 1]
    known = dehomogenize(entries / (entries @ listed_multiplicities(n, d)), n, d)
    problem = shift_problem(build_relaxation(known, n - 1, d, k))
    light, heavy = (solve_conic(problem, objective_weight=w) for w in (1.0, 128.0))
    assert heavy.dual_residual < 1e-3 * light.dual_residual
    assert heavy.y[0] == pytest.approx(light.y[0], abs=1e-7)
    seen = [np.linalg.norm(problem_scales(problem, w).scaled(problem).c) for w in (1.0, 128.0)]
    assert seen == pytest.approx([1.0, 128.0])


def test_tiny_coefficients_are_left_out_inside_only() -> None:
    problem, optimum = known_pair(5, 3, (3,))
    G = problem.blocks[0].G.toarray()
    noise = np.where(np.random.default_rng(0).random(G.shape) < 0.5, 1e-13, 0.0)
    noisy = ConicProblem(problem.c, (ConicBlock(problem.blocks[0].h, G * (noise == 0) + noise),))
    assert problem_scales(noisy).scaled(noisy).n_nonzeros < noisy.n_nonzeros
    G0 = G * (noise == 0)
    rest = ConicProblem(problem.c, (ConicBlock(problem.blocks[0].h, G0),))
    assert solve_conic(noisy).objective == pytest.approx(solve_conic(rest).objective, abs=1e-6)
    assert math.isfinite(optimum)


# --- residuals, failures, refusals ---------------------------------------------------------------


def test_residuals_are_ours_not_the_solvers(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = theta(5, [(0, 1), (1, 2)])
    true = conic._ADAPTERS["clarabel"]

    def liar(scaled: ConicProblem, tol: float, limit: float | None) -> conic.RawSolution:
        raw = true(scaled, tol, limit)
        return conic.RawSolution(raw.y + 1e-3, raw.duals, "Solved")

    monkeypatch.setitem(conic._ADAPTERS, "clarabel", liar)
    result = solve_conic(problem)
    assert result.status == "failed"
    assert result.primal_residual > 1e-5 or result.gap > 1e-5


@pytest.mark.parametrize(("error", "calls"), [(1e-12, 1), (1e-6, 2), (0.1, 1)])
def test_a_second_attempt_when_the_first_falls_a_little_short(
    monkeypatch: pytest.MonkeyPatch, error: float, calls: int
) -> None:
    problem = theta(5, [(i, (i + 1) % 5) for i in range(5)])
    true, seen = conic._ADAPTERS["clarabel"], []

    def first_time_short(
        scaled: ConicProblem, tol: float, limit: float | None
    ) -> conic.RawSolution:
        raw = true(scaled, tol, limit)
        seen.append(float(np.linalg.norm(scaled.c)))
        return conic.RawSolution(raw.y - error * (len(seen) == 1), raw.duals, raw.word)

    monkeypatch.setitem(conic._ADAPTERS, "clarabel", first_time_short)
    result = solve_conic(problem)
    assert len(seen) == calls
    assert (result.status == "solved") == (error != 0.1)
    if calls == 2:
        assert seen[1] == 16 * seen[0]


@pytest.mark.parametrize("kind", [RuntimeError, MemoryError, "panic"])
def test_an_exception_becomes_a_status(
    monkeypatch: pytest.MonkeyPatch, kind: type[Exception] | str
) -> None:
    error = type("PanicException", (BaseException,), {}) if kind == "panic" else kind
    assert isinstance(error, type)

    def broken(scaled: ConicProblem, tol: float, limit: float | None) -> conic.RawSolution:
        raise error("the factor broke down")

    monkeypatch.setitem(conic._ADAPTERS, "clarabel", broken)
    problem = theta(4, [(0, 1)])
    result = solve_conic(problem)
    assert result.status == "failed"
    assert "the factor broke down" in result.message
    assert error.__name__ in result.message
    assert np.isnan(result.y).all()
    assert result.multipliers[0].shape == (4, 4)
    assert result.gap == math.inf


def test_an_interrupt_goes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(scaled: ConicProblem, tol: float, limit: float | None) -> conic.RawSolution:
        raise KeyboardInterrupt

    monkeypatch.setitem(conic._ADAPTERS, "clarabel", interrupted)
    with pytest.raises(KeyboardInterrupt):
        solve_conic(theta(3, []))


def test_infeasible_and_unbounded(solver: str) -> None:
    eye = svec(np.eye(2))[:, None]
    # y I <= -I and y I >= I at once
    infeasible = ConicProblem(
        np.ones(1), (ConicBlock(-np.eye(2), eye), ConicBlock(-np.eye(2), -eye))
    )
    unbounded = ConicProblem(np.ones(1), (ConicBlock(np.eye(2), eye),))
    for problem in (infeasible, unbounded):
        result = solve_conic(problem, solver=solver)
        assert result.status == "failed"
        assert result.message


def test_no_variables_is_an_eigenvalue_test() -> None:
    good = ConicProblem(np.zeros(0), (ConicBlock(np.eye(2), np.zeros((3, 0))),))
    bad = ConicProblem(np.zeros(0), (ConicBlock(-np.eye(2), np.zeros((3, 0))),))
    assert solve_conic(good).status == "solved"
    assert solve_conic(good).objective == 0.0
    assert solve_conic(bad).status == "failed"
    assert solve_conic(bad).primal_residual > 0.3


def test_memory_is_refused_before_the_solver_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(scaled: ConicProblem, tol: float, limit: float | None) -> conic.RawSolution:
        raise AssertionError("the solver was called")

    for name in ("clarabel", "scs"):
        monkeypatch.setitem(conic._ADAPTERS, name, never)
    side = 400
    G = scipy.sparse.csc_array(([-1.0], ([0], [0])), shape=(svec_size(side), 1))
    problem = ConicProblem(np.ones(1), (ConicBlock(np.eye(side), G),))
    with pytest.raises(ProblemTooLargeError, match=r"clarabel would take about .* GiB .* 400 rows"):
        solve_conic(problem, solver="clarabel")
    with pytest.raises(ProblemTooLargeError, match="scs would take"):
        solve_conic(problem, solver="scs", memory_limit=1)
    # n = 12, d = 4, k = 4: no solver takes that within its limit
    for name in ("clarabel", "sdpa"):
        assert conic.predict_bytes((1365,) + (364,) * 12, 73_000, 10**7, name) > 4 * 2**30


def test_automatic_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conic, "_installed", lambda name: True)
    assert conic.automatic_solver((35, 10), 100, 1000) == "clarabel"
    assert conic.automatic_solver((70, 10), 100, 1000) == "sdpa"
    # too large for both: the one that takes less is named in the refusal
    assert conic.automatic_solver((300, 10), 1000, 10**5, memory_limit=1000) == "sdpa"
    # a Schur complement of 10**5 variables does not fit either
    assert conic.automatic_solver((36,), 10**5, 10**5, memory_limit=10**11) == "clarabel"
    monkeypatch.setattr(conic, "_installed", lambda name: name != "sdpa")
    assert conic.automatic_solver((70, 10), 100, 1000) == "clarabel"
    with pytest.raises(ImportError, match="is not installed"):
        solve_conic(theta(3, []), solver="sdpa")


def test_bad_arguments() -> None:
    problem = theta(3, [])
    with pytest.raises(ValueError, match="solver is 'mosek'"):
        solve_conic(problem, solver="mosek")
    with pytest.raises(ValueError, match="tol is 0"):
        solve_conic(problem, tol=0)
    with pytest.raises(ValueError, match="objective_weight is nan"):
        solve_conic(problem, objective_weight=math.nan)
    with pytest.raises(ValueError, match="time_limit is -1"):
        solve_conic(problem, time_limit=-1)
    with pytest.raises(ShapeError, match="h has shape"):
        ConicBlock(np.ones((2, 3)), np.ones((3, 1)))
    with pytest.raises(ShapeError, match="h has 1 axes"):
        ConicBlock(np.ones(2), np.ones((3, 1)))
    with pytest.raises(ShapeError, match="G has 4 rows: accepted are 3"):
        ConicBlock(np.eye(2), np.ones((4, 1)))
    with pytest.raises(ValueError, match=r"h\[0, 1\] is nan"):
        ConicBlock(np.array([[1.0, np.nan], [0.0, 1.0]]), np.ones((3, 1)))
    with pytest.raises(ValueError, match="G holds NaN or inf"):
        ConicBlock(np.eye(1), np.array([[np.inf]]))
    block = ConicBlock(np.eye(1), np.ones((1, 2)))
    with pytest.raises(ShapeError, match="blocks is empty"):
        ConicProblem(np.ones(2), ())
    with pytest.raises(ShapeError, match="2 columns: accepted are 3"):
        ConicProblem(np.ones(3), (block,))
    with pytest.raises(ShapeError, match="both or neither"):
        ConicProblem(np.ones(2), (block,), np.ones((1, 2)))
    with pytest.raises(ShapeError, match="equality_matrix has shape"):
        ConicProblem(np.ones(2), (block,), np.ones((1, 2)), np.ones(2))


def test_arrays_are_copied_and_read_only() -> None:
    c, h = np.ones(1), np.eye(2)
    problem = ConicProblem(c, (ConicBlock(h, svec(np.eye(2))[:, None] * -1),))
    c[0] = h[0, 0] = 5.0
    assert problem.c[0] == 1.0
    assert problem.blocks[0].h[0, 0] == 1.0
    assert not problem.c.flags.writeable
    result = solve_conic(problem)
    assert not result.y.flags.writeable
    assert not result.multipliers[0].flags.writeable


def test_a_time_limit_stops_the_solver() -> None:
    problem, _ = known_pair(1, 40, (30, 30))
    result = solve_conic(problem, time_limit=1e-6)
    assert result.status == "failed"
    assert "MaxTime" in result.message


# --- cvxpy as an oracle ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
def test_against_cvxpy(seed: int) -> None:
    cvxpy = pytest.importorskip("cvxpy")
    problem, _ = known_pair(seed, 5, (4, 3), seed)
    y = cvxpy.Variable(5)
    constraints = []
    for block in problem.blocks:
        matrices = [smat(column) for column in block.G.toarray().T]
        constraints.append(block.h - sum(y[i] * G for i, G in enumerate(matrices)) >> 0)
    if seed:
        constraints.append(problem.equality_matrix.toarray() @ y == problem.equality_vector)
    oracle = cvxpy.Problem(cvxpy.Minimize(problem.c @ y), constraints)
    oracle.solve(solver="CLARABEL")
    result = solve_conic(problem)
    assert result.objective == pytest.approx(oracle.value, abs=1e-6)
    for Z, constraint in zip(result.multipliers, constraints[:2], strict=False):
        np.testing.assert_allclose(Z, constraint.dual_value, atol=1e-4)


def test_what_sdpa_leaves_inaccurate_goes_to_clarabel(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("cholesky miss condition")

    monkeypatch.setattr(conic, "_installed", lambda name: True)
    monkeypatch.setitem(conic._ADAPTERS, "sdpa", broken)
    matrix = symmetric(np.random.default_rng(0), 40)
    result = solve_conic(largest_eigenvalue(matrix))
    assert result.status == "solved"
    assert result.objective == pytest.approx(np.linalg.eigvalsh(matrix)[-1])
    named = solve_conic(largest_eigenvalue(matrix), solver="sdpa")
    assert named.status == "failed"
    assert "cholesky miss condition" in named.message
