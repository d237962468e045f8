"""Expert parallelism: tokens go to experts on other GPUs, and their results come back."""

from __future__ import annotations

from typing import Any

from . import _ringdove


class ExpertsHandle:
    """Where the tokens of a dispatch went: for its combine, and for the same routing again."""

    def __init__(self, group: Experts) -> None:
        self._handle = group._group.handle()


class Experts:
    """One rank's part of a group of experts: see ``Communicator.experts``.

    For each layer, on one stream, every rank calls

        group.dispatch_send(handle, tokens, indices, weights)
        group.dispatch_receive(handle, rows, counts)        # behind it, the experts' own kernels
        group.combine_send(handle, rows)
        group.combine_receive(handle, out)

    Between the halves nothing runs on the GPU, and other work may. ``dispatch`` and ``combine`` are
    both halves at once. One dispatch and one combine may be under way at a time. Rows come ordered
    by source rank, then token, and sums are made in the order of a token's choices: results are the
    same in every run.

    Arrays are contiguous, of any shape. With E experts, R ranks, T tokens of this rank, K choices
    of a token and H elements of it: low latency has a row for each choice, those of local expert
    ``e`` from row ``e * R * tokens_max`` on; throughput has a row for each token and rank.

    Attributes:
        rows: rows of a dispatch's output
        mode: ``"low-latency"`` or ``"throughput"``
        counts: entries of its counts: one for each local expert; in throughput mode one more, for
            all rows
    """

    def __init__(
        self,
        rank: _ringdove.Rank,
        *,
        experts: int,
        top_k: int,
        hidden: int,
        tokens_max: int,
        dtype: str,
        fp8: str | None,
        mode: str,
        alignment: int,
        lane: int,
    ) -> None:
        numbers = (experts, top_k, hidden, tokens_max, alignment, lane)
        self._group = _ringdove.Experts(rank, numbers, dtype, fp8, mode)
        # Arrays say their types themselves, but for those that have no name in most libraries.
        self._dtype = dtype if dtype == "bfloat16" else None
        self._fp8 = fp8 is not None
        self.rows, self.counts = self._group.output
        self.mode = self._group.mode

    def handle(self) -> ExpertsHandle:
        """A handle; allocates."""
        return ExpertsHandle(self)

    def dispatch_send(
        self,
        handle: ExpertsHandle,
        tokens: Any,
        indices: Any = None,
        weights: Any = None,
        *,
        scales: Any = None,
        stream: Any = None,
    ) -> None:
        """Sends this rank's tokens to the ranks of their experts.

        Args:
            tokens: T * H elements; T is at most ``tokens_max``, may be 0, and may differ between
                ranks
            indices: T * K numbers of experts, int32 or int64, -1 for none; without them tokens go
                where those of the handle's last dispatch went
            weights: T * K of float32; else 1
            scales: of tokens that are float8_e4m3fn already, T * H / 128 of float32 or uint8
        """
        dtype = "float8_e4m3fn" if scales is not None else self._dtype
        others = [_or_none(array) for array in (indices, weights, scales)]
        self._group.call("dispatch_send", handle._handle, [(tokens, dtype), *others], stream)

    def dispatch_receive(
        self,
        handle: ExpertsHandle,
        rows: Any,
        counts: Any,
        *,
        indices: Any = None,
        weights: Any = None,
        sources: Any = None,
        scales: Any = None,
        stream: Any = None,
    ) -> None:
        """Waits, on the stream, for the tokens of all ranks, and lays them out.

        Args:
            rows: ``self.rows * H`` elements; of float8_e4m3fn in a group with ``fp8``
            counts: ``self.counts`` of uint32
            indices, weights: throughput mode: K local experts (int32, -1 for those of other ranks)
                and weights (float32) for each row
            sources: four of uint32 for each row: the token at its rank, which of its choices, bits
                of that choice's weight, and 0
            scales: in a group with ``fp8``: H / 128 for each row
        """
        dtype = "float8_e4m3fn" if self._fp8 else self._dtype
        others = [_or_none(array) for array in (counts, indices, weights, sources, scales)]
        self._group.call("dispatch_receive", handle._handle, [(rows, dtype), *others], stream)

    def combine_send(
        self, handle: ExpertsHandle, rows: Any, weights: Any = None, *, stream: Any = None
    ) -> None:
        """Sends the results of the rows back, which stand where the rows stood.

        Args:
            rows: ``self.rows * H`` elements of the group's type
            weights: throughput mode: K of float32 for each row, which are summed beside
        """
        arrays = [(rows, self._dtype), _or_none(weights)]
        self._group.call("combine_send", handle._handle, [*arrays], stream)

    def combine_receive(
        self, handle: ExpertsHandle, out: Any, weights: Any = None, *, stream: Any = None
    ) -> None:
        """Waits, on the stream, for what comes back, and adds it up: in low-latency mode weighed.

        Args:
            out: T * H elements of the group's type
            weights: throughput mode: T * K of float32, the sums of weights
        """
        arrays = [(out, self._dtype), _or_none(weights)]
        self._group.call("combine_receive", handle._handle, [*arrays], stream)

    def dispatch(
        self,
        handle: ExpertsHandle,
        tokens: Any,
        indices: Any,
        weights: Any,
        rows: Any,
        counts: Any,
        *,
        stream: Any = None,
    ) -> None:
        """Both halves of a dispatch."""
        self.dispatch_send(handle, tokens, indices, weights, stream=stream)
        self.dispatch_receive(handle, rows, counts, stream=stream)

    def combine(self, handle: ExpertsHandle, rows: Any, out: Any, *, stream: Any = None) -> None:
        """Both halves of a combine."""
        self.combine_send(handle, rows, stream=stream)
        self.combine_receive(handle, out, stream=stream)

    def check(self) -> None:
        """Raises what was wrong with indices and weights of a dispatch, on any rank.

        The group goes on after such an ``Error``. The stream has been waited for.
        """
        self._group.check()


def _or_none(array: Any) -> tuple[Any, str | None] | None:
    return None if array is None else (array, None)
