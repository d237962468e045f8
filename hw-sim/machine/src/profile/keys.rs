//! The keys of a driver profile, in words: what each does, who saw it, and what we inferred.

/// A key, for people.
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// The values that it takes.
    pub values: &'static str,
    /// Its effect.
    pub behaviour: &'static str,
    /// Where that was read.
    pub source: &'static str,
    /// What of it nobody has written down, and we have chosen.
    pub inference: &'static str,
}

/// All keys.
pub const KEYS: &[Key] = &[
    Key {
        name: "context-lock",
        values: "`on`, `off`",
        behaviour: "Every call that uses a context takes the context's lock. Module load, the \
                    first use of a kernel that is loaded lazily, allocation and freeing of device \
                    and pinned memory, registration, stream creation, peer enabling and IPC open \
                    drain the context while they hold it; those that change mappings drain all \
                    contexts that peer access joins, and hold all their locks. A module load holds \
                    the locks of all contexts of the process. Kernels are loaded lazily unless \
                    `CUDA_MODULE_LOADING=EAGER`",
        source: "torchcomms 2334, mscclpp 394, nccl 48, nccl 744, yaksa 228; CUDA programming \
                 guide, Lazy Loading; an H100 with driver 580.159, which stops copies in all \
                 contexts during module loads, and does not wait in allocation, registration and \
                 stream creation",
        inference: "that the locks of joined contexts are held, not only their work waited for; \
                    that a function is loaded by its first launch too, unless `cuFuncLoad` was \
                    called",
    },
    Key {
        name: "connections",
        values: "`unlimited`, 1 to 32",
        behaviour: "The streams of a context, of whatever priority, share so many in-order \
                    hardware queues. A stream takes one, a free one if there is one, when work \
                    comes to it, and keeps it until that has ended. A command leaves its queue \
                    when it starts. One that waits, for the command before it in its stream or \
                    because it is a wait, stops its queue. `CUDA_DEVICE_MAX_CONNECTIONS` is read \
                    where the key is a number",
        source: "CUDA programming guide, environment variables; mscclpp 285; an H100 with driver \
                 580.159",
        inference: "which queue a stream takes where none is free: one that the fewest have; that \
                    waits for events and words stop a queue as other commands do; that a graph is \
                    one command",
    },
    Key {
        name: "launch-queue",
        values: "`unlimited`, a number",
        behaviour: "So many commands of a context may be pending. The call that finds the queue \
                    full blocks, with the context's lock held",
        source: "mscclpp 516, oneflow 890; an H100 with driver 580.159, where records of events \
                 and host functions do not count",
        inference: "that copies and memory operations count like launches",
    },
    Key {
        name: "capture",
        values: "`on`, `off`",
        behaviour: "Streams can be captured, in global, thread-local and relaxed mode. A call that \
                    the mode forbids, from any thread where it is global, fails with \
                    `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED` and invalidates the capture. With \
                    `off`, `cuStreamBeginCapture` is refused",
        source: "CUDA driver API, stream management; pytorch 104555, mscclpp 557",
        inference: "the list of calls that count as unsafe, beyond allocation, freeing, module \
                    load, synchronisation and queries",
    },
    Key {
        name: "resident-blocks",
        values: "`on`, `off`",
        behaviour: "Blocks become resident in the order in which their kernels came: a kernel \
                    whose blocks do not all fit keeps those behind it waiting. That blocks need \
                    room (threads, shared memory, registers, blocks of a multiprocessor) holds \
                    with `off`, too",
        source: "CUDA programming guide, compute capabilities; Amert et al., RTSS 2017",
        inference: "registers of a thread: PTX has virtual ones, counted up to 64",
    },
    Key {
        name: "time-slicing",
        values: "`off`, µs",
        behaviour: "Kernels of different processes on one GPU never run together: processes take \
                    turns of this length. A process with `CUDA_MPS_PIPE_DIRECTORY` in its \
                    environment counts as one of MPS, and is not sliced",
        source: "nccl 231; NVIDIA MPS guide",
        inference: "the length of a slice",
    },
    Key {
        name: "local-copies",
        values: "`engines`, `kernels`",
        behaviour: "Copies within one GPU's memory run on its multiprocessors: they wait for room \
                    as a block of 512 threads does",
        source: "nccl 2177",
        inference: "the block's size",
    },
    Key {
        name: "memops",
        values: "`all`, `own-fail`, `own-drop`, `none`",
        behaviour: "Stream memory operations: on every address; on host memory and the stream's \
                    own GPU, where a write elsewhere is refused or lost; none, and the device \
                    attributes say so",
        source: "nccl 2052; CUDA driver API, `CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS`",
        inference: "whether such a write fails or is lost; that waits still reach everywhere",
    },
    Key {
        name: "pools",
        values: "`peer`, `own`",
        behaviour: "With `own`, kernels of another GPU, and copies on its streams or from its \
                    current context, reach memory of a pool only where `cuMemPoolSetAccess` says \
                    so, whatever peer access is enabled; calls that name both contexts \
                    (`cuMemcpyPeer`) copy all the same. Such memory has no IPC handle",
        source: "CUDA programming guide, stream-ordered allocator; llama.cpp 3930, 4620; PyTorch, \
                 `CUDACachingAllocator.cpp`, `memcpyAsync`; CUDA.jl 3112; cuda.core 1.0.1, \
                 `test_memory_peer_access.py` (the error code)",
        inference: "that rights given later may be lost (driver 590) is not played",
    },
    Key {
        name: "lazy-dma",
        values: "`off`, µs",
        behaviour: "A host-to-device copy from pageable memory of at most 64 KiB returns when its \
                    bytes are taken; they land so much later, which only streams notice that do \
                    not wait for the copy's",
        source: "CUDA driver API, API synchronization behaviour",
        inference: "how late",
    },
    Key {
        name: "iomemory",
        values: "`any`, `root`, `refused`",
        behaviour: "Registration of I/O memory fails with `CUDA_ERROR_NOT_PERMITTED` for all \
                    users but root, or for all",
        source: "open-gpu-kernel-modules, discussion 1053",
        inference: "the error code",
    },
    Key {
        name: "broken-peer",
        values: "`none`, `all`, pairs such as `0-1+2-3`",
        behaviour: "Peer access is granted, and what kernels, copies and memory operations write \
                    to the other GPU's memory is lost",
        source: "nccl 199 (PCI access control, IOMMU)",
        inference: "that reads work",
    },
    Key {
        name: "no-peer",
        values: "`on`, `off`",
        behaviour: "No GPU can be given access to another's memory",
        source: "machines with PCI access control; CUDA driver API, `cuDeviceCanAccessPeer`",
        inference: "nothing",
    },
    Key {
        name: "ipc",
        values: "`on`, `off`",
        behaviour: "With `off`, no memory can be opened in another process: `cuIpcGetMemHandle` \
                    and `cuIpcOpenMemHandle` fail with `CUDA_ERROR_NOT_SUPPORTED`",
        source: "CUDA programming guide, interprocess communication (not on every platform)",
        inference: "the error code; containers with namespaces of their own show others",
    },
    Key {
        name: "dma-buf",
        values: "`on`, `off`",
        behaviour: "With `off`, no memory can be exported as a dma-buf, and the device attribute \
                    says so, whatever the GPU's model",
        source: "CUDA driver API, `CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED`",
        inference: "nothing",
    },
    Key {
        name: "memory-pools",
        values: "`on`, `off`",
        behaviour: "With `off`, there are no memory pools: stream-ordered allocation and calls \
                    that give a pool fail with `CUDA_ERROR_NOT_SUPPORTED`, and the device \
                    attribute says so",
        source: "CUDA driver API, `CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED`",
        inference: "the error code",
    },
    Key {
        name: "virtual-memory",
        values: "`on`, `off`",
        behaviour: "With `off`, there is no virtual memory management: `cuMemCreate`, `cuMemMap` \
                    and their like fail with `CUDA_ERROR_NOT_SUPPORTED`, and the device \
                    attributes say so",
        source: "CUDA driver API, \
                 `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`",
        inference: "the error code",
    },
    Key {
        name: "jit-delay",
        values: "`off`, ms",
        behaviour: "The first load of a PTX text in a process takes so much longer",
        source: "CUDA programming guide, just-in-time compilation",
        inference: "how long: a real compiler takes longer for longer texts",
    },
    Key {
        name: "place-out-of-order",
        values: "`on`, `relaxed`, `off`",
        behaviour: "RDMA writes of one queue pair land out of order, within a message and across \
                    those that are under way together; with `relaxed` those alone whose memory was \
                    registered with `IBV_ACCESS_RELAXED_ORDERING`. Completions, immediates, sends \
                    and atomics keep their promise: what came before them has landed. \
                    `ibv_query_qp_data_in_order` says no, but with `relaxed`",
        source: "DeepEP 40, torchcomms 3881, mscclpp 753; `ibv_query_qp_data_in_order(3)`",
        inference: "pieces of 64 bytes or more",
    },
    Key {
        name: "adapter-words",
        values: "`whole`, `halves`",
        behaviour: "Aligned 8 bytes of an RDMA write become visible in one piece, or 4 by 4. A \
                    write of 8 bytes alone stays whole",
        source: "PCI Express leaves open in what pieces a write becomes visible",
        inference: "halves: adapters are likely to write 8 bytes and more at once",
    },
];
