"""One rank of a data-parallel training whose kernels are Numba's and whose collectives are ringdove's, on
one stream: gradients are reduced and scattered, each rank steps its part of the weights with momentum, and
the parts are gathered. Compared with NumPy on all samples. The launcher is the real torchrun."""

import os

import numpy as np
from numba import cuda, float32

import ringdove

SAMPLES, INPUTS, STEPS, RATE, MOMENTUM = 96, 64, 25, 0.05, 0.9


@cuda.jit
def gradients(x, y, weights, gradient, losses, scale):
    """A block a sample: its prediction by a tree in shared memory, then its share of every gradient."""
    partial = cuda.shared.array(INPUTS, float32)
    sample, i = cuda.blockIdx.x, cuda.threadIdx.x
    partial[i] = x[sample, i] * weights[i]
    cuda.syncthreads()
    width = INPUTS // 2
    while width > 0:
        if i < width:
            partial[i] += partial[i + width]
        cuda.syncthreads()
        width //= 2
    error = partial[0] - y[sample]
    if i == 0:
        cuda.atomic.add(losses, 0, error * error * scale)
    cuda.atomic.add(gradient, i, float32(2) * error * x[sample, i] * scale)


@cuda.jit
def step(weights, velocity, gradient, first, rate, momentum):
    i = cuda.threadIdx.x
    velocity[i] = momentum * velocity[i] + gradient[i]
    weights[first + i] -= rate * velocity[i]


@cuda.jit
def clear(gradient, losses):
    gradient[cuda.threadIdx.x] = 0
    if cuda.threadIdx.x == 0:
        losses[0] = 0


def expected(x, y):
    """Losses and weights of one processor with all samples, in double precision."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    weights, velocity, losses = np.zeros(INPUTS), np.zeros(INPUTS), []
    for _ in range(STEPS):
        error = x @ weights - y
        losses.append((error**2).mean())
        velocity = MOMENTUM * velocity + 2 * x.T @ error / len(y)
        weights = weights - RATE * velocity
    return np.array(losses), weights


def main():
    random = np.random.default_rng(7)
    with ringdove.init() as comm:
        cuda.select_device(comm.device)
        x = random.standard_normal((comm.size * SAMPLES, INPUTS)).astype(np.float32)
        y = (x @ random.standard_normal(INPUTS)).astype(np.float32)
        mine, part = slice(comm.rank * SAMPLES, (comm.rank + 1) * SAMPLES), INPUTS // comm.size
        first = comm.rank * part
        stream = cuda.stream()
        own_x, own_y = cuda.to_device(x[mine]), cuda.to_device(y[mine])
        weights = cuda.to_device(np.zeros(INPUTS, np.float32))
        gradient = cuda.to_device(np.zeros(INPUTS, np.float32))
        reduced, velocity = (cuda.to_device(np.zeros(part, np.float32)) for _ in range(2))
        loss = cuda.to_device(np.zeros(1, np.float32))
        losses = []
        for _ in range(STEPS):
            clear[1, INPUTS, stream](gradient, loss)
            scale = np.float32(1 / SAMPLES)
            gradients[SAMPLES, INPUTS, stream](own_x, own_y, weights, gradient, loss, scale)
            with comm.group(stream=stream) as group:
                group.reduce_scatter(gradient, reduced, op="avg")
                group.all_reduce(loss, op="avg")
            step[1, part, stream](
                weights, velocity, reduced, first, np.float32(RATE), np.float32(MOMENTUM)
            )
            comm.all_gather(weights[first : first + part], weights, stream=stream)
            losses.append(loss.copy_to_host(stream=stream)[0])
        stream.synchronize()
        comm.check()
        wanted_losses, wanted = expected(x, y)
        assert np.allclose(losses, wanted_losses, rtol=1e-3, atol=1e-4), (losses, wanted_losses)
        assert np.allclose(weights.copy_to_host(), wanted, rtol=1e-3, atol=1e-3)
        assert losses[-1] < losses[0] / 10, (losses[0], losses[-1])
        comm.finalize()
        node = os.environ["GROUP_RANK"]
        went = f"loss {losses[0]:.2f} to {losses[-1]:.4f}"
        print(f"rank {comm.rank} of {comm.size}, node {node}: {went}: right")


if __name__ == "__main__":
    main()
