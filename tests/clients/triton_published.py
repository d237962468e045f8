"""Triton kernels of others, unmodified from their packages (liger-kernel, conch-triton-kernels), against
NumPy. Prints a line for each that is right, and fails at the first that is wrong.

The packages import PyTorch, of which nothing is needed but names: a stand-in has them, while they are
imported. Triton does not see it."""

import importlib.abc
import importlib.machinery
import sys
import time
from unittest.mock import MagicMock

import numpy as np
import triton

from triton_arrays import Array, normal, random

# Whoever asks Triton for its driver after an import of PyTorch gets PyTorch's.
triton.runtime.driver.active.get_current_device()


class Names(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules `torch` and `torch.*` that have every name."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def exec_module(self, module):
        # A class that others derive theirs from, or what may be called and asked for more names.
        module.__version__, module.Function, module.Module = "2.8.0", object, object
        module.__getattr__ = lambda name: MagicMock(name=name)


def imported(*names):
    """These modules, with stand-ins for PyTorch's."""
    sys.meta_path.insert(0, Names())
    try:
        importlib.import_module("torch.autograd")
        importlib.import_module("torch.nn")
        return [importlib.import_module(name) for name in names]
    finally:
        del sys.meta_path[0]
        for name in [name for name in sys.modules if name.split(".")[0] == "torch"]:
            del sys.modules[name]


cross_entropy, swiglu, gelu, rms_norm = imported(
    "liger_kernel.ops.cross_entropy", "liger_kernel.ops.swiglu",
    "conch.kernels.activation.gelu_tanh_and_mul", "conch.kernels.normalization.rms_norm",
)


def cross_entropies():
    """Loss and gradient of rows, with a soft cap, smoothed labels, and rows that are ignored."""
    rows, columns, cap, smoothing, ignored = 12, 3001, 30.0, 0.1, -100
    x, labels = 10 * normal(rows, columns), random.integers(0, columns, rows)
    labels[5] = ignored
    count = rows - 1
    on_gpu, losses = Array(x), Array(np.zeros(rows, np.float32))
    cross_entropy.liger_cross_entropy_kernel[(rows,)](
        on_gpu, columns, Array(labels), 1, None, losses, None, 1, None, 0, None, 0,
        columns, count, float(count), 1.0, ignored, 0.0, smoothing, "mean", cap, False, False, False,
        BLOCK_SIZE=1024, HAS_WEIGHT=False, HAS_SOFTCAPPING=True, HAS_GRADIENTS=True, num_warps=8,
    )
    wide = x.astype(np.float64)
    capped = cap * np.tanh(wide / cap)
    log = np.log(np.exp(capped - capped.max(1, keepdims=True)).sum(1)) + capped.max(1)
    wanted = np.full((rows, columns), smoothing / columns)
    wanted[np.arange(rows), np.where(labels == ignored, 0, labels)] += 1 - smoothing
    loss = (log - (wanted * capped).sum(1)) / count
    slope = (np.exp(capped - log[:, None]) - wanted) / count * (1 - (capped / cap) ** 2)
    slope[labels == ignored] = loss[labels == ignored] = 0
    return np.allclose(losses.get(), loss, rtol=1e-4, atol=1e-6) and np.allclose(
        on_gpu.get(), slope, rtol=1e-3, atol=1e-7
    )


def swiglus():
    rows, columns = 16, 1000
    a, b = normal(rows, columns), normal(rows, columns)
    out = Array(np.zeros_like(a))
    swiglu._swiglu_forward_kernel[(rows,)](Array(a), Array(b), out, columns, 1.0, columns, 1024)
    return np.allclose(out.get(), a / (1 + np.exp(-a)) * b, atol=1e-5)


def gelus():
    rows, columns = 8, 700
    x = normal(rows, 2 * columns)
    out = Array(np.zeros((rows, columns), np.float32))
    beta, kappa = np.sqrt(2 / np.pi), 0.044715
    gelu._gelu_tanh_and_mul_kernel[(rows,)](
        out, columns, Array(x), 2 * columns, columns,
        cxpr_block_size=256, cxpr_beta=float(beta), cxpr_kappa=kappa,
    )
    gate, up = x[:, :columns], x[:, columns:]
    expected = 0.5 * gate * (1 + np.tanh(beta * (gate + kappa * gate**3))) * up
    return np.allclose(out.get(), expected, atol=1e-5)


def residual_norms():
    """In f16: the sum goes to the residual, and its norm in place of the input."""
    rows, columns = 10, 1500
    x, residual, weight = (normal(*shape, dtype=np.float16)
                           for shape in ((rows, columns), (rows, columns), (columns,)))
    on_gpu, sums = Array(x), Array(residual)
    rms_norm._rms_norm_kernel[(rows,)](
        None, on_gpu, sums, Array(weight), columns, 1e-6, cxpr_block_size=2048, cxpr_use_residual=True
    )
    total = x + residual
    wide = total.astype(np.float32)
    normed = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-6)
    return np.array_equal(sums.get(), total) and np.allclose(
        on_gpu.get().astype(np.float32), normed * weight.astype(np.float32), rtol=4e-3, atol=1e-3
    )


for program in (cross_entropies, swiglus, gelus, residual_norms):
    began = time.monotonic()
    if not program():
        sys.exit(f"{program.__name__}: wrong")
    print(f"{program.__name__}: right ({time.monotonic() - began:.2f} s)", flush=True)
