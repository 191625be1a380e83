"""Which way a tensorized layer computes its output: operations and memory of every route.

No torch here: the plans are counts over shapes and ranks, so they can be read and tested alone.

References
----------
.. [1] Z. Yang et al., "CoMERA: Computing- and Memory-Efficient Training via Rank-Adaptive Tensor
   Optimization", NeurIPS 2024, arXiv:2405.14377 (contraction in two halves).
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tensoralg.core.tensor_train_shapes import count_parameters

__all__ = ["Plan", "Route", "chain_cost", "cheapest_plan", "plan_linear", "plan_lookup"]

# floating-point operations that take as long as one number read or written: where routes differ
# little in operations, the one that touches less memory is faster
_OPERATIONS_PER_NUMBER = 8
# and as long as starting one step: what decides for few tokens
_OPERATIONS_PER_STEP = 200_000


@dataclass(frozen=True, slots=True)
class Route:
    """One way to compute a layer's output, with what it costs.

    Parameters
    ----------
    name : str
        For a linear layer "halves", "sequential" or "dense"; for an embedding "gather", "slices"
        or "dense".
    operations : int
        Floating-point operations of a forward pass, a multiplication and an addition counted as
        two.
    moved : int
        Numbers read and written by all steps.
    memory : int
        Numbers held at once besides parameters, input and output.
    steps : int
        Number of products and gathers.

    Examples
    --------
    >>> Route("halves", operations=80, moved=10, memory=4, steps=2).cost
    400160
    """

    name: str
    operations: int
    moved: int
    memory: int
    steps: int

    @property
    def cost(self) -> int:
        """Operations, with memory traffic and the start of each step expressed in them."""
        traffic = _OPERATIONS_PER_NUMBER * self.moved
        return self.operations + traffic + _OPERATIONS_PER_STEP * self.steps


@dataclass(frozen=True, slots=True)
class Plan:
    """The routes of a layer for one number of tokens, and the one that is taken.

    Printing a plan shows a table.

    Parameters
    ----------
    routes : tuple of Route
        All of them.
    chosen : str
        Name of the one that is taken.
    tokens : int
        Number of rows of the input.
    parameters : int
        Numbers in the cores.
    dense_parameters : int
        Numbers in the weight matrix or table that the cores stand for.
    reason : str
        Why it was chosen.

    Examples
    --------
    >>> plan = plan_linear((12, 8, 8), (8, 8, 12), (1, 12, 30, 30, 30, 12, 1), tokens=512)
    >>> print(plan)
    512 tokens, 20,448 parameters in the cores, 589,824 in the dense weight (28.8x)
      halves         50,088,960 operations   67,200 numbers of memory  <- taken
      sequential     80,805,888 operations  516,096 numbers of memory
      dense         642,272,256 operations  635,904 numbers of memory
    halves: the cheapest, by operations, memory traffic and number of steps
    """

    routes: tuple[Route, ...]
    chosen: str
    tokens: int
    parameters: int
    dense_parameters: int
    reason: str

    @property
    def route(self) -> Route:
        """The one that is taken."""
        return next(route for route in self.routes if route.name == self.chosen)

    def __str__(self) -> str:
        ratio = self.dense_parameters / max(1, self.parameters)
        lines = [
            f"{self.tokens:,} tokens, {self.parameters:,} parameters in the cores, "
            f"{self.dense_parameters:,} in the dense weight ({ratio:.3g}x)"
        ]
        name_width = max(len(route.name) for route in self.routes)
        widths = [
            max(len(f"{value:,}") for value in column)
            for column in zip(*((r.operations, r.memory) for r in self.routes), strict=True)
        ]
        for route in self.routes:
            mark = "  <- taken" if route.name == self.chosen else ""
            lines.append(
                f"  {route.name:<{name_width}}  {route.operations:>{widths[0] + 2},} operations  "
                f"{route.memory:>{widths[1]},} numbers of memory{mark}"
            )
        return "\n".join([*lines, f"{self.chosen}: {self.reason}"])


def chain_cost(sizes: Sequence[int], ranks: Sequence[int]) -> tuple[int, int, int]:
    """Cost of merging consecutive cores, from the side whose outer rank comes first.

    Parameters
    ----------
    sizes : sequence of int, length m
        Numbers of values of the modes, in the order of merging.
    ranks : sequence of int, length m + 1
        Their bonds, in the same order.

    Returns
    -------
    operations, moved, memory : int
        As in `Route`; the memory includes the result.

    Examples
    --------
    >>> chain_cost((12, 8, 8), (1, 12, 30, 30))
    (1451520, 39024, 25920)
    """
    operations = moved = memory = 0
    rows = ranks[0] * sizes[0]
    held = rows * ranks[1]
    for size, left, right in zip(sizes[1:], ranks[1:], ranks[2:], strict=False):
        operations += 2 * rows * left * size * right
        result = rows * size * right
        moved += held + left * size * right + result
        memory = max(memory, held + result)
        rows, held = rows * size, result
    return operations, moved, max(memory, held)


def _sequential_route(
    in_shape: Sequence[int], out_shape: Sequence[int], ranks: Sequence[int], tokens: int
) -> Route:
    """Contract the input with one core after the other."""
    operations = moved = memory = 0
    rest, before = math.prod(in_shape), 1
    held = tokens * rest
    for k, size in enumerate((*in_shape, *out_shape)):
        left, right = ranks[k], ranks[k + 1]
        if k < len(in_shape):
            rest //= size
            operations += 2 * tokens * left * size * right * rest
            result = tokens * right * rest
        else:
            operations += 2 * tokens * before * left * size * right
            before *= size
            result = tokens * before * right
        moved += held + left * size * right + result
        # input and output are not counted as memory of the route
        inner = (held if k else 0) + (result if k < len(ranks) - 2 else 0)
        memory, held = max(memory, inner), result
    return Route("sequential", operations, moved, memory, len(ranks) - 1)


def _product_cost(tokens: int, rows: int, columns: int) -> tuple[int, int]:
    """Operations and traffic of a matrix product of tokens with a rows x columns matrix."""
    return 2 * tokens * rows * columns, tokens * (rows + columns) + rows * columns


@functools.lru_cache(maxsize=4096)
def plan_linear(
    in_shape: tuple[int, ...],
    out_shape: tuple[int, ...],
    ranks: tuple[int, ...],
    *,
    tokens: int,
    in_features: int | None = None,
    out_features: int | None = None,
    cached: bool = False,
) -> Plan:
    """Choose how a linear layer in tensor-train form computes ``x W``.

    Parameters
    ----------
    in_shape, out_shape : tuple of int
        Modes of inputs and outputs.
    ranks : tuple of int
        All bonds of the train over inputs, then outputs.
    tokens : int
        Rows of the input.
    in_features, out_features : int, optional
        Rows and columns of the weight; the products of the shapes by default.
    cached : bool, default False
        Whether merged factors are kept from call to call (eval mode), so that merging is free.

    Returns
    -------
    Plan
        "halves" merges the input cores to A and the output cores to B and computes ``(x A) B``;
        "sequential" contracts x with one core after the other; "dense" multiplies A and B first.

    Examples
    --------
    >>> plan_linear((4, 4), (4, 8), (1, 4, 16, 8, 1), tokens=1000).chosen
    'dense'
    """
    d = len(in_shape)
    rows, columns = in_features or math.prod(in_shape), out_features or math.prod(out_shape)
    middle = ranks[d]
    left = chain_cost(in_shape, ranks[: d + 1])
    right = chain_cost(out_shape[::-1], ranks[d:][::-1])
    first, second = _product_cost(tokens, rows, middle), _product_cost(tokens, middle, columns)
    full, joined = _product_cost(tokens, rows, columns), _product_cost(rows, middle, columns)
    factors = middle * (rows + columns)
    merging = left[0] + right[0], left[1] + right[1], len(ranks) - 3
    if cached:
        merging, joined = (0, 0, 0), (0, 0)
    halves = Route(
        "halves",
        merging[0] + first[0] + second[0],
        merging[1] + first[1] + second[1],
        (factors if cached else max(left[2] + right[2], factors)) + tokens * middle,
        merging[2] + 2,
    )
    dense = Route(
        "dense",
        merging[0] + joined[0] + full[0],
        merging[1] + joined[1] + full[1],
        rows * columns + (0 if cached else factors),
        merging[2] + (1 if cached else 2),
    )
    routes = (halves, _sequential_route(in_shape, out_shape, ranks, tokens), dense)
    parameters = count_parameters((*in_shape, *out_shape), ranks)
    return cheapest_plan(
        routes, tokens, parameters, rows * columns, cached and factors < rows * columns
    )


def cheapest_plan(
    routes: tuple[Route, ...], tokens: int, parameters: int, dense_parameters: int, spare: bool
) -> Plan:
    """Plan the cheapest route.

    Parameters
    ----------
    routes : tuple of Route
        The last one is the dense one.
    tokens, parameters, dense_parameters : int
        As in `Plan`.
    spare : bool
        Whether a route that keeps a dense weight is out of the question.

    Returns
    -------
    Plan
        Dense, too, where the cores hold no fewer numbers than the weight.
    """
    chosen = min(routes, key=lambda route: route.cost).name
    reason = "the cheapest, by operations, memory traffic and number of steps"
    if spare and chosen == "dense" and len(routes) > 1:
        chosen = min(routes[:-1], key=lambda route: route.cost).name
        reason = "a dense weight that is kept would give up the memory that the cores save"
    if parameters >= dense_parameters:
        chosen = "dense"
        reason = "the cores hold no fewer numbers than the dense weight: factors cannot pay here"
    return Plan(routes, chosen, tokens, parameters, dense_parameters, reason)


@functools.lru_cache(maxsize=4096)
def plan_lookup(
    row_shape: tuple[int, ...],
    column_shape: tuple[int, ...],
    ranks: tuple[int, ...],
    *,
    tokens: int,
    num_embeddings: int | None = None,
    embedding_dim: int | None = None,
    cached: bool = False,
) -> tuple[Plan, int]:
    """Choose how an embedding in tensor-train matrix form looks up rows.

    Parameters
    ----------
    row_shape, column_shape : tuple of int, length d
        Modes of the rows' numbers and of the columns.
    ranks : tuple of int, length d + 1
        All bonds.
    tokens : int
        Number of distinct rows that are looked up.
    num_embeddings, embedding_dim : int, optional
        Rows and columns of the table; the products of the shapes by default.
    cached : bool, default False
        Whether merged factors are kept from call to call (eval mode).

    Returns
    -------
    plan : Plan
        "gather" merges the cores to two tables, gathers a slice of each for every row and
        multiplies the pairs; "slices" gathers a slice of every core and multiplies them; "dense"
        builds the whole table.
    split : int
        Number of cores in the first of the two tables of "gather".

    Examples
    --------
    >>> plan, split = plan_lookup((31, 31, 32), (8, 8, 12), (1, 32, 32, 1), tokens=1000)
    >>> plan.chosen, split
    ('gather', 2)
    """
    d = len(ranks) - 1
    sizes = tuple(v * e for v, e in zip(row_shape, column_shape, strict=True))
    count, width = num_embeddings or math.prod(row_shape), embedding_dim or math.prod(column_shape)
    whole = (0, 0, count * width) if cached else chain_cost(sizes, ranks)
    dense = Route("dense", whole[0], whole[1] + 2 * tokens * width, whole[2], 1 if cached else d)
    routes = [_slices_route(column_shape, ranks, tokens), dense]
    split = 1
    if d > 1:
        tables = [
            (_gather_route(row_shape, column_shape, ranks, tokens, split, cached), split)
            for split in range(1, d)
        ]
        gather, split = min(tables, key=lambda table: table[0].cost)
        routes.insert(0, gather)
    parameters = count_parameters(sizes, ranks)
    return cheapest_plan(tuple(routes), tokens, parameters, count * width, cached), split


def _gather_route(
    row_shape: Sequence[int],
    column_shape: Sequence[int],
    ranks: Sequence[int],
    tokens: int,
    split: int,
    cached: bool,
) -> Route:
    """Two merged tables, the first of so many cores."""
    sizes = [v * e for v, e in zip(row_shape, column_shape, strict=True)]
    left = chain_cost(sizes[:split], ranks[: split + 1])
    right = chain_cost(sizes[split:][::-1], ranks[split:][::-1])
    near, far, bond = math.prod(column_shape[:split]), math.prod(column_shape[split:]), ranks[split]
    gathered, held = tokens * bond * (near + far), left[2] + right[2]
    operations, moved = 2 * tokens * bond * near * far, 2 * gathered + tokens * near * far
    if cached:
        held = bond * (math.prod(sizes[:split]) + math.prod(sizes[split:]))
        return Route("gather", operations, moved, held + gathered, 3)
    merging, traffic = left[0] + right[0], left[1] + right[1]
    return Route("gather", operations + merging, moved + traffic, held + gathered, len(ranks))


def _slices_route(column_shape: Sequence[int], ranks: Sequence[int], tokens: int) -> Route:
    """Gather a slice of every core for every row."""
    operations = moved = memory = 0
    width, held = 1, 0
    for k, e in enumerate(column_shape):
        slice_size = tokens * ranks[k] * e * ranks[k + 1]
        result = tokens * width * e * ranks[k + 1]
        if k:
            operations += 2 * width * slice_size
            moved += held + result
        moved += 2 * slice_size
        memory = max(memory, held + slice_size + (result if k < len(column_shape) - 1 else 0))
        width, held = width * e, result
    return Route("slices", operations, moved, memory, 2 * len(column_shape) - 1)
