"""The layers under autocast, compilation, export, copying, conversion, and many processes."""

import copy
import io
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from tensoralg.nn import TTLinear, TTMEmbedding

torch.set_num_threads(1)


class Model(nn.Module):
    def __init__(self, rank=4):
        super().__init__()
        self.table = TTMEmbedding(50, 16, rank=rank, padding_idx=0)
        self.first = TTLinear(16, 24, rank=rank)
        self.second = TTLinear(24, 7, rank=rank, bias=False)

    def forward(self, ids):
        return self.second(torch.tanh(self.first(self.table(ids))))


IDS = torch.tensor([[0, 3, 49], [3, 3, 17]])


def model(rank=4):
    torch.manual_seed(0)
    return Model(rank)


@pytest.mark.parametrize("route", ["halves", "sequential", "dense"])
@pytest.mark.parametrize("training", [True, False])
def test_autocast_gives_the_dtypes_of_the_dense_layers(training, route):
    layer, dense = TTLinear(16, 32, rank=4).train(training), nn.Linear(16, 32)
    layer._route = lambda *_: route
    x = torch.randn(5, 16)
    exact = layer(x).detach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
        assert y.dtype == dense(x).dtype == torch.bfloat16
        with torch.no_grad():
            assert layer(x).dtype == torch.bfloat16
        table, plain = TTMEmbedding(9, 4, rank=2).train(training), nn.Embedding(9, 4)
        assert table(torch.tensor([1])).dtype == plain(torch.tensor([1])).dtype == torch.float32
    y.float().sum().backward()
    assert all(core.grad.dtype == torch.float32 for core in layer.cores)
    assert torch.linalg.norm(y.float() - exact) < 0.03 * torch.linalg.norm(exact)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_change_of_dtype_reaches_cores_and_kept_factors(dtype):
    layer, table = TTLinear(16, 32, rank=4).eval(), TTMEmbedding(50, 16, rank=4).eval()
    x = torch.randn(5, 16)
    with torch.no_grad():
        before, rows = layer(x), table(IDS)
        layer.to(dtype), table.to(dtype)
        after = layer(x.to(dtype))
    assert after.dtype == table(IDS).dtype == dtype
    assert torch.allclose(after.float(), before, atol=0.02)
    assert torch.allclose(table(IDS).float(), rows, atol=0.1)


def test_meta_tensors_move_and_run():
    layer = TTLinear(16, 32, rank=4, device="meta")
    assert layer(torch.zeros(3, 16, device="meta")).shape == (3, 32)
    with torch.no_grad():
        assert layer.eval()(torch.zeros(3, 16, device="meta")).is_meta
    layer.to_empty(device="cpu").reset_parameters()
    assert torch.isfinite(layer(torch.zeros(3, 16))).all()
    moved = Model().to("meta")
    assert all(p.is_meta for p in moved.parameters())


def test_kept_factors_follow_every_change_of_the_cores():
    layer, x = TTLinear(16, 32, rank=4).eval(), torch.randn(5, 16)

    def check():
        with torch.no_grad():
            kept = layer(x)
        assert torch.allclose(kept, x @ layer.weight.T + layer.bias, atol=1e-5)

    check()
    with torch.no_grad():
        layer.cores[0].mul_(2.0)
    check()
    layer.cores[1].data = torch.randn_like(layer.cores[1])
    check()
    layer.cores[2] = nn.Parameter(torch.randn_like(layer.cores[2]))
    check()
    layer.round_(ranks=2)
    check()
    layer.add_bonds()
    check()
    with torch.no_grad():
        layer.bonds[0].mul_(3.0)
    check()
    layer.load_state_dict(layer.state_dict())
    check()
    layer.train()
    torch.optim.SGD(layer.parameters(), lr=0.1).step(lambda: layer(x).sum().backward())
    layer.eval()
    check()
    layer.cores[0].data.mul_(2.0)  # past autograd's counter
    layer.eval()
    check()


def test_gradients_flow_in_eval_mode_after_factors_were_kept():
    layer, x = TTLinear(16, 32, rank=4).eval(), torch.randn(5, 16)
    with torch.inference_mode():
        kept = layer(x)
    assert torch.allclose(layer(x), kept, atol=1e-5)
    layer(x).sum().backward()
    assert all(core.grad is not None and core.grad.any() for core in layer.cores)
    layer.requires_grad_(False)
    x.requires_grad_(True)
    layer(x).sum().backward()  # factors kept in inference mode would fail here
    assert torch.allclose(x.grad, layer.weight.sum(0).expand(5, 16), atol=1e-5)


def test_copies_and_pickles_after_a_forward_in_eval_mode():
    original = model().eval()
    with torch.no_grad():
        expected = original(IDS)
    file = io.BytesIO()
    torch.save(original, file)
    file.seek(0)
    for other in (
        copy.deepcopy(original),
        pickle.loads(pickle.dumps(original)),
        torch.load(file, weights_only=False),
    ):
        with torch.no_grad():
            assert torch.equal(other(IDS), expected)
            other.first.cores[0].zero_()
            assert not torch.equal(other(IDS), expected)
            assert torch.equal(original(IDS), expected)


@pytest.mark.parametrize("assign", [False, True])
def test_a_state_of_other_ranks_is_taken_over(assign):
    pruned, fresh = model(rank=2), model(rank=4)
    ids = {id(p) for p in fresh.parameters()}
    optimizer = torch.optim.AdamW(fresh.parameters(), lr=1e-2)
    with torch.no_grad():
        fresh.eval()(IDS)
    fresh.load_state_dict(pruned.state_dict(), assign=assign)
    assert torch.equal(fresh(IDS), pruned(IDS))
    assert [m.ranks for m in fresh.children()] == [m.ranks for m in pruned.children()]
    for own, stored in zip(fresh.parameters(), pruned.parameters(), strict=True):
        assert own.data_ptr() != stored.data_ptr() or assign
    if not assign:
        assert {id(p) for p in fresh.parameters()} == ids
        fresh.train()(IDS).sum().backward()
        optimizer.step()
        assert not torch.equal(fresh(IDS), pruned(IDS))


def test_a_state_with_bonds_brings_them():
    source, fresh = TTLinear(16, 32, rank=2), TTLinear(16, 32, rank=4)
    with torch.no_grad():
        source.add_bonds()[0].mul_(2.0)
    fresh.load_state_dict(source.state_dict())
    x = torch.randn(3, 16)
    assert torch.equal(fresh(x), source(x))
    with pytest.raises(RuntimeError, match=r"bonds\.0"):
        fresh.load_state_dict(TTLinear(16, 32, rank=3).state_dict())


@pytest.mark.parametrize("other", [{"in_shape": (2, 8)}, {"in_shape": (16,)}, {"bias": False}])
def test_a_state_of_other_modes_is_an_error(other):
    layer = TTLinear(16, 32, rank=2)
    shapes = layer.core_shapes
    with pytest.raises(RuntimeError, match=r"size mismatch|Missing key|Unexpected key"):
        layer.load_state_dict(TTLinear(16, 32, rank=2, **other).state_dict())
    assert layer.core_shapes == shapes


@pytest.mark.parametrize("training", [True, False])
def test_both_layers_compile_without_a_graph_break(training):
    torch.compiler.reset()
    plain = model().train(training)
    # the whole way through autograd, without a C++ compiler
    compiled = torch.compile(plain, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(IDS), plain(IDS), atol=1e-5)
    compiled(IDS).sum().backward()
    gradients = [p.grad.clone() for p in plain.parameters()]
    plain.zero_grad()
    plain(IDS).sum().backward()
    for compared, p in zip(gradients, plain.parameters(), strict=True):
        assert torch.allclose(compared, p.grad, atol=1e-4)
    for wrong in (-1, 50, 10**6):
        with pytest.raises((RuntimeError, IndexError)):
            compiled(torch.tensor([[0, 3, wrong], [3, 3, 17]]))


@pytest.mark.slow
def test_the_exported_graph_computes_the_same():
    onnx_reference = pytest.importorskip("onnx.reference")
    pytest.importorskip("onnxscript")
    original = model().eval()
    batch = torch.export.Dim("batch", min=1, max=1000)
    program = torch.onnx.export(
        original, (IDS,), dynamo=True, dynamic_shapes={"ids": {0: batch}}, verbose=False
    )
    evaluator = onnx_reference.ReferenceEvaluator(program.model_proto)
    name = program.model_proto.graph.input[0].name
    for ids in (IDS, torch.randint(50, (5, 3))):
        (output,) = evaluator.run(None, {name: ids.numpy()})
        np.testing.assert_allclose(output, original(ids).detach().numpy(), atol=1e-5)
    kinds = {node.op_type for node in program.model_proto.graph.node}
    assert kinds & {"MatMul", "Gemm"}
    assert "Loop" not in kinds
    with pytest.raises(Exception, match=r"index|bounds"):
        evaluator.run(None, {name: np.full((2, 3), 50)})


def test_the_exported_program_keeps_its_batch_free():
    original = model().eval()
    batch = torch.export.Dim("batch", min=1, max=1000)
    program = torch.export.export(original, (IDS,), dynamic_shapes={"ids": {0: batch}})
    ids = torch.randint(50, (7, 3))
    assert torch.allclose(program.module()(ids), original(ids), atol=1e-5)


def test_a_compiled_and_a_traced_graph_take_any_batch():
    plain = model()
    torch.compiler.reset()
    compiled = torch.compile(plain, fullgraph=True, dynamic=True, backend="aot_eager")
    traced = torch.jit.trace(plain, (IDS,), check_trace=False)
    for size in (1, 4, 9):
        ids = torch.randint(50, (size, 3))
        assert torch.allclose(compiled(ids), plain(ids), atol=1e-5)
        assert torch.allclose(traced(ids), plain(ids), atol=1e-5)


PARALLEL = """
import os
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from tensoralg.nn import TTLinear, TTMEmbedding
torch.set_num_threads(1)
path, child = sys.argv[1], os.fork()  # nothing was computed yet, and one import is enough
rank = 0 if child else 1
dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
torch.manual_seed(rank)
model = torch.nn.Sequential(TTMEmbedding(50, 16, rank=3), TTLinear(16, 8, rank=3))
wrapped = DistributedDataParallel(model)
optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
ids = torch.arange(50).reshape(2, 25)
wrapped(ids[rank]).square().mean().backward()
mine = [p.grad.clone() for p in model.parameters()]
optimizer.step()
optimizer.zero_grad()
if rank == 0:
    torch.manual_seed(0)
    alone = torch.nn.Sequential(TTMEmbedding(50, 16, rank=3), TTLinear(16, 8, rank=3))
    alone(ids).square().mean().backward()
    for own, p in zip(mine, alone.parameters(), strict=True):
        assert torch.allclose(own, p.grad, atol=1e-5), (own - p.grad).abs().max()
    print("the same gradients")
state = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
both = [torch.empty_like(state) for _ in range(2)]
dist.all_gather(both, state)
assert torch.equal(*both)
dist.destroy_process_group()
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_two_processes_train_as_one(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PARALLEL, str(tmp_path / "store")],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0
    assert "the same gradients" in done.stdout


def test_gradients_for_each_sample():
    network = model()
    values = dict(network.named_parameters())

    def loss(values, ids):
        return torch.func.functional_call(network, values, (ids,)).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(values, IDS)
    for k, ids in enumerate(IDS):
        alone = torch.autograd.grad(loss(values, ids), list(values.values()))
        for name, gradient in zip(values, alone, strict=True):
            assert torch.allclose(each[name][k], gradient, atol=1e-4)
    assert torch.allclose(torch.func.vmap(network)(IDS), network(IDS), atol=1e-5)


def test_transforms_of_functions_see_their_own_cores():
    layer, x = TTLinear(16, 32, rank=2).eval(), torch.randn(3, 16)
    with torch.no_grad():
        layer(x)
        doubled = {name: 2 * p for name, p in layer.named_parameters()}
        y = torch.func.functional_call(layer, doubled, (x,))
        assert torch.allclose(y, 16 * (x @ layer.weight.T) + 2 * layer.bias, atol=1e-4)
    stacked = {name: torch.stack([p, 2 * p]) for name, p in layer.named_parameters()}
    many = torch.func.vmap(
        lambda p: torch.func.functional_call(layer, p, (x,)), in_dims=(dict.fromkeys(stacked, 0),)
    )(stacked)
    assert torch.allclose(many[1], y, atol=1e-4)
