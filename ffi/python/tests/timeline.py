"""Timelines of kernels: what is drawn, and what is refused."""

import pathlib
import tempfile
import threading
import xml.etree.ElementTree

import ringdove
from ringdove import DeviceArray, timeline

KINDS = ["put", "wait"]


def refused(words, call, *arguments):
    try:
        call(*arguments)
    except ringdove.ArgumentError as error:
        assert words in str(error), error
        return
    raise AssertionError(f"not refused: {words}")


def drawing(communicators, path):
    """Each rank has two programs, of which the second begins later."""

    def of(comm):
        start = 1_000_000 + comm.rank * 500
        moments = [start, start + 1000, start + 1000, start + 10, start + 20, start + 4000]
        times = DeviceArray(moments, "int64", comm.device)
        timeline.draw(comm, path, "a <b> & c", times, KINDS)

    threads = [threading.Thread(target=of, args=[comm]) for comm in communicators]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main():
    folder = tempfile.TemporaryDirectory()
    path = pathlib.Path(folder.name, "drawing.svg")
    communicators = ringdove.init_all([0, 1])
    drawing(communicators, path)
    for comm in communicators:
        comm.check()
    root = xml.etree.ElementTree.parse(path).getroot()
    name = "{http://www.w3.org/2000/svg}"
    spans = [rect for rect in root.iter(name + "rect") if rect.get("x")]
    # 4,500 ns are drawn on 1,000 units.
    seen = [(float(s.get("x")) - 130, float(s.get("width")), s[0].text) for s in spans]
    want = []
    for start in [0, 500]:
        for begin, length, kind in [(0, 1000, "put"), (1000, 0, "wait"), (10, 10, "put"), (20, 3980, "wait")]:
            want.append(((start + begin) / 4.5, length / 4.5, f"{kind} {length / 1000:.1f} us"))
    assert len(seen) == len(want), seen
    for (x, width, words), (want_x, want_width, want_words) in zip(seen, want):
        assert abs(x - want_x) < 0.01 and abs(width - want_width) < 0.01, (x, want_x, width, want_width)
        assert words == want_words, (words, want_words)
    texts = [text.text for text in root.iter(name + "text")]
    assert texts[0] == "a <b> & c" and "rank 1, program 1" in texts and "put" in texts, texts

    refused("expected 3 for each", timeline.spans, [1, 2], KINDS)
    refused("expected 1 for each", timeline.spans, [1, 2], [])
    refused("expected 3 for each", timeline.spans, [], KINDS)
    # Moments that no program has marked, or in the wrong places.
    refused("program 1 has not", timeline.spans, [1, 2, 3, 0, 0, 0], KINDS)
    refused("out of order", timeline.spans, [1, 3, 2], KINDS)
    refused("a label for each", timeline.svg, "", ["one"], [])
    print("right")


main()
