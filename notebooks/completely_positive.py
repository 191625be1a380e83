# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Completely positive matrices and tensors
#
# A symmetric tensor is completely positive when it is a sum of powers of nonnegative vectors. Many
# hard problems become linear over the cone of such tensors. Here a matrix with missing entries is
# completed, a standard quadratic program is solved, and the stability number of a graph is
# computed: with `minimize`, which proves its bounds, and as ordinary cvxpy problems.

# %%
import warnings

import cvxpy as cp
import numpy as np

from tensoralg import SymmetricTensor
from tensoralg.completely_positive import detect, minimize, relaxation_constraints

# %% [markdown]
# ## Is it completely positive?
#
# The answer is never a bare yes or no. A yes comes with nonnegative points that rebuild the matrix,
# a no with a certificate that is checked in exact arithmetic.

# %%
A = np.array([[2, 0, 0, 1, 1], [0, 2, 0, 1, 1], [0, 0, 2, 1, 1], [1, 1, 1, 3, 0], [1, 1, 1, 0, 3]])
yes = detect(A)
points = yes.decomposition.to_tensor(2).to_dense()
assert yes.verdict == "completely positive"
assert np.abs(points - A).max() < 1e-9
print(yes.verdict, "with", yes.decomposition.rank, "points")

# %%
B = np.array([[1, 1, 0, 0, 1], [1, 2, 1, 0, 0], [0, 1, 2, 1, 0], [0, 0, 1, 2, 1], [1, 0, 0, 1, 6]])
no = detect(B)
assert no.verdict == "not completely positive"
assert no.certificate.verify()
assert np.linalg.eigvalsh(B).min() > 0  # doubly nonnegative, and yet not completely positive
print(no.verdict, "- a form that is nonnegative on the orthant has the value", no.certificate.value)

# %% [markdown]
# ## Complete a matrix
#
# All entries of a completely positive matrix are known but one. Which values may it take? Each
# known entry is a constraint; the missing one is minimised and maximised.


# %%
def entry(i, j, n):
    """The matrix E with <E, X> = X[i, j]."""
    E = np.zeros((n, n))
    E[i, j] += 0.5
    E[j, i] += 0.5
    return E


n = 4
atoms = np.array([[1.0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 2], [1, 0, 0, 0]])
M = atoms.T @ atoms
known = [(i, j) for i in range(n) for j in range(i, n) if (i, j) != (0, 3)]
constraints = [(entry(i, j, n), "==", M[i, j]) for i, j in known]
least = minimize(entry(0, 3, n), constraints)
most = minimize(-entry(0, 3, n), constraints)
print(f"the missing entry lies between {least.value:.6f} and {-most.value:.6f}")

# %% [markdown]
# Both ends come with a completed matrix and the points that it is made of, and with a bound that
# no completion can pass.

# %%
for result in (least, most):
    assert result.status == "optimal"
    assert result.value - result.lower_bound < 1e-5
    completed = result.tensor.to_dense()
    assert max(abs(completed[i, j] - M[i, j]) for i, j in known) < 1e-7
    assert (result.decomposition.points >= 0).all()
print(most.tensor.to_dense().round(4))

# %% [markdown]
# The same with cvxpy: the upper triangle of the matrix is a vector of variables, and one call adds
# the relaxation of the cone. Whatever else the problem has, cvxpy takes care of. For matrices of
# up to four rows the lowest order is exact.

# %%
X = cp.Variable(n * (n + 1) // 2)  # upper triangle by rows
position = {(i, j): k for k, (i, j) in enumerate(zip(*np.triu_indices(n), strict=True))}
conditions = [X[position[i, j]] == M[i, j] for i, j in known]
conditions += relaxation_constraints(X, 2, n, relaxation_order=1)
model = cp.Problem(cp.Maximize(X[position[0, 3]]), conditions)
model.solve(solver="CLARABEL")
assert abs(model.value + most.value) < 1e-4
print(f"cvxpy: at most {model.value:.6f}")

# %% [markdown]
# ## A standard quadratic program
#
# The least value of $x^{\mathsf T} C x$ on the simplex is the least $\langle C, X\rangle$ over
# completely positive $X$ whose entries sum to 1. With $C$ the identity plus the adjacency matrix
# of the cycle of length 5 it is 1/2. Relaxations approach it from below.

# %%
cycle = np.roll(np.eye(5), 1, axis=1) + np.roll(np.eye(5), -1, axis=1)
ones = np.ones((5, 5))
for order in (1, 2):
    result = minimize(np.eye(5) + cycle, [(ones, "==", 1.0)], max_order=order)
    print(f"order {order}: {result.lower_bound:.6f} <= optimum <= {result.value:.6f}")
assert result.status == "optimal"
assert abs(result.value - 0.5) < 1e-6

# %% [markdown]
# ## The stability number of a graph
#
# How many vertices of the cycle can be chosen without two neighbours? The copositive formulation
# of de Klerk and Pasechnik: the most that the entries of $X$ can sum to, where $X$ is completely
# positive, has trace 1, and vanishes on the edges. The lowest order gives the bound of Lovász and
# Schrijver, $\sqrt 5$; the next one is exact.


# %%
def stability_bound(adjacency, order):
    """Upper bound on the stability number from a relaxation, in cvxpy."""
    n = len(adjacency)

    def inner(B):
        tensor = SymmetricTensor.from_dense(B)
        return (tensor.entries * tensor.multiplicities) @ X

    X = cp.Variable(n * (n + 1) // 2)
    conditions = [inner(np.eye(n)) == 1, inner(adjacency) == 0]
    conditions += relaxation_constraints(X, 2, n, order)
    model = cp.Problem(cp.Maximize(inner(np.ones((n, n)))), conditions)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the optimum is degenerate: six digits, cvxpy expects more
        return model.solve(solver="CLARABEL")


bounds = [stability_bound(cycle, order) for order in (1, 2)]
print(f"order 1: {bounds[0]:.6f}, order 2: {bounds[1]:.6f}")
assert abs(bounds[0] - np.sqrt(5)) < 1e-4
assert abs(bounds[1] - 2) < 1e-4

# %% [markdown]
# `minimize` finds the stable set as well: the atoms of the optimal matrix.

# %%
stable = minimize(-ones, [(np.eye(5), "==", 1.0), (cycle, "==", 0.0)])
assert stable.status == "optimal"
assert abs(stable.value + 2) < 1e-5
chosen = stable.decomposition.points[0] > 1e-6
assert chosen.sum() == 2
assert not cycle[np.ix_(chosen, chosen)].any()
print("vertices", np.flatnonzero(chosen))

# %% [markdown]
# ## Higher order
#
# Nothing changes for tensors. The largest product of three numbers that sum to 1 is 1/27:

# %%
product = SymmetricTensor.from_function(lambda i, j, k: (len({i, j, k}) == 3) / 6, 3, 3)
result = minimize(-product, [(np.ones((3, 3, 3)), "==", 1.0)])
assert result.status == "optimal"
assert abs(result.value + 1 / 27) < 1e-6
print(f"{-result.value:.9f} at {result.decomposition.points[0].round(6)}")
