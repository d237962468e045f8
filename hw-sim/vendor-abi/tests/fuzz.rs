//! Broken images, inputs of the linker and graphs at random: an error code that CUDA defines, and
//! never a crash or a hang. If one of these tests fails, a damaged file or a program with a mistake
//! takes down its process instead of hearing what is wrong.
//!
//! See `tests/support/mutation.rs` at the root for the variables that make it longer, or play one
//! case again.

mod common;
#[path = "common/graph.rs"]
mod graph;
#[path = "../../../tests/support/mutation.rs"]
mod mutation;
#[path = "common/profile.rs"]
mod profile;
#[path = "common/ptx.rs"]
mod ptx;

use common::{context, on_machine, stream};
use cudarc::driver::sys::CUresult::{self, *};
use cudarc::driver::sys::{self, CUjitInputType};
use fastrand::Rng;
use graph::{add_count, count_kernel, empty_copy, executable, load, new_graph, run};
use mutation::{Campaign, Input, corpus};
use profile::word;
use std::cell::Cell;
use std::ffi::CString;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::AtomicU64;

/// What images and inputs of links may be answered.
const OF_IMAGES: [CUresult; 10] = [
    CUDA_SUCCESS,
    CUDA_ERROR_INVALID_VALUE,
    CUDA_ERROR_OUT_OF_MEMORY,
    CUDA_ERROR_INVALID_IMAGE,
    CUDA_ERROR_INVALID_SOURCE,
    CUDA_ERROR_NO_BINARY_FOR_GPU,
    CUDA_ERROR_INVALID_PTX,
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
    CUDA_ERROR_NOT_FOUND,
    CUDA_ERROR_NOT_SUPPORTED,
];

/// What calls that build, change and run graphs may be answered.
const OF_GRAPHS: [CUresult; 12] = [
    CUDA_SUCCESS,
    CUDA_ERROR_INVALID_VALUE,
    CUDA_ERROR_INVALID_HANDLE,
    CUDA_ERROR_OUT_OF_MEMORY,
    CUDA_ERROR_NOT_SUPPORTED,
    CUDA_ERROR_ILLEGAL_STATE,
    CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
];

/// A container of one text, as an object file or an archive has it.
fn held(text: &[u8], before: &[u8]) -> Vec<u8> {
    let mut payload = text.to_vec();
    payload.resize(payload.len().next_multiple_of(8) + 8, 0);
    let mut entry = [0u8; 64];
    entry[0..2].copy_from_slice(&1u16.to_le_bytes());
    entry[4..8].copy_from_slice(&64u32.to_le_bytes());
    entry[8..16].copy_from_slice(&(payload.len() as u64).to_le_bytes());
    entry[28..32].copy_from_slice(&70u32.to_le_bytes());
    let size = (64 + payload.len()) as u64;
    let head = [&0xba55_ed50u32.to_le_bytes()[..], &[1, 0, 16, 0], &size.to_le_bytes()].concat();
    [before, &head, &entry, &payload].concat()
}

/// What `cuLinkComplete` gives for a text.
fn linked(text: &[u8]) -> Vec<u8> {
    let (mut link, mut image, mut bytes, none) = (null_mut(), null_mut(), 0, null_mut());
    let data = text.as_ptr().cast_mut().cast();
    ok!(cuLinkCreate_v2(0, null_mut(), null_mut(), &mut link));
    ok!(cuLinkAddData_v2(
        link,
        CUjitInputType::CU_JIT_INPUT_PTX,
        data,
        text.len(),
        c"text".as_ptr(),
        0,
        none,
        null_mut()
    ));
    ok!(cuLinkComplete(link, &mut image, &mut bytes));
    // SAFETY: the driver says so, until the link is destroyed.
    let image = unsafe { std::slice::from_raw_parts(image.cast::<u8>(), bytes) }.to_vec();
    ok!(cuLinkDestroy(link));
    image
}

fn images() -> Vec<Input> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/fatbin");
    let mut all = corpus(&folder, "fatbin");
    all.extend(corpus(&folder, "cubin"));
    let text = std::fs::read(folder.join("scale.ptx")).unwrap();
    let input = |name: &str, bytes: Vec<u8>| Input { name: name.to_owned(), bytes };
    all.extend([
        input("an object", held(&text, b"\x7fELF and more")),
        input("an archive", held(&text, b"!<arch>\nmember.o/       0 ")),
        input("an archive of machine code", b"!<arch>\nmember.o/       0 \x7fELF".to_vec()),
        input("a linked image", linked(&text)),
        input("a text", text),
    ]);
    all
}

/// A file after one to eight changes: bits, numbers at their edges, parts that are cut out or come
/// from elsewhere.
fn damage(rng: &mut Rng, files: &[Input]) -> Vec<u8> {
    let mut bytes = rng.choice(files).expect("a corpus").bytes.clone();
    let donor = &rng.choice(files).expect("a corpus").bytes;
    for _ in 0..rng.u32(1..=8) {
        if bytes.is_empty() {
            break;
        }
        // Headers are short, and say how the rest is read.
        let length = if rng.bool() { bytes.len().min(160) } else { bytes.len() };
        let at = rng.usize(0..length);
        match rng.u32(0..8) {
            0 | 1 => bytes[at] ^= 1 << rng.u32(0..8),
            2..=4 => {
                let edges =
                    [0, 1, 63, 64, 0x7fff, 0xffff, 0x7fff_ffff, u64::from(u32::MAX), 1 << 46];
                let number = if rng.bool() {
                    u64::MAX - rng.u64(0..64)
                } else {
                    *rng.choice(&edges).expect("some")
                };
                let at = at & !3;
                let width = [2, 4, 8][rng.usize(0..3)].min(bytes.len() - at);
                bytes[at..at + width].copy_from_slice(&number.to_le_bytes()[..width]);
            }
            5 => bytes.truncate(at),
            6 => drop(bytes.drain(at..(at + rng.usize(0..64)).min(bytes.len()))),
            _ => {
                let from = rng.usize(0..donor.len());
                let part = &donor[from..(from + rng.usize(0..200)).min(donor.len())];
                bytes.splice(at..at, part.iter().copied());
            }
        }
    }
    bytes
}

/// Counts the calls that were taken and refused; names answers that no program expects.
struct Answers {
    expected: &'static [CUresult],
    counts: Cell<[u64; 2]>,
}

impl Answers {
    fn new(expected: &'static [CUresult]) -> Self {
        Self { expected, counts: Cell::default() }
    }

    fn note(&self, call: &str, code: CUresult) -> Result<bool, String> {
        let mut counts = self.counts.get();
        counts[usize::from(code != CUDA_SUCCESS)] += 1;
        self.counts.set(counts);
        match self.expected.contains(&code) {
            true => Ok(code == CUDA_SUCCESS),
            false => Err(format!("{call}: {code:?}")),
        }
    }
}

/// Hands a file to all calls that read images.
fn load_everywhere(bytes: &[u8], file: &Path, answers: &Answers) -> Result<(), String> {
    // Texts end with a NUL, and programs align what they hand over.
    let mut words = vec![0u64; bytes.len() / 8 + 2];
    bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
    std::fs::write(file, bytes).unwrap();
    let path = CString::new(file.to_str().unwrap()).unwrap();
    let image: *const std::ffi::c_void = words.as_ptr().cast();
    let mut module = null_mut();
    // SAFETY: memory and a file that are there; what is in them is not to be trusted.
    unsafe {
        for (call, code) in [
            ("cuModuleLoadData", sys::cuModuleLoadData(&mut module, image)),
            ("cuModuleLoad", sys::cuModuleLoad(&mut module, path.as_ptr())),
        ] {
            if answers.note(call, code)? {
                sys::cuModuleUnload(module);
            }
        }
        let (mut library, none, nothing) = (null_mut(), null_mut(), null_mut());
        let code = sys::cuLibraryLoadFromFile(
            &mut library,
            path.as_ptr(),
            none,
            nothing,
            0,
            null_mut(),
            null_mut(),
            0,
        );
        if answers.note("cuLibraryLoadFromFile", code)? {
            let code = sys::cuLibraryGetModule(&mut module, library);
            answers.note("cuLibraryGetModule", code)?;
            sys::cuLibraryUnload(library);
        }
    }
    Ok(())
}

/// Hands a file to the linker as each kind of input, beside one that is right.
fn link_as_everything(bytes: &[u8], answers: &Answers) -> Result<(), String> {
    use CUjitInputType::*;
    const GOOD: &str =
        ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k() { ret; }";
    let kinds = [
        CU_JIT_INPUT_CUBIN,
        CU_JIT_INPUT_PTX,
        CU_JIT_INPUT_FATBINARY,
        CU_JIT_INPUT_OBJECT,
        CU_JIT_INPUT_LIBRARY,
    ];
    for kind in kinds {
        let (mut link, mut image, mut bytes_of_it) = (null_mut(), null_mut(), 0);
        // SAFETY: the bytes are there; what is in them is not to be trusted.
        unsafe {
            let code = sys::cuLinkCreate_v2(0, null_mut(), null_mut(), &mut link);
            answers.note("cuLinkCreate", code)?;
            for (kind, bytes) in [(CU_JIT_INPUT_PTX, GOOD.as_bytes()), (kind, bytes)] {
                let (data, none) = (bytes.as_ptr().cast_mut().cast(), null_mut());
                let (length, name) = (bytes.len(), c"input".as_ptr());
                let code =
                    sys::cuLinkAddData_v2(link, kind, data, length, name, 0, none, null_mut());
                answers.note("cuLinkAddData", code)?;
            }
            let code = sys::cuLinkComplete(link, &mut image, &mut bytes_of_it);
            if answers.note("cuLinkComplete", code)? {
                let mut module = null_mut();
                let code = sys::cuModuleLoadData(&mut module, image);
                if answers.note("cuModuleLoadData of a link", code)? {
                    sys::cuModuleUnload(module);
                }
            }
            let code = sys::cuLinkDestroy(link);
            answers.note("cuLinkDestroy", code)?;
        }
    }
    Ok(())
}

/// The driver still works.
fn check_driver() {
    let (graph, word) = (new_graph(), word());
    add_count(graph, word, 3, &[]);
    run(executable(graph), 2);
    assert_eq!(load(word), 6);
}

#[test]
fn damaged_images_are_answered_with_codes() {
    on_machine("damaged_images_are_answered_with_codes", "one-gpu", || {
        context(0);
        let campaign = Campaign {
            target: "-p hwsim-vendor-abi --test fuzz",
            test: "damaged_images_are_answered_with_codes",
            cases: 400,
        };
        let (files, answers) = (images(), Answers::new(&OF_IMAGES));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("image");
        let play = |bytes: &[u8]| {
            load_everywhere(bytes, &file, &answers)?;
            link_as_everything(bytes, &answers)
        };
        campaign.replay(&files, play);
        campaign.run(|rng| damage(rng, &files), play);
        let [taken, refused] = answers.counts.get();
        assert!(taken > 1000 && refused > 1000, "{taken} taken, {refused} refused");
        check_driver();
    });
}

/// What a sequence of calls has to do with: handles that are good, stale, or of something else.
struct Handles {
    graphs: Vec<sys::CUgraph>,
    nodes: Vec<sys::CUgraphNode>,
    executables: Vec<sys::CUgraphExec>,
    streams: [sys::CUstream; 2],
    count: sys::CUfunction,
    /// What its kernels and host functions count.
    word: &'static AtomicU64,
    memory: u64,
}

/// Numbers of a random sequence, until it ends.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn next(&mut self) -> Option<usize> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(usize::from(*first))
    }

    /// One of some handles; sometimes none.
    fn one<T: Copy>(&mut self, handles: &[*mut T]) -> *mut T {
        match self.next() {
            Some(number) if number < 250 && !handles.is_empty() => handles[number % handles.len()],
            _ => null_mut(),
        }
    }
}

impl Handles {
    fn new(count: sys::CUfunction, streams: [sys::CUstream; 2], word: &'static AtomicU64) -> Self {
        let (graphs, nodes, executables) = (vec![new_graph()], Vec::new(), Vec::new());
        let memory = common::device_memory(4096);
        Self { graphs, nodes, executables, streams, count, word, memory }
    }

    /// Adds a node of one kind behind some others.
    fn add(&mut self, choices: &mut Choices<'_>) -> CUresult {
        let graph = choices.one(&self.graphs);
        let after: Vec<_> =
            (0..choices.next().unwrap_or(0) % 3).map(|_| choices.one(&self.nodes)).collect();
        let (list, length, mut node) = (after.as_ptr(), after.len(), null_mut());
        let words = [profile::address(self.word), 1];
        // SAFETY: parameters as each kind of node wants them, of memory that stays.
        let code = unsafe {
            match choices.next().unwrap_or(0) % 6 {
                0 | 1 => {
                    let mut kernel = graph::KernelNode::new(self.count, &words);
                    let parameters = kernel.parameters();
                    sys::cuGraphAddKernelNode_v2(&mut node, graph, list, length, &parameters)
                }
                2 => {
                    let function = sys::CUDA_HOST_NODE_PARAMS {
                        fn_: Some(graph::count_host_call),
                        userData: std::ptr::from_ref(self.word).cast_mut().cast(),
                    };
                    sys::cuGraphAddHostNode(&mut node, graph, list, length, &function)
                }
                3 => {
                    let child = choices.one(&self.graphs);
                    sys::cuGraphAddChildGraphNode(&mut node, graph, list, length, child)
                }
                4 => {
                    let mut copy = empty_copy(null_mut(), self.memory);
                    copy.srcMemoryType = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE;
                    copy.srcDevice = self.memory + 2048;
                    (copy.WidthInBytes, copy.Height, copy.Depth) = (1024, 1, 1);
                    let mut current = null_mut();
                    sys::cuCtxGetCurrent(&mut current);
                    sys::cuGraphAddMemcpyNode(&mut node, graph, list, length, &copy, current)
                }
                _ => sys::cuGraphAddEmptyNode(&mut node, graph, list, length),
            }
        };
        if code == CUDA_SUCCESS {
            self.nodes.push(node);
        }
        code
    }

    /// Makes and ends graphs and what runs of them.
    fn live(&mut self, choices: &mut Choices<'_>) -> CUresult {
        let (graph, node) = (choices.one(&self.graphs), choices.one(&self.nodes));
        let executable = choices.one(&self.executables);
        let queue = choices.one(&self.streams);
        let (mut made, mut runs) = (null_mut(), null_mut());
        // SAFETY: handles that the driver gave, which it may have taken back since.
        unsafe {
            let code = match choices.next().unwrap_or(0) % 12 {
                0 => sys::cuGraphCreate(&mut made, 0),
                1 => sys::cuGraphClone(&mut made, graph),
                2..=4 => sys::cuGraphInstantiateWithFlags(&mut runs, graph, 0),
                5..=7 => sys::cuGraphLaunch(executable, queue),
                8 => sys::cuGraphUpload(executable, queue),
                9 => sys::cuGraphDestroy(graph),
                10 => sys::cuGraphExecDestroy(executable),
                _ => sys::cuGraphDestroyNode(node),
            };
            if code == CUDA_SUCCESS {
                self.graphs.extend((!made.is_null()).then_some(made));
                self.executables.extend((!runs.is_null()).then_some(runs));
            }
            code
        }
    }

    /// Changes and asks.
    fn change(&mut self, choices: &mut Choices<'_>) -> CUresult {
        let (graph, executable) = (choices.one(&self.graphs), choices.one(&self.executables));
        let (from, to) = (choices.one(&self.nodes), choices.one(&self.nodes));
        let (mut nodes, mut count) = ([null_mut(); 4], choices.next().unwrap_or(0) % 5);
        let (mut kind, mut copy) = (sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL, null_mut());
        let words = [profile::address(self.word), 1];
        // SAFETY: room for all results; handles that the driver may have taken back.
        unsafe {
            match choices.next().unwrap_or(0) % 9 {
                0 | 1 => sys::cuGraphAddDependencies(graph, &from, &to, 1),
                2 => sys::cuGraphRemoveDependencies(graph, &from, &to, 1),
                3 => sys::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count),
                4 => sys::cuGraphNodeGetType(from, &mut kind),
                5 => sys::cuGraphNodeFindInClone(&mut copy, from, graph),
                6 => sys::cuGraphNodeSetEnabled(executable, from, (count % 2) as u32),
                7 => {
                    let mut kernel = graph::KernelNode::new(self.count, &words);
                    sys::cuGraphExecKernelNodeSetParams_v2(executable, from, &kernel.parameters())
                }
                _ => {
                    let mut result = std::mem::zeroed::<sys::CUgraphExecUpdateResultInfo>();
                    sys::cuGraphExecUpdate_v2(executable, graph, &mut result)
                }
            }
        }
    }

    /// Captures, and works meanwhile.
    fn capture(&mut self, choices: &mut Choices<'_>) -> CUresult {
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED;
        let (queue, mut made) = (choices.one(&self.streams), null_mut());
        // SAFETY: as above.
        unsafe {
            match choices.next().unwrap_or(0) % 4 {
                0 => sys::cuStreamBeginCapture_v2(queue, mode),
                1 => sys::cuMemsetD8Async(self.memory, 1, 256, queue),
                2 => common::launch(self.count, 1, 1, queue, &[profile::address(self.word), 1]),
                _ => {
                    let code = sys::cuStreamEndCapture(queue, &mut made);
                    self.graphs.extend((!made.is_null()).then_some(made));
                    code
                }
            }
        }
    }
}

/// Calls as the numbers say, then ends what runs.
fn play_graphs(numbers: &[u8], handles: &mut Handles, answers: &Answers) -> Result<(), String> {
    let mut choices = Choices(numbers);
    while let Some(number) = choices.next() {
        let (call, code) = match number % 8 {
            0..=2 => ("a node", handles.add(&mut choices)),
            3..=5 => ("a life", handles.live(&mut choices)),
            6 => ("a change", handles.change(&mut choices)),
            _ => ("a capture", handles.capture(&mut choices)),
        };
        answers.note(call, code)?;
    }
    for queue in handles.streams {
        let mut made = null_mut();
        // SAFETY: streams live as long as the test.
        answers.note("the capture's end", unsafe { sys::cuStreamEndCapture(queue, &mut made) })?;
        handles.graphs.extend((!made.is_null()).then_some(made));
        // SAFETY: as above.
        let code = unsafe { sys::cuStreamSynchronize(queue) };
        if code != CUDA_SUCCESS {
            return Err(format!("the stream has failed: {code:?}"));
        }
    }
    // SAFETY: handles that the driver gave; some are stale.
    unsafe {
        for executable in handles.executables.drain(..) {
            answers.note("cuGraphExecDestroy", sys::cuGraphExecDestroy(executable))?;
        }
        for graph in handles.graphs.drain(..) {
            answers.note("cuGraphDestroy", sys::cuGraphDestroy(graph))?;
        }
    }
    handles.nodes.clear();
    Ok(())
}

#[test]
fn graphs_at_random_are_answered_with_codes() {
    on_machine("graphs_at_random_are_answered_with_codes", "one-gpu", || {
        context(0);
        let campaign = Campaign {
            target: "-p hwsim-vendor-abi --test fuzz",
            test: "graphs_at_random_are_answered_with_codes",
            cases: 400,
        };
        let answers = Answers::new(&OF_GRAPHS);
        let (count, streams, word) = (count_kernel(), [stream(), stream()], word());
        let numbers = |rng: &mut Rng| (0..rng.usize(50..800)).map(|_| rng.u8(..)).collect();
        campaign.run(numbers, |numbers| {
            let mut handles = Handles::new(count, streams, word);
            let played = play_graphs(numbers, &mut handles, &answers);
            ok!(cuMemFree_v2(handles.memory));
            played
        });
        let [taken, refused] = answers.counts.get();
        assert!(taken > 1000 && refused > 1000, "{taken} taken, {refused} refused");
        assert!(load(word) > 100, "hardly a graph runs: {}", load(word));
        check_driver();
    });
}
