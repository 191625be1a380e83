"""Vector instructions for numba kernels: small pieces of LLVM code, built while one compiles.

Vectors are as wide as the registers of this machine; LLVM splits them where it must.
"""

from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba.core import cgutils, types

__all__ = ["REGISTERS", "VECTOR_BYTES", "VectorCode"]


def _machine() -> tuple[int, int]:
    """Bytes of a vector register, and how many there are."""
    features = llvmlite.binding.get_host_cpu_features()
    if features.get("avx512f") and features.get("avx512vl"):
        return 64, 32
    if features.get("avx2") and features.get("fma"):
        return 32, 16
    return 16, 32 if features.get("neon") else 16


VECTOR_BYTES, REGISTERS = _machine()

_INT32 = ir.IntType(32)
_INT64 = ir.IntType(64)


class VectorCode:
    """Emits vector operations of one element type at the position of a numba builder.

    Parameters
    ----------
    context : numba target context
        As numba hands it to an intrinsic.
    builder : llvmlite.ir.IRBuilder
        Where the code goes.
    dtype : numba.types.Float
        float32 or float64.
    """

    def __init__(self, context: Any, builder: Any, dtype: Any) -> None:
        self.context = context
        self.builder = builder
        self.itemsize = 4 if dtype == types.float32 else 8
        self.lanes = VECTOR_BYTES // self.itemsize
        self.element = ir.FloatType() if self.itemsize == 4 else ir.DoubleType()
        self.vector = ir.VectorType(self.element, self.lanes)
        self.zero = ir.Constant(self.vector, None)
        self.undefined = ir.Constant(self.vector, ir.Undefined)
        self._mask = ir.VectorType(ir.IntType(1), self.lanes)
        self._suffix = f"v{self.lanes}f{8 * self.itemsize}"
        self._alignment = ir.Constant(_INT32, self.itemsize)

    def integer(self, value: int) -> Any:
        """Give a constant index."""
        return ir.Constant(_INT64, value)

    def start_of(self, array_type: Any, array: Any, offset: Any) -> Any:
        """Address of element `offset` of a flat contiguous array."""
        data = self.context.make_array(array_type)(self.context, self.builder, array).data
        return self.builder.gep(data, [offset])

    def at(self, base: Any, offset: Any) -> Any:
        """Address `offset` elements after another."""
        return self.builder.gep(base, [offset])

    def opaque(self, value: Any) -> Any:
        """Give the same integer, of which the compiler knows nothing.

        What depends on it cannot be computed ahead of a loop, where it would take registers.
        """
        kind = ir.FunctionType(value.type, [value.type])
        return self.builder.asm(kind, "", "=r,0", [value], True)

    def load(self, address: Any) -> Any:
        """Read one vector, at any alignment."""
        value = self.builder.load(self.builder.bitcast(address, self.vector.as_pointer()))
        value.align = self.itemsize
        return value

    def prefetch(self, address: Any) -> None:
        """Ask for the cache line at an address, valid or not, into the second-level cache."""
        pointer = self.builder.bitcast(address, ir.IntType(8).as_pointer())
        signature = ir.FunctionType(ir.VoidType(), [pointer.type, _INT32, _INT32, _INT32])
        function = cgutils.get_or_insert_function(
            self.builder.module, signature, "llvm.prefetch.p0"
        )
        read, second_level, data = (ir.Constant(_INT32, n) for n in (0, 2, 1))
        self.builder.call(function, [pointer, read, second_level, data])

    def load_scalar(self, address: Any) -> Any:
        """Read one element into all lanes."""
        return self._spread(self.builder.load(address), self.vector)

    def fused_multiply_add(self, x: Any, y: Any, z: Any) -> Any:
        """Give x * y + z, in one instruction where the machine has it."""
        return self._call("llvm.fmuladd", self.vector, [x, y, z])

    def below(self, count: Any) -> Any:
        """Mask of the lanes whose number is below `count`."""
        lanes = ir.VectorType(_INT64, self.lanes)
        numbers = ir.Constant(lanes, list(range(self.lanes)))
        return self.builder.icmp_signed("<", numbers, self._spread(count, lanes))

    def masked_load(self, address: Any, mask: Any) -> Any:
        """Read the lanes of the mask; the others are 0 and their memory is not touched."""
        pointer = self.builder.bitcast(address, self.vector.as_pointer())
        arguments = [pointer, self._alignment, mask, self.zero]
        return self._call("llvm.masked.load", self.vector, arguments, ".p0")

    def masked_store(self, value: Any, address: Any, mask: Any) -> None:
        """Write the lanes of the mask; the memory of the others is not touched."""
        pointer = self.builder.bitcast(address, self.vector.as_pointer())
        arguments = [value, pointer, self._alignment, mask]
        self._call("llvm.masked.store", ir.VoidType(), arguments, ".p0")

    def transpose(self, rows: list[Any]) -> list[Any]:
        """Turn `lanes` vectors into the columns of the square they form."""
        half = self.lanes // 2
        pairs = [[k for i in part for k in (i, self.lanes + i)] for part in self._halves()]
        masks = [ir.Constant(ir.VectorType(_INT32, self.lanes), pair) for pair in pairs]
        for _ in range(self.lanes.bit_length() - 1):
            # each round interleaves the first half of the vectors with the second
            rows = [
                self.builder.shuffle_vector(rows[i], rows[i + half], mask)
                for i in range(half)
                for mask in masks
            ]
        return rows

    def loop(self, count: Any, initial: list[Any]) -> "VectorLoop":
        """Open a counted loop that carries vectors or indices."""
        return VectorLoop(self.builder, count, initial)

    def _halves(self) -> tuple[range, range]:
        return range(self.lanes // 2), range(self.lanes // 2, self.lanes)

    def _spread(self, scalar: Any, vector: Any) -> Any:
        undefined = ir.Constant(vector, ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, ir.Constant(_INT32, 0))
        mask = ir.Constant(ir.VectorType(_INT32, self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(first, undefined, mask)

    def _call(self, name: str, result: Any, arguments: list[Any], ending: str = "") -> Any:
        signature = ir.FunctionType(result, [argument.type for argument in arguments])
        function = cgutils.get_or_insert_function(
            self.builder.module, signature, f"{name}.{self._suffix}{ending}"
        )
        return self.builder.call(function, arguments)


class VectorLoop:
    """A loop over 0 .. count - 1 whose sums stay in registers; a context manager.

    Inside the context `index` and `values` are the current ones; `advance` sets the next
    values; after it `values` holds the final ones.
    """

    def __init__(self, builder: Any, count: Any, initial: list[Any]) -> None:
        self._builder, self._count, self._initial = builder, count, initial
        self._next: list[Any] = []

    def __enter__(self) -> "VectorLoop":
        builder = self._builder
        entry = builder.block
        self._head = builder.append_basic_block("loop.head")
        self._body = builder.append_basic_block("loop.body")
        self._done = builder.append_basic_block("loop.done")
        builder.branch(self._head)
        builder.position_at_end(self._head)
        self.index = builder.phi(_INT64)
        self.index.add_incoming(ir.Constant(_INT64, 0), entry)
        self.values = [builder.phi(value.type) for value in self._initial]
        for phi, value in zip(self.values, self._initial, strict=True):
            phi.add_incoming(value, entry)
        builder.cbranch(builder.icmp_signed("<", self.index, self._count), self._body, self._done)
        builder.position_at_end(self._body)
        return self

    def advance(self, values: list[Any]) -> None:
        """Set the values of the next round."""
        self._next = values

    def __exit__(self, *_: object) -> None:
        builder = self._builder
        last = builder.block
        for phi, value in zip(self.values, self._next, strict=True):
            phi.add_incoming(value, last)
        self.index.add_incoming(builder.add(self.index, ir.Constant(_INT64, 1)), last)
        builder.branch(self._head)
        builder.position_at_end(self._done)
