/* What nvcc makes of a program with one kernel, `scale`, and three variables, by hand: a fat binary
   in the data, stubs that launch, registration before main. FATBIN is the file with the code. */
#include "runtime.h"
#include <pthread.h>
#include <string.h>

__asm__(".section .nv_fatbin, \"a\"\n.balign 8\nfatbin:\n.incbin \"" FATBIN "\"\n.previous\n");
extern const char fatbin[];
static const struct { int magic, version; const void *data; void *unused; } wrapper
    __attribute__((section(".nvFatBinSegment"))) = {0x466243b1, 1, fatbin, NULL};

static void **handle;
static float factor;          /* shadow of the constant */
static int architecture;      /* shadow of the variable */
static int *calls;            /* the managed variable's address */

static void scale(float *data, unsigned count) {
    void *arguments[] = {&data, &count};
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
    OK(__cudaPopCallConfiguration(&grid, &block, &shared, &stream));
    cudaLaunchKernel((void *)scale, grid, block, arguments, shared, stream);
}

/* A kernel that no fat binary has, and one that was not registered. */
static void absent(void) {}
static void unknown(void) {}

static void unregister(void) { __cudaUnregisterFatBinary(handle); }

__attribute__((constructor)) static void start(void) {
    handle = __cudaRegisterFatBinary(&wrapper);
    __cudaRegisterFunction(handle, (char *)scale, "scale", "scale", -1, 0, 0, 0, 0, 0);
    __cudaRegisterFunction(handle, (char *)absent, "absent", "absent", -1, 0, 0, 0, 0, 0);
    __cudaRegisterVar(handle, (char *)&factor, "factor", "factor", 0, 4, 1, 0);
    __cudaRegisterVar(handle, (char *)&architecture, "architecture", "architecture", 0, 4, 0, 0);
    __cudaRegisterManagedVar(handle, (void **)&calls, "calls", "calls", 0, 4, 0, 0);
    __cudaRegisterFatBinaryEnd(handle);
    atexit(unregister);
}

/* scale<<<blocks, threads, 0, stream>>>(data, count) */
static void launch(unsigned blocks, unsigned threads, cudaStream_t stream, float *data, unsigned n) {
    dim3 grid = {blocks, 1, 1}, block = {threads, 1, 1};
    if (!__cudaPushCallConfiguration(grid, block, 0, stream)) scale(data, n);
}

enum { COUNT = 1000, BYTES = 4 * COUNT };
static float host[COUNT];

static void check(float *device, float want) {
    OK(cudaMemcpy(host, device, BYTES, 2));
    for (int i = 0; i < COUNT; i++) CHECK(host[i] == want * i);
}

static float *filled(void) {
    float *device;
    OK(cudaMalloc((void **)&device, BYTES));
    for (int i = 0; i < COUNT; i++) host[i] = i;
    OK(cudaMemcpy(device, host, BYTES, 1));
    return device;
}

static void kernels_and_symbols(void) {
    float *device = filled(), three = 3;
    launch(8, 128, NULL, device, COUNT);
    OK(cudaGetLastError());
    check(device, 2);
    OK(cudaMemcpyToSymbol(&factor, &three, 4, 0, 1));
    launch(8, 128, NULL, device, COUNT);
    check(device, 6);
    int seen = 0;
    OK(cudaMemcpyFromSymbol(&seen, &architecture, 4, 0, 2));
    CHECK(seen == 70);
    CHECK(__cudaInitModule(handle) && *calls == 40 + 2 * COUNT);
    void *address;
    size_t bytes;
    OK(cudaGetSymbolAddress(&address, &factor));
    OK(cudaGetSymbolSize(&bytes, &factor));
    CHECK(address && bytes == 4);
    EXPECT(13, cudaGetSymbolAddress(&address, &handle));
    EXPECT(1, cudaMemcpyToSymbol(&factor, &three, 4, 1, 1));
    FuncAttributes attributes;
    OK(cudaFuncGetAttributes(&attributes, (void *)scale));
    CHECK(attributes.threads == 1024 && attributes.registers > 0);
    int blocks = 0;
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, (void *)scale, 128, 0));
    CHECK(blocks > 0);
    OK(cudaFree(device));
}

static void add_one(void *counter) { ++*(int *)counter; }

/* The nodes of one graph by hand: a fill, a copy in, the kernel, a copy out, a host function. */
static void graph_by_hand(void) {
    float *device, *back = calloc(1, BYTES);
    int called = 0;
    unsigned count = COUNT;
    cudaGraph_t graph, clone;
    cudaGraphNode_t fill, in, run, out, call, nodes[8];
    cudaGraphExec_t made;
    OK(cudaMalloc((void **)&device, BYTES));
    for (int i = 0; i < COUNT; i++) host[i] = i;
    OK(cudaGraphCreate(&graph, 0));
    cudaMemsetParams zero = {device, 0, 0, 4, COUNT, 1};
    OK(cudaGraphAddMemsetNode(&fill, graph, NULL, 0, &zero));
    cudaMemcpy3DParms copy = {0};
    copy.srcPtr = (cudaPitchedPtr){host, BYTES, COUNT, 1};
    copy.dstPtr = (cudaPitchedPtr){device, BYTES, COUNT, 1};
    copy.extent = (cudaExtent){BYTES, 1, 1};
    copy.kind = 1;
    OK(cudaGraphAddMemcpyNode(&in, graph, &fill, 1, &copy));
    void *arguments[] = {&device, &count};
    cudaKernelNodeParams kernel = {(void *)scale, {8, 1, 1}, {128, 1, 1}, 0, arguments, NULL}, read;
    OK(cudaGraphAddKernelNode(&run, graph, &in, 1, &kernel));
    count = 0; /* it was taken when the node was made */
    OK(cudaGraphKernelNodeGetParams(run, &read));
    CHECK(read.func == (void *)scale && read.grid.x == 8 && *(unsigned *)read.arguments[1] == COUNT);
    OK(cudaGraphAddMemcpyNode1D(&out, graph, &run, 1, back, device, BYTES, 2));
    cudaHostNodeParams host_call = {add_one, &called};
    OK(cudaGraphAddHostNode(&call, graph, &out, 1, &host_call));
    OK(cudaGraphMemcpyNodeGetParams(in, &copy));
    CHECK(copy.dstPtr.ptr == device && copy.extent.width == BYTES);
    size_t found = 8;
    OK(cudaGraphGetNodes(graph, nodes, &found));
    CHECK(found == 5 && nodes[2] == run);
    OK(cudaGraphClone(&clone, graph));
    OK(cudaGraphDestroy(graph));
    EXPECT(400, cudaGraphDestroy(graph));
    cudaGetLastError();
    OK(cudaGraphInstantiate(&made, clone, 0));
    for (int i = 0; i < 3; i++) OK(cudaGraphLaunch(made, NULL));
    OK(cudaDeviceSynchronize());
    for (int i = 0; i < COUNT; i++) CHECK(back[i] == back[1] * i);
    CHECK(called == 3 && back[1] > 1);
    OK(cudaGraphExecDestroy(made));
    OK(cudaGraphDestroy(clone));
    OK(cudaFree(device));
    free(back);
}

/* Memory that a graph allocates: filled, scaled by the kernel, copied out, and freed by it. */
static void graph_with_memory(void) {
    static float back[COUNT];
    float factor_now = 0;
    size_t used = 7;
    OK(cudaMemcpyFromSymbol(&factor_now, &factor, 4, 0, 2));
    cudaGraph_t graph;
    cudaGraphNode_t nodes[5];
    cudaGraphExec_t made;
    cudaGraphNodeParams alloc = {.type = 10}, any;
    float *source = filled();
    OK(cudaGraphCreate(&graph, 0));
    alloc.u.alloc.kind = alloc.u.alloc.location = 1;
    alloc.u.alloc.bytes = BYTES;
    OK(ADD_NODE(&nodes[0], graph, NULL, 0, &alloc));
    float *memory = alloc.u.alloc.address;
    CHECK(memory);
    any = (cudaGraphNodeParams){.type = 1};
    any.u.copy.copy = (cudaMemcpy3DParms){.srcPtr = {source, BYTES, BYTES, 1},
        .dstPtr = {memory, BYTES, BYTES, 1}, .extent = {BYTES, 1, 1}, .kind = 3};
    OK(ADD_NODE(&nodes[1], graph, &nodes[0], 1, &any));
    unsigned count = COUNT;
    void *arguments[] = {&memory, &count};
    any = (cudaGraphNodeParams){.type = 0};
    any.u.kernel = (cudaKernelNodeParams){(void *)scale, {8, 1, 1}, {128, 1, 1}, 0, arguments, NULL};
    OK(ADD_NODE(&nodes[2], graph, &nodes[1], 1, &any));
    OK(cudaGraphAddMemcpyNode1D(&nodes[3], graph, &nodes[2], 1, back, memory, BYTES, 2));
    any = (cudaGraphNodeParams){.type = 11};
    any.u.end.address = memory;
    OK(ADD_NODE(&nodes[4], graph, &nodes[3], 1, &any));
    OK(cudaGraphInstantiate(&made, graph, 0));
    for (int round = 0; round < 2; round++) {
        memset(back, 0, sizeof back);
        OK(cudaGraphLaunch(made, NULL));
        OK(cudaDeviceSynchronize());
        CHECK(back[999] == factor_now * 999);
    }
    OK(cudaDeviceGetGraphMemAttribute(0, 0, &used));
    CHECK(used == 0);
    OK(cudaGraphExecDestroy(made));
    OK(cudaGraphDestroy(graph));
    OK(cudaFree(source));
}

/* As nccl-tests -G and the samples capture: launches, a copy out to ordinary memory. */
static void graph_by_capture(void) {
    float *device = filled(), seen = 0;
    int status = 7, called = 0;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t made;
    OK(cudaStreamCreate(&stream));
    OK(cudaStreamBeginCapture(stream, 1));
    OK(cudaStreamIsCapturing(stream, &status));
    CHECK(status == 1);
    launch(8, 128, stream, device, COUNT);
    OK(cudaGetLastError());
    OK(cudaMemcpyAsync(&seen, device + 1, 4, 2, stream));
    OK(cudaLaunchHostFunc(stream, add_one, &called));
    EXPECT(900, cudaStreamSynchronize(NULL)); /* an unsafe call ends the capture */
    EXPECT(901, cudaStreamEndCapture(stream, &graph));
    cudaGetLastError();
    OK(cudaStreamBeginCapture(stream, 1));
    launch(8, 128, stream, device, COUNT);
    OK(cudaMemcpyAsync(&seen, device + 1, 4, 2, stream));
    OK(cudaLaunchHostFunc(stream, add_one, &called));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&made, graph, 0));
    OK(cudaGraphDestroy(graph));
    float factor_now = 0, want = 1;
    OK(cudaMemcpyFromSymbol(&factor_now, &factor, 4, 0, 2));
    for (int i = 0; i < 3; i++, want *= factor_now) OK(cudaGraphLaunch(made, stream));
    OK(cudaStreamSynchronize(stream));
    CHECK(seen == want && called == 3);
    OK(cudaGraphExecDestroy(made));
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(device));
}

static void streams_and_events(void) {
    float *device = filled(), *pinned, elapsed = -1;
    cudaStream_t one, two;
    cudaEvent_t before, after;
    int called = 0;
    OK(cudaMallocHost((void **)&pinned, BYTES));
    OK(cudaStreamCreate(&one));
    OK(cudaStreamCreate(&two));
    OK(cudaEventCreate(&before));
    OK(cudaEventCreate(&after));
    OK(cudaEventRecord(before, one));
    launch(8, 128, one, device, COUNT);
    OK(cudaLaunchHostFunc(one, add_one, &called));
    OK(cudaEventRecord(after, one));
    OK(cudaStreamWaitEvent(two, after, 0));
    OK(cudaMemcpyAsync(pinned, device, BYTES, 2, two));
    OK(cudaStreamSynchronize(two));
    for (int i = 0; i < COUNT; i++) CHECK(pinned[i] == 3.0f * i);
    CHECK(called == 1);
    OK(cudaEventSynchronize(after));
    OK(cudaEventElapsedTime(&elapsed, before, after));
    CHECK(elapsed >= 0);
    void *pool;
    OK(cudaMallocAsync(&pool, 4096, one));
    OK(cudaFreeAsync(pool, one));
    OK(cudaStreamDestroy(one));
    OK(cudaStreamDestroy(two));
    OK(cudaFreeHost(pinned));
    OK(cudaFree(device));
}

static void shaped_memory(void) {
    char flat[60], back[60], *rows;
    size_t pitch;
    for (int i = 0; i < 60; i++) flat[i] = i;
    OK(cudaMallocPitch((void **)&rows, &pitch, 10, 6));
    CHECK(pitch >= 10);
    OK(cudaMemcpy2D(rows, pitch, flat, 10, 10, 6, 1));
    OK(cudaMemcpy2D(back, 10, rows, pitch, 10, 6, 2));
    CHECK(!memcmp(flat, back, 60));
    EXPECT(12, cudaMemcpy2D(back, 9, rows, pitch, 10, 6, 2));
    cudaExtent extent = {10, 3, 2};
    cudaPitchedPtr cube;
    OK(cudaMalloc3D(&cube, extent));
    OK(cudaMemset3D(cube, 7, extent));
    cudaMemcpy3DParms copy = {.srcPtr = cube, .dstPtr = {back, 10, 10, 3}, .extent = extent, .kind = 2};
    OK(cudaMemcpy3D(&copy));
    for (int i = 0; i < 60; i++) CHECK(back[i] == 7);
    OK(cudaFree(cube.ptr));
    OK(cudaFree(rows));
    OK(cudaFree(NULL));
}

static void pointers(void) {
    void *device, *pinned;
    int *managed;
    Attributes is;
    OK(cudaMalloc(&device, 64));
    OK(cudaMallocHost(&pinned, 64));
    OK(cudaMallocManaged((void **)&managed, 64, 1));
    memset(&is, 0x55, sizeof is);
    OK(cudaPointerGetAttributes(&is, device));
    CHECK(is.type == 2 && is.device == 0 && is.devicePointer == device);
    CHECK(is.reserved[0] == 0x5555555555555555); /* the structure of version 12 ends before */
    OK(cudaPointerGetAttributes(&is, pinned));
    CHECK(is.type == 1 && is.hostPointer == pinned);
    OK(cudaPointerGetAttributes(&is, managed));
    CHECK(is.type == 3);
    OK(cudaPointerGetAttributes(&is, &is));
    CHECK(is.type == 0 && !is.devicePointer);
    OK(cudaMemset(managed, 1, 64));
    OK(cudaDeviceSynchronize());
    CHECK(managed[15] == 0x01010101);
    OK(cudaFree(managed));
    OK(cudaFreeHost(pinned));
    OK(cudaFree(device));
}

static void properties(void) {
    static union { char name[2048]; int words[512]; } is;
    memset(&is, 0x55, sizeof is);
#if VERSION == 12
    enum { MAJOR = 360, BYTES_ALL = 1032 };
    OK(cudaGetDeviceProperties_v2(&is, 0));
    CHECK(is.words[348 / 4] > 0);            /* clockRate */
    CHECK(is.words[388 / 4] == 80);          /* multiProcessorCount */
#else
    enum { MAJOR = 360, BYTES_ALL = 1008 };
    OK(cudaGetDeviceProperties(&is, 0));
    CHECK(is.words[384 / 4] == 80);          /* multiProcessorCount */
#endif
    CHECK(strstr(is.name, "V100"));
    CHECK(is.words[MAJOR / 4] == 7 && is.words[MAJOR / 4 + 1] == 0);
    CHECK(is.words[BYTES_ALL / 4 - 1] == 0 && is.words[BYTES_ALL / 4] == 0x55555555);
}

static void *other_thread(void *memory) {
    int device = -1;
    OK(cudaGetDevice(&device));
    CHECK(device == 0); /* not what the main thread has chosen */
    OK(cudaSetDevice(1));
    OK(cudaMemset(memory, 0, BYTES));
    EXPECT(21, cudaMemcpy(memory, host, 4, 17));
    CHECK(cudaPeekAtLastError() == 21);
    return NULL;
}

static void devices_and_errors(void) {
    int count = 0, device = -1;
    OK(cudaGetDeviceCount(&count));
    CHECK(count >= 2);
    EXPECT(101, cudaSetDevice(count));
    CHECK(cudaPeekAtLastError() == 101 && cudaGetLastError() == 101 && cudaGetLastError() == 0);
    CHECK(!strcmp(cudaGetErrorName(101), "cudaErrorInvalidDevice"));
    CHECK(!strcmp(cudaGetErrorString(101), "invalid device ordinal"));
    CHECK(!strcmp(cudaGetErrorString(12345), "unrecognized error code"));
    OK(cudaSetDevice(1));
    float *there = filled();
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, other_thread, there));
    CHECK(!pthread_join(thread, NULL));
    CHECK(cudaGetLastError() == 0); /* errors are the thread's own */
    OK(cudaGetDevice(&device));
    CHECK(device == 1);
    OK(cudaFree(there));
    there = filled();
    launch(8, 128, NULL, there, COUNT);  /* the same kernel on another device, with its own factor */
    check(there, 2);
    OK(cudaDeviceEnablePeerAccess(0, 0));
    EXPECT(704, cudaDeviceEnablePeerAccess(0, 0));
    OK(cudaSetDevice(0));
    float *here = filled();
    OK(cudaMemcpyPeer(here, 0, there, 1, BYTES));
    check(here, 2);
    launch(0, 128, NULL, here, COUNT);
    CHECK(cudaGetLastError() == 9);
    launch(1, 1025, NULL, here, COUNT);
    CHECK(cudaGetLastError() == 9);
    void *arguments[1];
    dim3 unit = {1, 1, 1};
    EXPECT(98, cudaLaunchKernel((void *)check, unit, unit, arguments, 0, NULL));
    void *much;
    EXPECT(2, cudaMalloc(&much, (size_t)1 << 50));
    cudaGetLastError();
}

static void unsupported_and_versions(void) {
    void *array;
    for (int i = 0; i < 3; i++) EXPECT(801, cudaMallocArray(&array, NULL, 8, 8, 0));
    CHECK(cudaGetLastError() == 801);
    int runtime = 0, driver = 0, status = -1;
    OK(cudaRuntimeGetVersion(&runtime));
    OK(cudaDriverGetVersion(&driver));
    CHECK(runtime / 1000 == VERSION && driver >= 12000);
    void *entry = NULL;
    OK(cudaGetDriverEntryPointByVersion("cuMemAlloc", &entry, 12040, 0, &status));
    CHECK(entry && status == 0);
    OK(cudaGetDriverEntryPointByVersion("cuNothing", &entry, 12040, 0, &status));
    CHECK(!entry && status == 1);
}

/* Stubs of nvcc 13 ask for the kernel once, and launch whatever they got. */
static void refused_kernels(void) {
    void *kernel = NULL, *arguments[1];
    dim3 unit = {1, 1, 1};
    OK(__cudaGetKernel(&kernel, (void *)scale));
    CHECK(kernel);
    kernel = NULL;
    EXPECT(98, __cudaGetKernel(&kernel, (void *)unknown));
    CHECK(!kernel);
    EXPECT(500, __cudaGetKernel(&kernel, (void *)absent));
    CHECK(cudaGetLastError() == 500);
    for (int i = 0; i < 2; i++) EXPECT(500, __cudaLaunchKernel(NULL, unit, unit, arguments, 0, NULL));
}

static void reset(void) {
    OK(cudaDeviceReset());
    float *device = filled();
    launch(8, 128, NULL, device, COUNT); /* the constant is 2 again */
    check(device, 2);
    dim3 grid = {8, 1, 1}, block = {128, 1, 1};
    unsigned count = COUNT;
    void *arguments[] = {&device, &count};
    OK(cudaLaunchKernel_ptsz((void *)scale, grid, block, arguments, 0, NULL));
    OK(cudaMemcpy_ptds(host, device, BYTES, 2)); /* in order behind it, on the thread's stream */
    CHECK(host[999] == 4 * 999);
}

int main(void) {
    kernels_and_symbols();
    graph_by_hand();
    graph_with_memory();
    graph_by_capture();
    streams_and_events();
    shaped_memory();
    pointers();
    properties();
    devices_and_errors();
    unsupported_and_versions();
    refused_kernels();
    reset();
    puts("all right");
    return 0;
}
