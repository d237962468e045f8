"""Drawings of what the programs of a kernel did when, on all ranks.

A kernel marks moments (``ringdove.triton.mark``); what it did between two of them has a name:

    times = DeviceArray(programs * (len(kinds) + 1), "int64", comm.device)
    kernel[(programs,)](..., times, ...)
    ringdove.timeline.draw(comm, "ring.svg", "ring all-reduce", times, kinds)

The clocks of the GPUs of one host differ by little, those of different hosts by more than such a
kernel takes. On virtual GPUs they are the host's clock, and times are those of the simulation.
"""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any, Sequence

from ._array import DeviceArray
from ._communicator import Communicator
from ._errors import ArgumentError

__all__ = ["draw", "spans", "svg"]

# Lanes and kinds beyond these are no drawing any more.
_ROWS_MAX, _SPANS_MAX = 512, 100_000
_COLORS = ["#4878a8", "#d8d8d8", "#c06030", "#589858", "#8868a8", "#b8a040", "#50a0a0", "#a05070"]
_LEFT, _WIDTH, _ROW, _TOP = 130, 1000, 16, 50


def spans(times: Sequence[int], kinds: Sequence[str]) -> list[list[tuple[str, int, int]]]:
    """For each program the name, the beginning and the end of what it did, in ns.

    Args:
        times: ``len(kinds) + 1`` moments of each program, one program behind the other
        kinds: what lies between one moment and the next
    """
    marks = len(kinds) + 1
    if not kinds or len(times) % marks or not 0 < len(times) // marks <= _ROWS_MAX:
        raise ArgumentError(
            f"times: expected {marks} for each of at most {_ROWS_MAX} programs, seen {len(times)}",
            op="timeline",
            expected=marks,
            seen=len(times),
        )
    found = []
    for first in range(0, len(times), marks):
        moments = times[first : first + marks]
        if moments[0] <= 0 or any(end < begin for begin, end in zip(moments, moments[1:])):
            raise ArgumentError(
                f"times: program {first // marks} has not marked all moments, or out of order: "
                f"{list(moments)}",
                op="timeline",
                expected="rising",
                seen=list(moments),
            )
        found.append(list(zip(kinds, moments, moments[1:])))
    return found


def svg(title: str, rows: Sequence[str], programs: Sequence[Sequence[tuple[str, int, int]]]) -> str:
    """A drawing of ``spans``, with a label for each program."""
    if len(rows) != len(programs) or sum(map(len, programs)) > _SPANS_MAX:
        raise ArgumentError(
            f"rows: expected a label for each of {len(programs)} programs and at most "
            f"{_SPANS_MAX} spans, seen {len(rows)} labels",
            op="timeline",
            expected=len(programs),
            seen=len(rows),
        )
    kinds = list(dict.fromkeys(kind for row in programs for kind, _, _ in row))
    color = {kind: _COLORS[index % len(_COLORS)] for index, kind in enumerate(kinds)}
    start = min((begin for row in programs for _, begin, _ in row), default=0)
    total = max((end for row in programs for _, _, end in row), default=0) - start or 1
    height = _TOP + len(rows) * _ROW + 40
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 20}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="18" font-size="14">{html.escape(title)}</text>',
    ]
    for index, kind in enumerate(kinds):
        place = _LEFT + index * 110
        lines.append(f'<path d="M{place} 30h10v10h-10z" fill="{color[kind]}"/>')
        lines.append(f'<text x="{place + 14}" y="39">{html.escape(kind)}</text>')
    for number, (label, row) in enumerate(zip(rows, programs)):
        y = _TOP + number * _ROW
        lines.append(f'<text x="10" y="{y + 11}">{html.escape(label)}</text>')
        for kind, begin, end in row:
            x, width = ((begin - start) / total * _WIDTH, (end - begin) / total * _WIDTH)
            lines.append(
                f'<rect x="{_LEFT + x:.2f}" y="{y + 1}" width="{width:.2f}" height="{_ROW - 3}" '
                f'fill="{color[kind]}"><title>{html.escape(kind)} {(end - begin) / 1000:.1f} us'
                "</title></rect>"
            )
    bottom = _TOP + len(rows) * _ROW + 14
    for part in range(5):
        x = _LEFT + part * _WIDTH / 4
        lines.append(f'<path d="M{x} {_TOP}V{bottom - 10}" stroke="#aaa" stroke-dasharray="2 3"/>')
        lines.append(
            f'<text x="{x}" y="{bottom}" text-anchor="middle">{total * part / 4000:.0f} us</text>'
        )
    lines.append("</svg>\n")
    return "\n".join(lines)


def draw(
    comm: Communicator, path: Any, title: str, times: DeviceArray, kinds: Sequence[str]
) -> None:
    """Collects the times of all ranks, and has rank 0 write the drawing. All ranks call it.

    Args:
        path: the SVG file
        times: this rank's, int64, as for ``spans``; as many on every rank
    """
    everywhere = DeviceArray(comm.size * len(times), "int64", comm.device)
    comm.all_gather(times, everywhere)
    found = spans(everywhere.tolist(), kinds)
    each = len(found) // comm.size
    rows = [f"rank {row // each}, program {row % each}" for row in range(len(found))]
    if comm.rank == 0:
        Path(path).write_text(svg(title, rows, found), encoding="utf-8")
