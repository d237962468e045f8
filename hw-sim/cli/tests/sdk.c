/* A program by somebody else, built as for CUDA: it includes cuda.h and links with -lcuda. It adds
   two vectors with a kernel whose PTX stands in it, and looks at the driver from several sides. */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if CUDA_VERSION < 12000
#error "cuda.h does not say which CUDA it is"
#endif

enum { COUNT = 1 << 16, BLOCK = 256 };

static void check(CUresult result, const char *call, int line) {
    const char *name = "?", *text = "?";
    if (result == CUDA_SUCCESS) return;
    cuGetErrorName(result, &name);
    cuGetErrorString(result, &text);
    fprintf(stderr, "line %d: %s: %s (%s)\n", line, call, name, text);
    exit(1);
}
#define CHECK(call) check(call, #call, __LINE__)

static const char *ptx =
    ".version 6.0\n.target sm_60\n.address_size 64\n"
    ".visible .entry add(.param .u64 a, .param .u64 b, .param .u64 sum, .param .u32 count) {\n"
    "  .reg .pred %p; .reg .b32 %r<6>; .reg .f32 %f<4>; .reg .b64 %rd<8>;\n"
    "  ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u64 %rd3, [sum];\n"
    "  ld.param.u32 %r1, [count];\n"
    "  mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;\n"
    "  mad.lo.u32 %r5, %r2, %r3, %r4; setp.ge.u32 %p, %r5, %r1; @%p ret;\n"
    "  mul.wide.u32 %rd4, %r5, 4;\n"
    "  add.u64 %rd5, %rd1, %rd4; add.u64 %rd6, %rd2, %rd4; add.u64 %rd7, %rd3, %rd4;\n"
    "  ld.global.f32 %f1, [%rd5]; ld.global.f32 %f2, [%rd6];\n"
    "  add.rn.f32 %f3, %f1, %f2; st.global.f32 [%rd7], %f3;\n"
    "  ret;\n}\n";

/* Structures cross the boundary as well as numbers: a pitched copy, and an extensible launch. */
static void look_around(CUdevice device, CUfunction add, CUstream stream, CUdeviceptr numbers) {
    char name[100];
    int major, blocks;
    size_t bytes, pitch;
    CUuuid uuid;
    CUdeviceptr base, square;
    float back[4] = {0};
    CUDA_MEMCPY2D copy;
    CHECK(cuDeviceGetName(name, sizeof name, device));
    CHECK(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device));
    CHECK(cuDeviceTotalMem(&bytes, device));
    CHECK(cuDeviceGetUuid(&uuid, device));
    CHECK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, BLOCK, 0));
    CHECK(cuMemGetAddressRange(&base, &bytes, numbers + 4));
    if (base != numbers || bytes != COUNT * sizeof(float) || major < 6 || blocks < 1) exit(2);
    CHECK(cuMemAllocPitch(&square, &pitch, 2 * sizeof(float), 2, 4));
    memset(&copy, 0, sizeof copy);
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = numbers + sizeof(float);
    copy.srcPitch = 2 * sizeof(float);
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstDevice = square;
    copy.dstPitch = pitch;
    copy.WidthInBytes = 2 * sizeof(float);
    copy.Height = 2;
    CHECK(cuMemcpy2DAsync(&copy, stream));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuMemcpyDtoH(back, square, 2 * sizeof(float)));
    CHECK(cuMemcpyDtoH(back + 2, square + pitch, 2 * sizeof(float)));
    for (int i = 0; i < 4; i++) if (back[i] != (float)(i + 1)) exit(3);
    CHECK(cuMemFree(square));
    printf("%s\n", name);
}

int main(void) {
    float *host, *sum;
    unsigned count = COUNT, wrong = 0;
    int devices;
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction add;
    CUstream stream;
    CUevent done;
    CUdeviceptr a, b, c;
    CHECK(cuInit(0));
    CHECK(cuDeviceGetCount(&devices));
    CHECK(cuDeviceGet(&device, devices - 1));
    CHECK(cuCtxCreate(&context, CU_CTX_SCHED_AUTO, device));
    CHECK(cuModuleLoadData(&module, ptx));
    CHECK(cuModuleGetFunction(&add, module, "add"));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));
    CHECK(cuMemAllocHost((void **)&host, COUNT * sizeof(float)));
    CHECK(cuMemHostAlloc((void **)&sum, COUNT * sizeof(float), CU_MEMHOSTALLOC_PORTABLE));
    CHECK(cuMemAlloc(&a, COUNT * sizeof(float)));
    CHECK(cuMemAlloc(&b, COUNT * sizeof(float)));
    CHECK(cuMemAlloc(&c, COUNT * sizeof(float)));
    for (int i = 0; i < COUNT; i++) host[i] = (float)i;
    CHECK(cuMemcpyHtoDAsync(a, host, COUNT * sizeof(float), stream));
    CHECK(cuMemsetD32Async(b, 0x3f000000 /* 0.5 */, COUNT, stream));
    void *parameters[] = {&a, &b, &c, &count};
    CUlaunchConfig config;
    memset(&config, 0, sizeof config);
    config.gridDimX = (COUNT + BLOCK - 1) / BLOCK;
    config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = BLOCK;
    config.blockDimY = config.blockDimZ = 1;
    config.hStream = stream;
    CHECK(cuLaunchKernelEx(&config, add, parameters, NULL));
    CHECK(cuMemcpyDtoHAsync(sum, c, COUNT * sizeof(float), stream));
    CHECK(cuEventRecord(done, stream));
    CHECK(cuEventSynchronize(done));
    for (int i = 0; i < COUNT; i++) wrong += sum[i] != (float)i + 0.5f;
    look_around(device, add, stream, a);
    /* What virtual hardware lacks is refused, not missing. */
    printf("%u wrong of %d; arrays: %d\n", wrong, COUNT, cuArrayDestroy(NULL));
    CHECK(cuMemFree(a));
    CHECK(cuMemFree(b));
    CHECK(cuMemFree(c));
    CHECK(cuMemFreeHost(host));
    CHECK(cuMemFreeHost(sum));
    CHECK(cuEventDestroy(done));
    CHECK(cuStreamDestroy(stream));
    CHECK(cuModuleUnload(module));
    CHECK(cuCtxDestroy(context));
    return wrong != 0;
}
