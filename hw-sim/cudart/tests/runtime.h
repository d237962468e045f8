/* The part of the CUDA runtime's interface that the test programs use, written from its public
   documentation. VERSION is 12 or 13. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

typedef int cudaError_t;
typedef struct { unsigned x, y, z; } dim3;
typedef void *cudaStream_t, *cudaEvent_t;
typedef struct { int type, device; void *devicePointer, *hostPointer; long reserved[8]; } Attributes;
typedef struct { size_t shared, constant, local; int threads, registers, rest[24]; } FuncAttributes;
typedef struct { void *ptr; size_t pitch, xsize, ysize; } cudaPitchedPtr;
typedef struct { size_t width, height, depth; } cudaExtent;
typedef struct { size_t x, y, z; } cudaPos;
typedef struct {
    void *srcArray; cudaPos srcPos; cudaPitchedPtr srcPtr;
    void *dstArray; cudaPos dstPos; cudaPitchedPtr dstPtr;
    cudaExtent extent; int kind;
} cudaMemcpy3DParms;

typedef void *cudaGraph_t, *cudaGraphNode_t, *cudaGraphExec_t;
typedef struct {
    void *func; dim3 grid, block; unsigned shared; void **arguments, **extra;
} cudaKernelNodeParams;
typedef struct { void *dst; size_t pitch; unsigned value, element; size_t width, height; } cudaMemsetParams;
typedef struct { void (*fn)(void *); void *data; } cudaHostNodeParams;

/* The parameters of any node: the kind, and from byte 16 on what goes with it. */
typedef struct { int type, reserved[3]; union {
    cudaKernelNodeParams kernel; cudaMemsetParams fill; cudaHostNodeParams host;
    struct { int flags, reserved[3]; cudaMemcpy3DParms copy; } copy;
    struct { int kind, handles, location, device; long rest[9]; void *accesses; size_t count, bytes;
             void *address; } alloc;
    struct { void *address; } end;
    long all[29];
} u; long last; } cudaGraphNodeParams;
#if VERSION == 12
cudaError_t cudaGraphAddNode(cudaGraphNode_t *, cudaGraph_t, const cudaGraphNode_t *, size_t,
                             cudaGraphNodeParams *);
#define ADD_NODE(node, graph, before, count, params)                                               \
    cudaGraphAddNode(node, graph, before, count, params)
#else
cudaError_t cudaGraphAddNode(cudaGraphNode_t *, cudaGraph_t, const cudaGraphNode_t *, const void *,
                             size_t, cudaGraphNodeParams *);
#define ADD_NODE(node, graph, before, count, params)                                               \
    cudaGraphAddNode(node, graph, before, NULL, count, params)
#endif
cudaError_t cudaDeviceGetGraphMemAttribute(int, int, void *);

cudaError_t cudaGraphCreate(cudaGraph_t *, unsigned), cudaGraphDestroy(cudaGraph_t);
cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t *, cudaGraph_t, const cudaGraphNode_t *, size_t,
                                   const cudaKernelNodeParams *);
cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t, cudaKernelNodeParams *);
cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t *, cudaGraph_t, const cudaGraphNode_t *, size_t,
                                   const cudaMemcpy3DParms *);
cudaError_t cudaGraphMemcpyNodeGetParams(cudaGraphNode_t, cudaMemcpy3DParms *);
cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t *, cudaGraph_t, const cudaGraphNode_t *, size_t,
                                     void *, const void *, size_t, int);
cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t *, cudaGraph_t, const cudaGraphNode_t *, size_t,
                                   const cudaMemsetParams *);
cudaError_t cudaGraphAddHostNode(cudaGraphNode_t *, cudaGraph_t, const cudaGraphNode_t *, size_t,
                                 const cudaHostNodeParams *);
cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t *, size_t *);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *, cudaGraph_t, unsigned long long);
cudaError_t cudaGraphClone(cudaGraph_t *, cudaGraph_t);
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t), cudaGraphExecDestroy(cudaGraphExec_t);
cudaError_t cudaStreamBeginCapture(cudaStream_t, int), cudaStreamEndCapture(cudaStream_t, cudaGraph_t *);
cudaError_t cudaStreamIsCapturing(cudaStream_t, int *);

void **__cudaRegisterFatBinary(const void *);
void __cudaRegisterFatBinaryEnd(void **);
void __cudaUnregisterFatBinary(void **);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *,
                            void *, int *);
void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int);
void __cudaRegisterManagedVar(void **, void **, char *, const char *, int, size_t, int, int);
char __cudaInitModule(void **);
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, void *);
cudaError_t __cudaPopCallConfiguration(dim3 *, dim3 *, size_t *, void *);
cudaError_t __cudaGetKernel(void **, const void *);
cudaError_t __cudaLaunchKernel(void *, dim3, dim3, void **, size_t, cudaStream_t);
cudaError_t cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, cudaStream_t);
cudaError_t cudaLaunchKernel_ptsz(const void *, dim3, dim3, void **, size_t, cudaStream_t);
cudaError_t cudaFuncGetAttributes(FuncAttributes *, const void *);
cudaError_t cudaGetDeviceCount(int *), cudaSetDevice(int), cudaGetDevice(int *);
cudaError_t cudaDeviceSynchronize(void), cudaDeviceReset(void);
cudaError_t cudaGetDeviceProperties(void *, int), cudaGetDeviceProperties_v2(void *, int);
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned);
cudaError_t cudaMalloc(void **, size_t), cudaFree(void *), cudaMallocManaged(void **, size_t, unsigned);
cudaError_t cudaMallocHost(void **, size_t), cudaFreeHost(void *);
cudaError_t cudaMallocAsync(void **, size_t, cudaStream_t), cudaFreeAsync(void *, cudaStream_t);
cudaError_t cudaMallocPitch(void **, size_t *, size_t, size_t);
cudaError_t cudaMalloc3D(cudaPitchedPtr *, cudaExtent);
cudaError_t cudaMemcpy(void *, const void *, size_t, int);
cudaError_t cudaMemcpyAsync(void *, const void *, size_t, int, cudaStream_t);
cudaError_t cudaMemcpy_ptds(void *, const void *, size_t, int);
cudaError_t cudaMemcpyPeer(void *, int, const void *, int, size_t);
cudaError_t cudaMemcpy2D(void *, size_t, const void *, size_t, size_t, size_t, int);
cudaError_t cudaMemcpy3D(const cudaMemcpy3DParms *);
cudaError_t cudaMemset(void *, int, size_t), cudaMemset3D(cudaPitchedPtr, int, cudaExtent);
cudaError_t cudaMemcpyToSymbol(const void *, const void *, size_t, size_t, int);
cudaError_t cudaMemcpyFromSymbol(void *, const void *, size_t, size_t, int);
cudaError_t cudaGetSymbolAddress(void **, const void *), cudaGetSymbolSize(size_t *, const void *);
cudaError_t cudaPointerGetAttributes(Attributes *, const void *);
cudaError_t cudaStreamCreate(cudaStream_t *), cudaStreamDestroy(cudaStream_t);
cudaError_t cudaStreamSynchronize(cudaStream_t), cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned);
cudaError_t cudaLaunchHostFunc(cudaStream_t, void (*)(void *), void *);
cudaError_t cudaEventCreate(cudaEvent_t *), cudaEventRecord(cudaEvent_t, cudaStream_t);
cudaError_t cudaEventSynchronize(cudaEvent_t), cudaEventElapsedTime(float *, cudaEvent_t, cudaEvent_t);
cudaError_t cudaGetLastError(void), cudaPeekAtLastError(void);
const char *cudaGetErrorName(cudaError_t), *cudaGetErrorString(cudaError_t);
cudaError_t cudaRuntimeGetVersion(int *), cudaDriverGetVersion(int *);
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *, const void *, int, size_t);
cudaError_t cudaMallocArray(void **, const void *, size_t, size_t, unsigned);
cudaError_t cudaGetDriverEntryPointByVersion(const char *, void **, unsigned, unsigned long long, int *);

#define EXPECT(want, call)                                                                         \
    do {                                                                                           \
        cudaError_t got = (call);                                                                  \
        if (got != (want)) {                                                                       \
            fprintf(stderr, "line %d: %s gave %d, %s\n", __LINE__, #call, got,                     \
                    cudaGetErrorString(got));                                                      \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define OK(call) EXPECT(0, call)
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) { fprintf(stderr, "line %d: not %s\n", __LINE__, #condition); exit(1); } \
    } while (0)
