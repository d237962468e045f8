/* A program by somebody else, one process of several: it knows the driver API, NVML and the
   launcher's variables, and nothing of virtual hardware. The first argument says what to do, the
   second names a folder with the fifos `there` and `back` for what the processes tell each other. */
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int CUresult, CUdevice;
typedef unsigned long long CUdeviceptr;
typedef void *CUcontext, *CUmodule, *CUfunction, *CUstream, *CUevent;
typedef struct { char reserved[64]; } Handle;

static void *driver;
static const char *folder;
static int rank;

static void *symbol(void *library, const char *name) {
    void *address = dlsym(library, name);
    if (!address) { fprintf(stderr, "no symbol %s\n", name); exit(2); }
    return address;
}

#define RESULT(name, types, ...) (((CUresult (*) types)symbol(driver, #name))(__VA_ARGS__))
#define CALL(name, types, ...)                                                    \
    do {                                                                          \
        CUresult result = RESULT(name, types, __VA_ARGS__);                       \
        if (result) { fprintf(stderr, #name ": %d\n", result); exit(1); }         \
    } while (0)
#define CHECK(condition)                                                          \
    do {                                                                          \
        if (!(condition)) { fprintf(stderr, "not so: %s\n", #condition); exit(1); } \
    } while (0)

/* Rank 0 stores a number, then adds one to its word; rank 1 waits for that, expects the number,
   and adds one to its own word, for which rank 0 waits. */
static const char *text =
    ".version 6.4\n.target sm_70\n.address_size 64\n"
    ".visible .entry exchange(.param .u64 words, .param .u32 rank, .param .u32 rounds) {\n"
    "  .reg .pred %second, %p; .reg .b32 %r<8>; .reg .b64 %rd<8>;\n"
    "  ld.param.u64 %rd1, [words]; ld.param.u32 %r1, [rank]; ld.param.u32 %r2, [rounds];\n"
    "  mov.u32 %r3, 0; setp.eq.u32 %second, %r1, 1;\n"
    "  mul.wide.u32 %rd2, %r1, 4; add.u64 %rd2, %rd1, %rd2;\n"
    "  xor.b32 %r4, %r1, 1; mul.wide.u32 %rd3, %r4, 4; add.u64 %rd3, %rd1, %rd3;\n"
    "NEXT: add.u32 %r3, %r3, 1;\n"
    "  @%second bra WAIT;\n"
    "  st.global.u32 [%rd1+64], %r3;\n"
    "  atom.release.sys.global.add.u32 %r5, [%rd2], 1;\n"
    "WAIT: ld.acquire.sys.global.u32 %r6, [%rd3]; setp.lt.u32 %p, %r6, %r3; @%p bra WAIT;\n"
    "  @!%second bra DONE;\n"
    "  ld.global.u32 %r7, [%rd1+64]; setp.eq.u32 %p, %r7, %r3; @%p bra RIGHT; trap;\n"
    "RIGHT: atom.release.sys.global.add.u32 %r5, [%rd2], 1;\n"
    "DONE: setp.lt.u32 %p, %r3, %r2; @%p bra NEXT;\n"
    "  ret;\n}\n";

/* Opens a fifo: blocks until the other side does so, too. */
static int fifo(const char *name, int flags) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int descriptor = open(path, flags);
    CHECK(descriptor >= 0);
    return descriptor;
}

static void tell(const char *name, const void *bytes, size_t size) {
    int descriptor = fifo(name, O_WRONLY);
    CHECK(write(descriptor, bytes, size) == (ssize_t)size);
    close(descriptor);
}

static void hear(const char *name, void *bytes, size_t size) {
    int descriptor = fifo(name, O_RDONLY);
    CHECK(read(descriptor, bytes, size) == (ssize_t)size);
    close(descriptor);
}

static void use_gpu(int ordinal) {
    CUdevice device;
    CUcontext context;
    CALL(cuDeviceGet, (CUdevice *, int), &device, ordinal);
    CALL(cuCtxCreate_v2, (CUcontext *, unsigned, CUdevice), &context, 0, device);
}

static CUdeviceptr allocate(size_t bytes) {
    CUdeviceptr memory;
    CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t), &memory, bytes);
    return memory;
}

static void launch_exchange(CUdeviceptr words, unsigned rounds) {
    CUmodule module;
    CUfunction exchange;
    unsigned own = (unsigned)rank;
    void *parameters[] = {&words, &own, &rounds};
    CALL(cuModuleLoadData, (CUmodule *, const void *), &module, text);
    CALL(cuModuleGetFunction, (CUfunction *, CUmodule, const char *), &exchange, module,
         "exchange");
    CALL(cuLaunchKernel,
         (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
          CUstream, void **, void **),
         exchange, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
}

/* Kernels of two processes, each on a GPU of its own, signal to and fro through the memory of one. */
static void exchange(void) {
    enum { BYTES = 3 << 20, ROUNDS = 300 };
    Handle handle;
    char done;
    use_gpu(rank);
    if (rank == 0) {
        CUdeviceptr memory = allocate(BYTES);
        CALL(cuMemsetD8_v2, (CUdeviceptr, unsigned char, size_t), memory, 0x5a, BYTES);
        CALL(cuMemsetD8_v2, (CUdeviceptr, unsigned char, size_t), memory, 0, 4096);
        CALL(cuIpcGetMemHandle, (Handle *, CUdeviceptr), &handle, memory);
        /* The other process must not see the memory before it is set. */
        CALL(cuCtxSynchronize, (void));
        tell("there", &handle, sizeof handle);
        launch_exchange(memory, ROUNDS);
        CALL(cuCtxSynchronize, (void));
        hear("back", &done, 1);
        CALL(cuMemFree_v2, (CUdeviceptr), memory);
        /* Freed: the handle must not lead anywhere now. */
        tell("there", &handle, sizeof handle);
        hear("back", &done, 1);
    } else {
        CUdeviceptr memory;
        unsigned char last = 0;
        hear("there", &handle, sizeof handle);
        CALL(cuIpcOpenMemHandle_v2, (CUdeviceptr *, Handle, unsigned), &memory, handle, 1);
        CALL(cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t), &last, memory + BYTES - 1, 1);
        CHECK(last == 0x5a);
        launch_exchange(memory, ROUNDS);
        CALL(cuCtxSynchronize, (void));
        CALL(cuIpcCloseMemHandle, (CUdeviceptr), memory);
        tell("back", "d", 1);
        hear("there", &handle, sizeof handle);
        CHECK(RESULT(cuIpcOpenMemHandle_v2, (CUdeviceptr *, Handle, unsigned), &memory, handle, 1)
              == 1);
        tell("back", "d", 1);
    }
    printf("%d rounds\n", ROUNDS);
}

/* The handle comes from a process that another node, or another machine, holds. */
static void elsewhere(void) {
    Handle handle;
    char done;
    use_gpu(0);
    if (rank == 0) {
        CALL(cuIpcGetMemHandle, (Handle *, CUdeviceptr), &handle, allocate(4096));
        tell("there", &handle, sizeof handle);
        hear("back", &done, 1);
    } else {
        CUdeviceptr memory;
        hear("there", &handle, sizeof handle);
        printf("code %d\n",
               RESULT(cuIpcOpenMemHandle_v2, (CUdeviceptr *, Handle, unsigned), &memory, handle, 1));
        tell("back", "d", 1);
    }
}

/* A stream of rank 1 waits for an event that rank 0 recorded behind a kernel; the kernel itself
   waits for rank 1. */
static void event(void) {
    enum { DISABLE_TIMING = 2, INTERPROCESS = 4 };
    Handle handles[2];
    CUdeviceptr words;
    CUevent recorded;
    char done;
    use_gpu(rank);
    if (rank == 0) {
        words = allocate(4096);
        CALL(cuMemsetD8_v2, (CUdeviceptr, unsigned char, size_t), words, 0, 4096);
        CALL(cuCtxSynchronize, (void));
        CALL(cuEventCreate, (CUevent *, unsigned), &recorded, DISABLE_TIMING | INTERPROCESS);
        CALL(cuIpcGetMemHandle, (Handle *, CUdeviceptr), &handles[0], words);
        CALL(cuIpcGetEventHandle, (Handle *, CUevent), &handles[1], recorded);
        launch_exchange(words, 1);
        CALL(cuEventRecord, (CUevent, CUstream), recorded, NULL);
        tell("there", handles, sizeof handles);
        CALL(cuEventSynchronize, (CUevent), recorded);
        hear("back", &done, 1);
    } else {
        unsigned one = 1, seen = 0;
        CUstream stream;
        hear("there", handles, sizeof handles);
        CALL(cuIpcOpenMemHandle_v2, (CUdeviceptr *, Handle, unsigned), &words, handles[0], 1);
        CALL(cuIpcOpenEventHandle, (CUevent *, Handle), &recorded, handles[1]);
        CHECK(RESULT(cuIpcOpenEventHandle, (CUevent *, Handle), &recorded, handles[0]) == 1);
        CHECK(RESULT(cuIpcOpenMemHandle_v2, (CUdeviceptr *, Handle, unsigned), &words, handles[1],
                     1) == 1);
        CALL(cuStreamCreate, (CUstream *, unsigned), &stream, 1);
        CHECK(RESULT(cuEventQuery, (CUevent), recorded) == 600);
        CALL(cuStreamWaitEvent, (CUstream, CUevent, unsigned), stream, recorded, 0);
        /* Behind the wait: a mark that must not appear before the kernel is let go. */
        CALL(cuMemsetD32Async, (CUdeviceptr, unsigned, size_t, CUstream), words + 128, 7, 1,
             stream);
        CHECK(RESULT(cuStreamQuery, (CUstream), stream) == 600);
        CALL(cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t), &seen, words + 128, 4);
        CHECK(seen == 0);
        CALL(cuMemcpyHtoD_v2, (CUdeviceptr, const void *, size_t), words + 4, &one, 4);
        CALL(cuStreamSynchronize, (CUstream), stream);
        CALL(cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t), &seen, words + 128, 4);
        CHECK(seen == 7);
        CALL(cuEventSynchronize, (CUevent), recorded);
        CHECK(RESULT(cuEventQuery, (CUevent), recorded) == 0);
        CALL(cuEventDestroy_v2, (CUevent), recorded);
        tell("back", "d", 1);
        printf("in order\n");
    }
}

/* One GPU's memory, of which two processes want more than half. */
static void memory(void) {
    const size_t most = (size_t)10 << 30;
    size_t left, total;
    CUdeviceptr taken;
    char done;
    use_gpu(0);
    if (rank == 0) {
        taken = allocate(most);
        tell("there", "t", 1);
        hear("back", &done, 1);
        CALL(cuMemFree_v2, (CUdeviceptr), taken);
        tell("there", "t", 1);
        hear("back", &done, 1);
        taken = allocate(1 << 30);
        tell("there", "t", 1);
        /* Ends without a word. */
        kill(getpid(), SIGKILL);
    }
    /* The launcher sends it when the other one is killed. */
    signal(SIGTERM, SIG_IGN);
    hear("there", &done, 1);
    CALL(cuMemGetInfo_v2, (size_t *, size_t *), &left, &total);
    CHECK(left == total - most);
    CHECK(RESULT(cuMemAlloc_v2, (CUdeviceptr *, size_t), &taken, most) == 2);
    tell("back", "d", 1);
    hear("there", &done, 1);
    taken = allocate(most);
    CALL(cuMemGetInfo_v2, (size_t *, size_t *), &left, &total);
    CHECK(left == total - most);
    CALL(cuMemFree_v2, (CUdeviceptr), taken);
    tell("back", "d", 1);
    hear("there", &done, 1);
    /* The system takes a killed process down in its own time. */
    for (left = 0; left != total; sched_yield())
        CALL(cuMemGetInfo_v2, (size_t *, size_t *), &left, &total);
    printf("all free\n");
}

/* Each GPU's identity, as the driver and as NVML give it. */
static void identities(void) {
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    int count = 0;
    CHECK(nvml && ((int (*)(void))symbol(nvml, "nvmlInit_v2"))() == 0);
    CALL(cuDeviceGetCount, (int *), &count);
    for (int ordinal = 0; ordinal < count; ordinal++) {
        unsigned char uuid[16];
        char words[96], bus_id[32];
        void *device;
        CALL(cuDeviceGetUuid, (unsigned char *, CUdevice), uuid, ordinal);
        CALL(cuDeviceGetPCIBusId, (char *, int, CUdevice), bus_id, sizeof bus_id, ordinal);
        CHECK(((int (*)(unsigned, void **))symbol(nvml, "nvmlDeviceGetHandleByIndex_v2"))(
                  (unsigned)ordinal, &device) == 0);
        CHECK(((int (*)(void *, char *, unsigned))symbol(nvml, "nvmlDeviceGetUUID"))(
                  device, words, sizeof words) == 0);
        for (int byte = 0; byte < 16; byte++) printf("%02x", uuid[byte]);
        printf(" %s %s\n", words, bus_id);
    }
}

int main(int count, char **arguments) {
    CHECK(count == 3);
    const char *job = arguments[1], *number = getenv("RANK");
    folder = arguments[2];
    rank = number ? atoi(number) : 0;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) { fprintf(stderr, "%s\n", dlerror()); return 3; }
    CALL(cuInit, (unsigned), 0);
    if (!strcmp(job, "exchange")) exchange();
    else if (!strcmp(job, "elsewhere")) elsewhere();
    else if (!strcmp(job, "event")) event();
    else if (!strcmp(job, "memory")) memory();
    else if (!strcmp(job, "identities")) identities();
    else CHECK(!"a job that is known");
    return 0;
}
