"""JAX on virtual GPUs: each program is compiled by XLA for a GPU and for the CPU, and compared; collectives of
`shard_map` go through libnccl and are compared with NumPy."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, shard_map
from jax.sharding import Mesh, PartitionSpec as P

RANKS = 4
SEED = 7

cpu = jax.devices("cpu")[0]
gpus = jax.devices("cuda")[:RANKS]
mesh = Mesh(np.array(gpus), ("ranks",))
random = np.random.default_rng(SEED)
right, wrong = 0, 0


def compare(name, tolerance, got, want):
    """Counts and prints whether two trees of arrays are equal to a tolerance."""
    global right, wrong
    try:
        near = lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
        jax.tree.map(near, jax.tree.map(np.asarray, got()), jax.tree.map(np.asarray, want()))
        right += 1
        print(f"{name} right", flush=True)
    except Exception as error:
        wrong += 1
        print(f"{name} WRONG: {error}", flush=True)


def on(device, program, arguments):
    with jax.default_device(device):
        return jax.jit(program)(*arguments)


def check(name, program, *arguments, tolerance=2e-5):
    """The same program on a GPU and on the CPU."""
    got = lambda: on(gpus[0], program, arguments)
    compare(name, tolerance, got, lambda: on(cpu, program, arguments))


def collective(name, program, out, want):
    """A program of all ranks, whose input is the matrix `a`, cut by rows."""
    run = jax.jit(shard_map(program, mesh=mesh, in_specs=P("ranks"), out_specs=out, check_vma=False))
    compare(name, 1e-4, lambda: run(a), lambda: want)


a = random.standard_normal((64, 48)).astype(np.float32)
b = random.standard_normal((48, 32)).astype(np.float32)
keys = random.integers(0, 1000, 5000).astype(np.int32)

check("elementwise", lambda x: jnp.tanh(x) * jnp.exp(-x * x) + jnp.where(x > 0, jnp.sqrt(jnp.abs(x)), x**3), a)
check("types", lambda x: (x.astype(jnp.bfloat16) + 1, x.astype(jnp.float16) * 2, (x * 10).astype(jnp.int8)), a)
check("reductions", lambda x: (x.sum(), x.max(0), x.mean(1), jnp.argmin(x, 1), x.std()), a)
check("cumsum", lambda x: jnp.cumsum(x, 0), a, tolerance=1e-4)
check("sort", lambda k: (jnp.sort(k), jnp.argsort(k, stable=True)), keys)
check("gather", lambda x, k: x[k % 64, k % 48], a, keys)
check("scatter", lambda k: jnp.zeros(1000, jnp.int32).at[k].add(1), keys)
check("scan", lambda x: lax.scan(lambda c, row: (c * 0.9 + row, c), x[0], x), a)
check("while", lambda x: lax.while_loop(lambda s: s[0] < 20, lambda s: (s[0] + 1, s[1] * 0.5 + 1), (0, x)), a)
check("random", lambda: jax.random.normal(jax.random.key(3), (1000,)))
check("softmax", lambda x: jax.nn.softmax(x, -1), a)
check("grad", jax.grad(lambda x: jnp.sum(jnp.sin(x) ** 2)), a)
check("product", lambda x, y: jnp.dot(x, y, precision="highest"), a, b, tolerance=1e-4)

parts = a.reshape(RANKS, 16, 48)
columns = np.split(a.reshape(RANKS, 16, 48), RANKS, axis=2)
collective("psum", lambda v: lax.psum(v, "ranks"), P(), parts.sum(0))
collective("pmax", lambda v: lax.pmax(v, "ranks"), P(), parts.max(0))
collective("all_gather", lambda v: lax.all_gather(v, "ranks", tiled=True), P(), a)
collective("psum_scatter", lambda v: lax.psum_scatter(v, "ranks", tiled=True), P("ranks"), parts.sum(0))
ring = [(rank, (rank + 1) % RANKS) for rank in range(RANKS)]
collective("ppermute", lambda v: lax.ppermute(v, "ranks", ring), P("ranks"), np.roll(parts, 1, 0).reshape(64, 48))
exchange = lambda v: lax.all_to_all(v, "ranks", 1, 0, tiled=True)
collective("all_to_all", exchange, P("ranks"), np.concatenate([c.reshape(64, 12) for c in columns]))


def train():
    """Data-parallel training of a small network; the same on the CPU, on the whole batch."""
    x = random.standard_normal((256, 8)).astype(np.float32)
    y = np.sin(x.sum(1, keepdims=True)).astype(np.float32)
    shapes = [(8, 32), (32, 1)]
    weights = [random.standard_normal(s).astype(np.float32) / np.sqrt(s[0]).astype(np.float32) for s in shapes]

    def loss(w, x, y):
        hidden = jnp.tanh(jnp.dot(x, w[0], precision="highest"))
        return jnp.mean((jnp.dot(hidden, w[1], precision="highest") - y) ** 2)

    def step(w, x, y, mean):
        value, gradients = jax.value_and_grad(loss)(w, x, y)
        return mean(value), [a - 0.05 * mean(g) for a, g in zip(w, gradients)]

    def steps(step, w):
        losses = []
        for _ in range(20):
            value, w = step(w, x, y)
            losses.append(np.asarray(value))
        return losses, w

    ranks = shard_map(lambda w, x, y: step(w, x, y, lambda v: lax.pmean(v, "ranks")), mesh=mesh,
                      in_specs=(P(), P("ranks"), P("ranks")), out_specs=(P(), P()), check_vma=False)
    alone = jax.jit(lambda w, x, y: step(w, x, y, lambda v: v))

    def by_one():
        with jax.default_device(cpu):
            return steps(alone, weights)

    compare("training", 1e-5, lambda: steps(jax.jit(ranks), weights), by_one)


train()
print(f"seed {SEED}: {right} right, {wrong} wrong")
sys.exit(wrong != 0)
