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
# # Attention with a memory of constant size
#
# Full attention keeps every key. Here a table of slots keeps as many as it has room for, and
# queries may wait for later keys. Which slots are given up decides how close one comes to it.

# %%
import matplotlib.pyplot as plt
import torch

from tensoralg.nn import (
    Attendre,
    EncoderConfig,
    KVMemory,
    MemoryStream,
    TransformerClassifier,
    attend,
    with_memory,
)

torch.manual_seed(0)
torch.set_num_threads(1)

# %% [markdown]
# ## What is worth keeping
#
# A stream of 400 tokens. A few early keys are important: all queries look for them. Between them
# comes noise. A table that forgets the oldest slot forgets just these keys.

# %%
length, heads, width = 400, 2, 16
topic = torch.randn(heads, 1, width)
k = torch.randn(1, heads, length, width)
k[:, :, 5:30:5] = 3 * topic + 0.3 * torch.randn(1, heads, 5, width)
v = torch.randn(1, heads, length, width)
q = topic + 0.3 * torch.randn(1, heads, length, width)


def streamed(policy, size):
    """Outputs of causal attention with `size` slots, token after token."""
    memory = KVMemory(size, policy)
    outputs = []
    for t in range(length):
        memory.append(k[:, :, t : t + 1], v[:, :, t : t + 1])
        outputs.append(memory.read(q[:, :, t : t + 1]))
    return torch.cat(outputs, dim=2), memory


causal = torch.ones(length, length, dtype=torch.bool).tril()
full = attend(q, k, v, mask=causal)
sizes = (16, 32, 64, 128, 256, 400)
found = {}
for policy in ("fifo", "lra", "lfa"):
    likeness = []
    for size in sizes:
        out, memory = streamed(policy, size)
        likeness.append(float(torch.cosine_similarity(out, full, dim=-1)[:, :, 50:].mean()))
    found[policy] = likeness
    assert abs(likeness[-1] - 1) < 1e-5  # with room for all it is full attention
assert found["lra"][0] > found["fifo"][0]
assert found["lfa"][0] > found["fifo"][0]

# %%
figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
for policy, likeness in found.items():
    axes.plot(sizes, likeness, "o-", label=policy)
axes.set(xlabel="slots", ylabel="cosine to full attention", xscale="log")
axes.legend(frameon=False)
axes.grid(alpha=0.3)

# %% [markdown]
# Which tokens are still there at the end?

# %%
for policy in ("fifo", "lra", "lfa"):
    _, memory = streamed(policy, 16)
    print(policy, sorted(memory.positions.flatten().tolist()))

# %% [markdown]
# ## Queries that wait
#
# Attention in both directions: a query is answered when `delay` more tokens have come. With room
# for everything the last ones see what full attention sees, whatever the pieces.

# %%
waiting = Attendre(size=length, delay=length - 50, policy="lra")
pieces = []
for start in range(0, length, 50):
    chunk = slice(start, start + 50)
    pieces.append(waiting.push(q[:, :, chunk], k[:, :, chunk], v[:, :, chunk])[0])
pieces.append(waiting.flush()[0])
out = torch.cat([piece for piece in pieces if piece.shape[2]], dim=2)
print(out.shape, float((out[:, :, -50:] - attend(q[:, :, -50:], k, v)).abs().max()))
torch.testing.assert_close(out[:, :, -50:], attend(q[:, :, -50:], k, v), rtol=1e-5, atol=1e-5)

# %% [markdown]
# ## A whole model
#
# `with_memory` gives a twin of a Transformer that shares its parameters. A text that is longer than
# anything it could hold at once is read piece by piece.

# %%
config = EncoderConfig(vocabulary=100, classes=2, hidden=48, heads=4, layers=2, feed_forward=96)
model = TransformerClassifier(config).eval()
tokens = torch.randint(1, 100, (1, 100))
roomy = with_memory(model, 200, 100, "lra")
with torch.no_grad():
    torch.testing.assert_close(roomy(tokens), model(tokens), rtol=1e-4, atol=1e-5)

remembering = with_memory(model, 64, 32, "lra")
stream = MemoryStream(remembering, beyond="wrap")
seen = 0
with torch.no_grad():
    for piece in torch.randint(1, 100, (1, 2000)).split(100, dim=1):
        hidden, positions = stream.push(piece)
        seen += positions.shape[-1]
    hidden, positions = stream.flush()
    seen += positions.shape[-1]
print(seen, remembering.classifier(stream.mean))
assert seen == 2000
