//! Files as MSCCL++'s language writes them: JSON, here with an op on each line.

/// What each rank of a file is made of.
struct Gpu {
    chunks: [u32; 3],
    /// The buffers of all other ranks that it uses.
    remote: &'static [&'static str],
    /// Ops of each thread block.
    blocks: Vec<Vec<String>>,
}

fn file(collective: &str, ranks: u32, gpu: impl Fn(u32) -> Gpu) -> String {
    let mut text = format!(
        "{{\"name\": \"written\", \"collective\": \"{collective}\", \"protocol\": \"Simple\",\n\
         \"inplace\": true, \"num_threads_per_block\": 1024,\n\
         \"min_message_size\": 0, \"max_message_size\": 18446744073709551615,\n\"gpus\": [\n"
    );
    for rank in 0..ranks {
        let Gpu { chunks: [input, output, scratch], remote, blocks } = gpu(rank);
        let peers = peers(rank, ranks);
        let buffers = peers.iter().flat_map(|peer| {
            remote.iter().map(move |kind| {
                format!(
                    "{{\"rank\": {peer}, \"type\": \"{kind}\", \
                     \"access_channel_types\": [\"memory\"]}}"
                )
            })
        });
        let buffers: Vec<_> = buffers.collect();
        let channels: Vec<_> = (0..peers.len()).collect();
        let all: Vec<_> = (0..buffers.len()).collect();
        let blocks = (0..).zip(blocks).map(|(id, ops): (u32, Vec<String>)| {
            format!(
                "{{\"id\": {id}, \"ops\": [\n{}],\n\"channels\": [{{\"channel_type\": \"memory\", \
                 \"channel_ids\": {channels:?}}}],\n\"remote_buffer_refs\": \
                 [{{\"access_channel_type\": \"memory\", \"remote_buffer_ids\": {all:?}}}]}}",
                ops.join(",\n")
            )
        });
        let blocks: Vec<_> = blocks.collect();
        let comma = if rank + 1 < ranks { "," } else { "" };
        text += &format!(
            "{{\"id\": {rank}, \"input_chunks\": {input}, \"output_chunks\": {output}, \
             \"scratch_chunks\": {scratch},\n\"threadblocks\": [{}],\n\"channels\": \
             [{{\"channel_type\": \"memory\", \"connected_to\": {peers:?}}}],\n\
             \"remote_buffers\": [{}], \"semaphores\": []}}{comma}\n",
            blocks.join(",\n"),
            buffers.join(", ")
        );
    }
    text + "]}\n"
}

fn peers(rank: u32, ranks: u32) -> Vec<u32> {
    (0..ranks).filter(|peer| *peer != rank).collect()
}

/// A chunk of the rank's own, and of buffer `id` of another one.
fn own(kind: &str, index: u32) -> String {
    format!("{{\"type\": \"{kind}\", \"index\": {index}, \"size\": 1}}")
}

fn other(id: usize, index: u32) -> String {
    format!("{{\"buffer_id\": {id}, \"index\": {index}, \"size\": 1}}")
}

fn on_channels(name: &str, channels: &[usize]) -> String {
    format!("{{\"name\": \"{name}\", \"channel_ids\": {channels:?}, \"channel_type\": \"memory\"}}")
}

fn moves(name: &str, from: &[String], to: &[String], more: &str) -> String {
    format!(
        "{{\"name\": \"{name}\", \"src_buff\": [{}], \"dst_buff\": [{}], \
         \"channel_type\": \"memory\"{more}}}",
        from.join(", "),
        to.join(", ")
    )
}

const SUM: &str = ", \"reduce_op\": \"sum\"";

/// All-reduce: each rank reads its part of all others, and writes the sum into their memory.
pub fn reads(ranks: u32) -> String {
    file("allreduce", ranks, |rank| {
        let channels: Vec<usize> = (0..ranks as usize - 1).collect();
        let theirs: Vec<_> = channels.iter().map(|id| other(*id, rank)).collect();
        let all = [&[own("i", rank)], &theirs[..]].concat();
        let ops = vec![
            on_channels("signal", &channels),
            on_channels("wait", &channels),
            moves("rres", &all, &all, SUM),
            "{\"name\": \"nop\"}".to_owned(),
            on_channels("signal", &channels),
            on_channels("wait", &channels),
        ];
        Gpu { chunks: [ranks, ranks, 0], remote: &["i"], blocks: vec![ops] }
    })
}

/// All-gather: each rank puts its part into the memory of all others, a thread block for each.
pub fn puts(ranks: u32) -> String {
    file("allgather", ranks, |rank| {
        let count = ranks as usize - 1;
        let block = |peer| {
            vec![
                format!(
                    "{{\"name\": \"barrier\", \"barrier_id\": 0, \"num_threadblocks\": {count}}}"
                ),
                moves("put", &[own("o", rank)], &[other(peer, rank)], ""),
                on_channels("signal", &[peer]),
                on_channels("wait", &[peer]),
            ]
        };
        let blocks = (0..count).map(block).collect();
        Gpu { chunks: [1, ranks, 0], remote: &["o"], blocks }
    })
}

/// All-reduce by packets, in which two thread blocks share each chunk.
pub fn packets(ranks: u32) -> String {
    file("allreduce", ranks, |rank| {
        let block = |id| {
            let shared = format!(", \"tbg_info\": {{\"tb_id\": {id}, \"tbg_size\": 2}}");
            let peers = peers(rank, ranks);
            let puts = peers.iter().enumerate().map(|(buffer, peer)| {
                moves("ppkt", &[own("i", *peer)], &[other(buffer, rank)], &shared)
            });
            let terms = peers.iter().map(|peer| own("s", *peer));
            let terms: Vec<_> = std::iter::once(own("i", rank)).chain(terms).collect();
            let sums = (0..peers.len()).map(|buffer| other(buffer, ranks + rank));
            let sums: Vec<_> = std::iter::once(own("i", rank)).chain(sums).collect();
            let sum = moves("respkt", &terms, &sums, &format!("{shared}{SUM}"));
            let got = peers
                .iter()
                .map(|peer| moves("upkt", &[own("s", ranks + peer)], &[own("i", *peer)], &shared));
            puts.chain([sum]).chain(got).collect()
        };
        let blocks = (0..2).map(block).collect();
        Gpu { chunks: [ranks, ranks, 2 * ranks], remote: &["s"], blocks }
    })
}
