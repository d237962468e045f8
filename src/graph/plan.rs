//! What crosses ranks, where it lies, and how it gets there.

use super::model::{Graph, Memory, OperatorNumber, TensorNumber};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;

/// Places begin at multiples of it, in bytes: what an adapter and a vector load like.
pub const ALIGN_BYTES: u64 = 256;
/// Bytes of a tensor's metadata: how many bytes it has, a u64.
pub const METADATA_BYTES: u64 = 8;

/// How a tensor gets to another rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// Written from where it was computed to where it is read: no copy on either side.
    ZeroCopy,
    /// The producer writes metadata; the reader reads as much as there is, from where it was
    /// computed to where it is used.
    Read,
    /// Copied into registered memory of the producer, written, and read from there.
    Staged,
}

/// Why a tensor goes so.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// Its shape is known.
    Shape,
    /// This dimension is not known before the graph runs.
    Unknown(String),
    /// Nothing bounds it (`bytes_max`), so no registered memory is large enough for certain.
    Unbounded,
    /// Somebody else allocates this tensor, whose memory it is.
    Foreign(TensorNumber),
    /// It is a view of a tensor that comes from another rank.
    Received(TensorNumber),
    /// A traced iteration found it outside of the memory that the plan gave it.
    Elsewhere(TensorNumber),
}

/// A tensor that crosses from one rank to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Which tensor.
    pub tensor: TensorNumber,
    /// From the rank that produces it.
    pub from: u32,
    /// To one that reads it.
    pub to: u32,
    /// Bytes; of dynamic ones, the most; None where nobody knows.
    pub bytes: Option<u64>,
    /// How it goes.
    pub method: Method,
    /// And why.
    pub why: Why,
}

/// What a place in registered memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Use {
    /// The tensor is computed there.
    Produced,
    /// The tensor arrives there from the rank that produces it, and is read there.
    Received,
    /// Metadata of a dynamic tensor, at the producer and at the reader.
    Metadata,
    /// The tensor is copied there before it is sent.
    Staging,
}

/// A place in the registered memory of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Bytes from the start of the rank's window.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
}

/// A step of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Wait until the transfer with this number has come, and for a read, make it.
    Await(usize),
    /// Wait until the other side of the transfer with this number needs its source no more.
    AwaitSent(usize),
    /// Run the operator.
    Run(OperatorNumber),
    /// Begin the transfer with this number: write the tensor, or its metadata.
    Send(usize),
}

/// Buffers of a first iteration, as an executor has seen them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// One for each tensor on each rank that has it.
    pub buffers: Vec<TracedBuffer>,
    /// The registered memory of each rank: address and bytes.
    pub windows: Vec<(u64, u64)>,
}

/// Where a tensor was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedBuffer {
    /// The tensor, where it is produced.
    pub tensor: TensorNumber,
    /// Address of its first byte.
    pub address: u64,
    /// Its bytes.
    pub bytes: u64,
}

/// Allocation and transfers of a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct TransferPlan {
    /// Of which graph.
    pub graph: Graph,
    /// What crosses, in the order in which it is produced, then by reader.
    pub edges: Vec<Edge>,
    /// Places, by rank, use and tensor. A tensor that is a view has the place of its root.
    pub places: BTreeMap<(u32, Use, TensorNumber), Place>,
    /// Bytes of each rank's window: as much as the largest needs.
    pub window_bytes: u64,
    /// What each rank does.
    pub steps: Vec<Vec<Step>>,
    /// Tensors that a traced iteration found in the buffer of another: the earlier one.
    pub shared: BTreeMap<TensorNumber, TensorNumber>,
    elsewhere: Vec<TensorNumber>,
    roots: Vec<TensorNumber>,
}

/// A traced iteration that is not one of the plan's graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the trace is not of this graph: {0}")]
pub struct TraceError(String);

impl TransferPlan {
    /// What follows from shapes and placement alone.
    pub fn of(graph: Graph) -> Self {
        Self::with(graph, BTreeMap::new(), Vec::new())
    }

    /// The plan after a first iteration: tensors that were produced in place have one place
    /// together, the operator that overwrites one waits until it was sent, and what was not where
    /// it should have been is staged.
    ///
    /// # Errors
    /// [`TraceError`] for tensors or ranks that there are not, buffers that wrap around, and those
    /// smaller than their tensors.
    pub fn corrected(&self, trace: &Trace) -> Result<Self, TraceError> {
        let tensors = self.graph.tensors();
        if trace.windows.len() != self.graph.ranks() as usize {
            let (ranks, seen) = (self.graph.ranks(), trace.windows.len());
            return Err(TraceError(format!("{seen} windows for {ranks} ranks")));
        }
        let mut seen = BTreeMap::new();
        for buffer in &trace.buffers {
            let Some(tensor) = tensors.get(buffer.tensor) else {
                return Err(TraceError(format!("tensor {}", buffer.tensor)));
            };
            let fits = tensor.bytes().is_none_or(|bytes| bytes <= buffer.bytes);
            if !fits || buffer.address.checked_add(buffer.bytes).is_none() {
                let (name, bytes) = (&tensor.name, buffer.bytes);
                return Err(TraceError(format!("'{name}' in {bytes} bytes")));
            }
            seen.insert(buffer.tensor, *buffer);
        }
        let mut elsewhere = self.elsewhere.clone();
        for &(rank, usage, tensor) in self.places.keys() {
            let (base, bytes) = trace.windows[rank as usize];
            let is_outside = |buffer: &TracedBuffer| {
                buffer.address < base || buffer.address + buffer.bytes > base.saturating_add(bytes)
            };
            if usage == Use::Produced && seen.get(&tensor).is_some_and(is_outside) {
                elsewhere.push(tensor);
            }
        }
        elsewhere.sort_unstable();
        elsewhere.dedup();
        Ok(Self::with(self.graph.clone(), shared(&self.graph, &seen), elsewhere))
    }

    fn with(
        graph: Graph,
        shared: BTreeMap<TensorNumber, TensorNumber>,
        elsewhere: Vec<TensorNumber>,
    ) -> Self {
        let (edges, places, window_bytes) = (Vec::new(), BTreeMap::new(), 0);
        let steps = vec![Vec::new(); graph.ranks() as usize];
        let roots = roots(&graph, &shared);
        let mut plan = Self { graph, edges, places, window_bytes, steps, shared, elsewhere, roots };
        plan.find_edges();
        plan.place();
        plan.order();
        plan
    }

    /// The tensor in whose memory this one is: by its operator, or as a trace has shown.
    pub fn root(&self, tensor: TensorNumber) -> TensorNumber {
        self.roots[tensor]
    }

    fn find_edges(&mut self) {
        let tensors = self.graph.tensors();
        let mut readers: Vec<Vec<u32>> = vec![Vec::new(); tensors.len()];
        for operator in self.graph.operators() {
            for &input in &operator.inputs {
                if tensors[input].rank != operator.rank {
                    readers[input].push(operator.rank);
                }
            }
        }
        let mut order: Vec<TensorNumber> = (0..tensors.len()).collect();
        // Inputs and parameters first, which None is.
        order.sort_by_key(|&tensor| tensors[tensor].producer);
        for tensor in order {
            let mut ranks = std::mem::take(&mut readers[tensor]);
            ranks.sort_unstable();
            ranks.dedup();
            for to in ranks {
                let (method, why) = self.choose(tensor);
                let bytes = tensors[tensor].bytes().or(tensors[tensor].bytes_max);
                let from = tensors[tensor].rank;
                self.edges.push(Edge { tensor, from, to, bytes, method, why });
            }
        }
    }

    fn choose(&self, tensor: TensorNumber) -> (Method, Why) {
        let (tensors, root) = (self.graph.tensors(), self.root(tensor));
        let own = &tensors[tensor];
        let by_shape = own.bytes().is_some();
        if !by_shape && own.bytes_max.is_none() {
            return (Method::Staged, Why::Unbounded);
        }
        if tensors[root].memory == Memory::Foreign || own.memory == Memory::Foreign {
            return (Method::Staged, Why::Foreign(root));
        }
        if self.elsewhere.contains(&root) {
            return (Method::Staged, Why::Elsewhere(root));
        }
        let of_root = tensors[root].producer.map(|producer| &self.graph.operators()[producer]);
        if of_root.is_some_and(|operator| operator.kind.is_alias()) {
            return (Method::Staged, Why::Received(root));
        }
        if by_shape {
            return (Method::ZeroCopy, Why::Shape);
        }
        let unknown = own.shape.iter().flatten().find_map(|extent| match extent {
            super::model::Extent::Unknown(name) => Some(name.clone()),
            super::model::Extent::Fixed(_) => None,
        });
        (Method::Read, Why::Unknown(unknown.unwrap_or_else(|| "the whole shape".into())))
    }

    fn place(&mut self) {
        let mut wanted: BTreeMap<(u32, Use, TensorNumber), u64> = BTreeMap::new();
        let mut want = |rank, usage, tensor, bytes: u64| {
            let most = wanted.entry((rank, usage, tensor)).or_default();
            *most = bytes.max(*most);
        };
        for edge in &self.edges {
            let Some(bytes) = edge.bytes else { continue };
            let root = self.root(edge.tensor);
            match edge.method {
                Method::Staged => want(edge.from, Use::Staging, edge.tensor, bytes),
                Method::ZeroCopy | Method::Read => {
                    let tensors = self.graph.tensors();
                    let of_root = tensors[root].bytes().or(tensors[root].bytes_max);
                    want(edge.from, Use::Produced, root, bytes.max(of_root.unwrap_or(0)));
                }
            }
            want(edge.to, Use::Received, edge.tensor, bytes);
            if edge.method == Method::Read {
                want(edge.from, Use::Metadata, edge.tensor, METADATA_BYTES);
                want(edge.to, Use::Metadata, edge.tensor, METADATA_BYTES);
            }
        }
        let mut ends = vec![0u64; self.graph.ranks() as usize];
        for ((rank, usage, tensor), bytes) in wanted {
            let end = &mut ends[rank as usize];
            let offset = *end;
            *end = end.saturating_add(bytes).saturating_add(ALIGN_BYTES - 1) / ALIGN_BYTES
                * ALIGN_BYTES;
            self.places.insert((rank, usage, tensor), Place { offset, bytes });
        }
        self.window_bytes = ends.into_iter().max().unwrap_or(0);
    }

    /// Signals of a pair of ranks are counted, so a reader waits for transfers in the order in
    /// which they are sent.
    fn order(&mut self) {
        let (tensors, operators) = (self.graph.tensors(), self.graph.operators());
        let mut of_tensor = vec![Vec::new(); tensors.len()];
        let mut of_root: BTreeMap<TensorNumber, Vec<usize>> = BTreeMap::new();
        let mut of_pair: BTreeMap<(u32, u32), VecDeque<usize>> = BTreeMap::new();
        for (number, edge) in self.edges.iter().enumerate() {
            of_tensor[edge.tensor].push(number);
            of_root.entry(self.root(edge.tensor)).or_default().push(number);
            of_pair.entry((edge.from, edge.to)).or_default().push_back(number);
        }
        let mut steps = vec![Vec::new(); self.graph.ranks() as usize];
        for (tensor, sends) in tensors.iter().zip(&of_tensor) {
            if tensor.producer.is_none() {
                steps[tensor.rank as usize].extend(sends.iter().copied().map(Step::Send));
            }
        }
        for (number, operator) in operators.iter().enumerate() {
            let own = &mut steps[operator.rank as usize];
            for &input in &operator.inputs {
                let to = |&&edge: &&usize| self.edges[edge].to == operator.rank;
                let Some(&wanted) = of_tensor[input].iter().find(to) else { continue };
                let pair = (self.edges[wanted].from, operator.rank);
                let waiting = of_pair.entry(pair).or_default();
                while waiting.front().is_some_and(|&first| first <= wanted) {
                    own.extend(waiting.pop_front().map(Step::Await));
                }
            }
            // It overwrites what others may still be reading.
            if self.shared.contains_key(&operator.output) {
                let sent = |&&edge: &&usize| {
                    let producer = tensors[self.edges[edge].tensor].producer;
                    producer.is_none_or(|producer| producer < number)
                };
                let earlier = of_root.get(&self.root(operator.output)).into_iter().flatten();
                own.extend(earlier.filter(sent).copied().map(Step::AwaitSent));
            }
            own.push(Step::Run(number));
            own.extend(of_tensor[operator.output].iter().copied().map(Step::Send));
        }
        self.steps = steps;
    }
}

/// For each tensor, the one in whose memory it is.
fn roots(graph: &Graph, shared: &BTreeMap<TensorNumber, TensorNumber>) -> Vec<TensorNumber> {
    let mut roots: Vec<TensorNumber> = (0..graph.tensors().len()).collect();
    // In order: an earlier operator's root is known.
    for operator in graph.operators() {
        let earlier = match operator.kind.is_alias() {
            // A view of what was received is nobody's place to send from.
            true => Some(operator.inputs[0])
                .filter(|&input| graph.tensors()[input].rank == operator.rank),
            false => shared.get(&operator.output).copied(),
        };
        roots[operator.output] = earlier.map_or(operator.output, |earlier| roots[earlier]);
    }
    roots
}

/// Which tensors were produced in the buffer of an earlier one.
fn shared(
    graph: &Graph,
    seen: &BTreeMap<TensorNumber, TracedBuffer>,
) -> BTreeMap<TensorNumber, TensorNumber> {
    let tensors = graph.tensors();
    let mut found = BTreeMap::new();
    for operator in graph.operators().iter().filter(|operator| !operator.kind.is_alias()) {
        let Some(own) = seen.get(&operator.output) else { continue };
        let meets = |input: &&TensorNumber| {
            let other = seen.get(*input).filter(|_| tensors[**input].rank == operator.rank);
            other.is_some_and(|other| {
                own.address < other.address + other.bytes && other.address < own.address + own.bytes
            })
        };
        if let Some(&input) = operator.inputs.iter().find(meets) {
            found.insert(operator.output, input);
        }
    }
    found
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ZeroCopy => "zero copy",
            Self::Read => "read",
            Self::Staged => "staged",
        })
    }
}
