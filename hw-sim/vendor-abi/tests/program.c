/* A program by somebody else: it knows the driver API and nothing of virtual hardware. It prints
   the sum that a kernel computed. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

typedef int CUresult, CUdevice;
typedef unsigned long long CUdeviceptr;
typedef void *CUcontext, *CUmodule, *CUfunction, *CUstream;

static void *driver;

static void *symbol(const char *name) {
    void *address = dlsym(driver, name);
    if (!address) { fprintf(stderr, "no symbol %s\n", name); exit(2); }
    return address;
}

#define CALL(name, types, ...)                                                    \
    do {                                                                          \
        CUresult result = ((CUresult (*) types)symbol(#name))(__VA_ARGS__);       \
        if (result) { fprintf(stderr, #name ": %d\n", result); exit(1); }         \
    } while (0)

static const char *text =
    ".version 6.0\n.target sm_60\n.address_size 64\n"
    ".visible .entry scale(.param .u64 data, .param .u32 count, .param .f32 factor) {\n"
    "  .reg .pred %p; .reg .b32 %r<6>; .reg .f32 %f<4>; .reg .b64 %rd<4>;\n"
    "  ld.param.u64 %rd1, [data]; ld.param.u32 %r1, [count]; ld.param.f32 %f1, [factor];\n"
    "  mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;\n"
    "  mad.lo.u32 %r5, %r2, %r3, %r4; setp.ge.u32 %p, %r5, %r1; @%p ret;\n"
    "  mul.wide.u32 %rd2, %r5, 4; add.u64 %rd3, %rd1, %rd2;\n"
    "  ld.global.f32 %f2, [%rd3]; mul.rn.f32 %f3, %f2, %f1; st.global.f32 [%rd3], %f3;\n"
    "  ret;\n}\n";

int main(void) {
    enum { COUNT = 1000 };
    float host[COUNT], factor = 2.0f, sum = 0;
    unsigned count = COUNT;
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction scale;
    CUdeviceptr data;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) { fprintf(stderr, "%s\n", dlerror()); return 3; }
    for (int i = 0; i < COUNT; i++) host[i] = (float)i;
    CALL(cuInit, (unsigned), 0);
    CALL(cuDeviceGet, (CUdevice *, int), &device, 0);
    CALL(cuCtxCreate_v2, (CUcontext *, unsigned, CUdevice), &context, 0, device);
    CALL(cuModuleLoadData, (CUmodule *, const void *), &module, text);
    CALL(cuModuleGetFunction, (CUfunction *, CUmodule, const char *), &scale, module, "scale");
    CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t), &data, sizeof host);
    CALL(cuMemcpyHtoD_v2, (CUdeviceptr, const void *, size_t), data, host, sizeof host);
    void *parameters[] = {&data, &count, &factor};
    CALL(cuLaunchKernel,
         (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
          CUstream, void **, void **),
         scale, 8, 1, 1, 128, 1, 1, 0, NULL, parameters, NULL);
    CALL(cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t), host, data, sizeof host);
    for (int i = 0; i < COUNT; i++) sum += host[i];
    printf("sum %.1f\n", sum);
    CALL(cuMemFree_v2, (CUdeviceptr), data);
    CALL(cuCtxDestroy_v2, (CUcontext), context);
    return 0;
}
