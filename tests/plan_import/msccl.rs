//! Files as MSCCL's tools write them: XML.

use std::fmt::Write;

/// A file on its way.
struct Xml {
    text: String,
    step: usize,
}

/// What an `algo` says.
struct Algo<'a> {
    name: &'a str,
    coll: &'a str,
    ranks: u32,
    chunks: u32,
    in_place: bool,
    more: &'a str,
}

impl Xml {
    fn new(algo: &Algo<'_>) -> Self {
        let Algo { name, coll, ranks, chunks, in_place, more } = algo;
        let (inside, outside) = (u8::from(*in_place), u8::from(!in_place));
        let text = format!(
            "<algo name=\"{name}\" proto=\"Simple\" nchannels=\"1\" nchunksperloop=\"{chunks}\" \
             ngpus=\"{ranks}\" coll=\"{coll}\" inplace=\"{inside}\" outofplace=\"{outside}\" \
             minBytes=\"0\" maxBytes=\"0\"{more}>\n"
        );
        Self { text, step: 0 }
    }

    fn gpu(&mut self, id: u32, chunks: [u32; 3], blocks: impl FnOnce(&mut Self)) {
        let [input, output, scratch] = chunks;
        let _ = writeln!(
            self.text,
            "  <gpu id=\"{id}\" i_chunks=\"{input}\" o_chunks=\"{output}\" \
             s_chunks=\"{scratch}\">"
        );
        blocks(self);
        self.text += "  </gpu>\n";
    }

    /// A thread block, with the ranks that it sends to and receives from.
    fn block(
        &mut self,
        id: u32,
        [send, receive]: [Option<u32>; 2],
        channel: u32,
        steps: impl FnOnce(&mut Self),
    ) {
        let end = |end: Option<u32>| end.map_or(-1, i64::from);
        let (send, receive) = (end(send), end(receive));
        let _ = writeln!(
            self.text,
            "    <tb id=\"{id}\" send=\"{send}\" recv=\"{receive}\" chan=\"{channel}\">"
        );
        self.step = 0;
        steps(self);
        self.text += "    </tb>\n";
    }

    /// A step, after another thread block's.
    fn after(&mut self, name: &str, from: Place, to: Place, count: u32, dep: Option<(u32, u32)>) {
        let (block, step) =
            dep.map_or((-1, -1), |(block, step)| (i64::from(block), i64::from(step)));
        let number = self.step;
        let _ = writeln!(
            self.text,
            "      <step s=\"{number}\" type=\"{name}\" srcbuf=\"{}\" srcoff=\"{}\" \
             dstbuf=\"{}\" dstoff=\"{}\" cnt=\"{count}\" depid=\"{block}\" deps=\"{step}\" \
             hasdep=\"1\"/>",
            from.0, from.1, to.0, to.1
        );
        self.step += 1;
    }

    fn step(&mut self, name: &str, from: Place, to: Place) {
        self.after(name, from, to, 1, None);
    }

    fn end(mut self) -> String {
        self.text += "</algo>\n";
        self.text
    }
}

/// A buffer, and a chunk of it.
type Place = (&'static str, u32);

fn i(chunk: u32) -> Place {
    ("i", chunk)
}

/// All-reduce around a ring, in place; each channel has a thread block.
pub fn ring(ranks: u32, channels: u32) -> String {
    let chunks = ranks * channels;
    let (name, coll, more) = ("ring", "allreduce", "");
    let mut xml = Xml::new(&Algo { name, coll, ranks, chunks, in_place: true, more });
    for rank in 0..ranks {
        xml.gpu(rank, [chunks, 0, 0], |xml| {
            for channel in 0..channels {
                let ends = [Some((rank + 1) % ranks), Some((rank + ranks - 1) % ranks)];
                let part = |back: u32| i((rank + 2 * ranks - back) % ranks + ranks * channel);
                xml.block(channel, ends, channel, |xml| {
                    xml.step("s", part(0), part(0));
                    for back in 1..ranks - 1 {
                        xml.step("rrs", part(back), part(back));
                    }
                    xml.step("rrcs", part(ranks - 1), part(ranks - 1));
                    for back in ranks..2 * ranks - 2 {
                        xml.step("rcs", part(back), part(back));
                    }
                    xml.step("r", part(2 * ranks - 2), part(2 * ranks - 2));
                });
            }
        });
    }
    xml.end()
}

/// All-reduce in two hops: every rank reduces its part in scratch memory's terms, by a thread block
/// that waits for those that receive.
pub fn all_pairs(ranks: u32) -> String {
    let (name, coll, more) = ("all-pairs", "allreduce", "");
    let mut xml = Xml::new(&Algo { name, coll, ranks, chunks: ranks, in_place: true, more });
    for rank in 0..ranks {
        xml.gpu(rank, [ranks, 0, ranks], |xml| {
            let peers: Vec<u32> = (0..ranks).filter(|peer| *peer != rank).collect();
            let reducer = ranks - 1;
            for (block, &peer) in (0..).zip(&peers) {
                xml.block(block, [Some(peer); 2], 0, |xml| {
                    xml.step("s", i(peer), ("s", rank));
                    xml.step("r", i(rank), ("s", peer));
                    let reduced = Some((reducer, ranks - 2));
                    xml.after("s", i(rank), i(rank), 1, reduced);
                    xml.step("r", i(peer), i(peer));
                });
            }
            xml.block(reducer, [None; 2], 0, |xml| {
                for (block, &peer) in (0..).zip(&peers) {
                    xml.after("re", ("s", peer), i(rank), 1, Some((block, 1)));
                }
            });
        });
    }
    xml.end()
}

/// All-gather in one hop, from the input into the output.
pub fn all_gather(ranks: u32) -> String {
    let (name, coll, more) = ("all-gather", "allgather", "");
    let mut xml = Xml::new(&Algo { name, coll, ranks, chunks: ranks, in_place: false, more });
    for rank in 0..ranks {
        xml.gpu(rank, [1, ranks, 0], |xml| {
            for peer in (0..ranks).filter(|peer| *peer != rank) {
                xml.block(peer, [Some(peer); 2], 0, |xml| {
                    xml.step("s", i(0), ("o", rank));
                    xml.step("r", i(0), ("o", peer));
                });
            }
            xml.block(rank, [None; 2], 0, |xml| xml.step("cpy", i(0), ("o", rank)));
        });
    }
    xml.end()
}

/// Reduce-scatter around a ring, in place.
pub fn reduce_scatter(ranks: u32) -> String {
    let (name, coll, more) = ("scatter", "reducescatter", "");
    let mut xml = Xml::new(&Algo { name, coll, ranks, chunks: ranks, in_place: true, more });
    for rank in 0..ranks {
        xml.gpu(rank, [ranks, 0, 0], |xml| {
            let ends = [Some((rank + 1) % ranks), Some((rank + ranks - 1) % ranks)];
            let part = |back: u32| i((rank + ranks - back) % ranks);
            xml.block(0, ends, 0, |xml| {
                xml.step("s", part(1), part(1));
                for back in 2..ranks {
                    xml.step("rrs", part(back), part(back));
                }
                xml.step("rrc", part(ranks), part(ranks));
            });
        });
    }
    xml.end()
}

/// All-reduce of two nodes of two ranks: in each node, between them, and in each node again.
pub fn hierarchical() -> String {
    let (name, coll, more) = ("hierarchical", "allreduce", "");
    let mut xml = Xml::new(&Algo { name, coll, ranks: 4, chunks: 2, in_place: true, more });
    for rank in 0..4 {
        let (own, other) = (i(rank % 2), i(1 - rank % 2));
        xml.gpu(rank, [2, 0, 0], |xml| {
            xml.block(0, [Some(rank ^ 1); 2], 0, |xml| {
                xml.step("s", other, other);
                xml.step("rrc", own, own);
                xml.after("s", own, own, 1, Some((1, 1)));
                xml.step("r", other, other);
            });
            xml.block(1, [Some(rank ^ 2); 2], 0, |xml| {
                xml.after("s", own, own, 1, Some((0, 1)));
                xml.step("rrc", own, own);
            });
        });
    }
    xml.end()
}

/// Broadcast of three ranks along a chain from rank 1; steps of two chunks.
pub fn broadcast() -> String {
    let (name, coll, more) = ("chain", "broadcast", " root=\"1\"");
    let mut xml = Xml::new(&Algo { name, coll, ranks: 3, chunks: 2, in_place: true, more });
    let data = i(0);
    xml.gpu(0, [2, 0, 0], |xml| {
        xml.block(0, [None, Some(2)], 0, |xml| xml.after("r", data, data, 2, None));
    });
    xml.gpu(1, [2, 0, 0], |xml| {
        xml.block(0, [Some(2), None], 0, |xml| xml.after("s", data, data, 2, None));
    });
    xml.gpu(2, [2, 0, 0], |xml| {
        xml.block(0, [Some(0), Some(1)], 0, |xml| xml.after("rcs", data, data, 2, None));
    });
    xml.end()
}
