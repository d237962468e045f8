/* NCCL's C interface, as ringdove's libnccl.so.2 implements it: names, values and layouts are those
 * of NCCL, whose documentation describes the functions. README.md says what differs. */
#ifndef NCCL_H_
#define NCCL_H_

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__has_include)
#if __has_include(<cuda_runtime.h>)
#include <cuda_runtime.h>
#define RINGDOVE_NCCL_HAS_CUDART 1
/* NCCL's header brings the 16-bit floats, and programs rely on it. */
#if __has_include(<cuda_fp16.h>) && __has_include(<cuda_bf16.h>)
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#endif
#endif
#endif
#ifndef RINGDOVE_NCCL_HAS_CUDART
/* Without the runtime's header: streams are the driver's. */
typedef struct CUstream_st *cudaStream_t;
#endif

#define NCCL_MAJOR 2
#define NCCL_MINOR 21
#define NCCL_PATCH 5
#define NCCL_SUFFIX ""
#define NCCL_VERSION(X, Y, Z) \
    (((X) <= 2 && (Y) <= 8) ? (X) * 1000 + (Y) * 100 + (Z) : (X) * 10000 + (Y) * 100 + (Z))
#define NCCL_VERSION_CODE NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH)

#define NCCL_UNIQUE_ID_BYTES 128
#define NCCL_SPLIT_NOCOLOR (-1)
#define NCCL_SHRINK_DEFAULT 0x00
#define NCCL_SHRINK_ABORT 0x01
#define NCCL_UNDEF_FLOAT (-1.0f)
#define NCCL_WIN_DEFAULT 0x00
#define NCCL_WIN_COLL_SYMMETRIC 0x01
#define NCCL_WIN_STRICT_ORDERING 0x02
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow_vidmem *ncclWindow_t;

typedef struct {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
    ncclNumResults = 8
} ncclResult_t;

typedef enum {
    ncclInt8 = 0,
    ncclChar = 0,
    ncclUint8 = 1,
    ncclInt32 = 2,
    ncclInt = 2,
    ncclUint32 = 3,
    ncclInt64 = 4,
    ncclUint64 = 5,
    ncclFloat16 = 6,
    ncclHalf = 6,
    ncclFloat32 = 7,
    ncclFloat = 7,
    ncclFloat64 = 8,
    ncclDouble = 8,
    ncclBfloat16 = 9,
    ncclFloat8e4m3 = 10,
    ncclFloat8e5m2 = 11,
    ncclNumTypes = 12
} ncclDataType_t;

typedef enum {
    ncclSum = 0,
    ncclProd = 1,
    ncclMax = 2,
    ncclMin = 3,
    ncclAvg = 4,
    ncclNumOps = 5,
    ncclMaxRedOp = 0x7fffffff
} ncclRedOp_t;

typedef enum {
    ncclScalarDevice = 0,
    ncclScalarHostImmediate = 1
} ncclScalarResidence_t;

#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR NULL

/* Of the fields, `blocking` has an effect; the others are hints to NCCL's kernels and network. */
typedef struct ncclConfig_v21700 {
    size_t size;
    unsigned int magic;
    unsigned int version;
    int blocking;
    int cgaClusterSize;
    int minCTAs;
    int maxCTAs;
    const char *netName;
    int splitShare;
} ncclConfig_t;

#define NCCL_CONFIG_INITIALIZER                                                                  \
    {                                                                                            \
        sizeof(ncclConfig_t), 0xcafebeefu, NCCL_VERSION_CODE, NCCL_CONFIG_UNDEF_INT,             \
            NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,                 \
            NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT                                         \
    }

/* Declares a function and its form for profilers. */
#define RINGDOVE_NCCL(name, ...)            \
    ncclResult_t nccl##name(__VA_ARGS__);   \
    ncclResult_t pnccl##name(__VA_ARGS__)

RINGDOVE_NCCL(GetVersion, int *version);
RINGDOVE_NCCL(GetUniqueId, ncclUniqueId *uniqueId);
const char *ncclGetErrorString(ncclResult_t result);
const char *pncclGetErrorString(ncclResult_t result);
const char *ncclGetLastError(ncclComm_t comm);
const char *pncclGetLastError(ncclComm_t comm);

/* Ranks that are `stride` apart. */
typedef struct ncclTeam {
    int nRanks;
    int rank;
    int stride;
} ncclTeam_t;

ncclTeam_t ncclTeamWorld(ncclComm_t comm);
ncclTeam_t pncclTeamWorld(ncclComm_t comm);
ncclTeam_t ncclTeamLsa(ncclComm_t comm);
ncclTeam_t pncclTeamLsa(ncclComm_t comm);

RINGDOVE_NCCL(CommInitRank, ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank);
RINGDOVE_NCCL(CommInitRankConfig, ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
              ncclConfig_t *config);
RINGDOVE_NCCL(CommInitRankScalable, ncclComm_t *newcomm, int nranks, int myrank, int nId,
              ncclUniqueId *commIds, ncclConfig_t *config);
RINGDOVE_NCCL(CommInitAll, ncclComm_t *comm, int ndev, const int *devlist);
RINGDOVE_NCCL(CommSplit, ncclComm_t comm, int color, int key, ncclComm_t *newcomm,
              ncclConfig_t *config);
RINGDOVE_NCCL(CommShrink, ncclComm_t comm, int *excludeRanksList, int excludeRanksCount,
              ncclComm_t *newcomm, ncclConfig_t *config, int shrinkFlags);
RINGDOVE_NCCL(CommGetUniqueId, ncclComm_t comm, ncclUniqueId *uniqueId);
RINGDOVE_NCCL(CommGrow, ncclComm_t comm, int nRanks, const ncclUniqueId *uniqueId, int rank,
              ncclComm_t *newcomm, ncclConfig_t *config);
RINGDOVE_NCCL(CommFinalize, ncclComm_t comm);
RINGDOVE_NCCL(CommDestroy, ncclComm_t comm);
RINGDOVE_NCCL(CommAbort, ncclComm_t comm);
RINGDOVE_NCCL(CommRevoke, ncclComm_t comm, int revokeFlags);
RINGDOVE_NCCL(CommGetAsyncError, ncclComm_t comm, ncclResult_t *asyncError);
RINGDOVE_NCCL(CommCount, const ncclComm_t comm, int *count);
RINGDOVE_NCCL(CommCuDevice, const ncclComm_t comm, int *device);
RINGDOVE_NCCL(CommUserRank, const ncclComm_t comm, int *rank);

RINGDOVE_NCCL(GroupStart, void);
RINGDOVE_NCCL(GroupEnd, void);

typedef struct ncclSimInfo_v22200 {
    size_t size;
    unsigned int magic;
    unsigned int version;
    float estimatedTime;
} ncclSimInfo_t;

#define NCCL_SIM_INFO_INITIALIZER \
    { sizeof(ncclSimInfo_t), 0x74685283u, NCCL_VERSION_CODE, NCCL_UNDEF_FLOAT }

/* The group's calls do not happen, and their time is not estimated. */
RINGDOVE_NCCL(GroupSimulateEnd, ncclSimInfo_t *simInfo);

RINGDOVE_NCCL(RedOpCreatePreMulSum, ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
              ncclScalarResidence_t residence, ncclComm_t comm);
RINGDOVE_NCCL(RedOpDestroy, ncclRedOp_t op, ncclComm_t comm);

RINGDOVE_NCCL(AllReduce, const void *sendbuff, void *recvbuff, size_t count,
              ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
RINGDOVE_NCCL(Reduce, const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
              ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream);
RINGDOVE_NCCL(ReduceScatter, const void *sendbuff, void *recvbuff, size_t recvcount,
              ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
RINGDOVE_NCCL(Broadcast, const void *sendbuff, void *recvbuff, size_t count,
              ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream);
RINGDOVE_NCCL(Bcast, void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
              cudaStream_t stream);
RINGDOVE_NCCL(AllGather, const void *sendbuff, void *recvbuff, size_t sendcount,
              ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream);
RINGDOVE_NCCL(AlltoAll, const void *sendbuff, void *recvbuff, size_t count,
              ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream);
RINGDOVE_NCCL(Gather, const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
              int root, ncclComm_t comm, cudaStream_t stream);
RINGDOVE_NCCL(Scatter, const void *sendbuff, void *recvbuff, size_t count,
              ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream);
RINGDOVE_NCCL(Send, const void *sendbuff, size_t count, ncclDataType_t datatype, int peer,
              ncclComm_t comm, cudaStream_t stream);
RINGDOVE_NCCL(Recv, void *recvbuff, size_t count, ncclDataType_t datatype, int peer,
              ncclComm_t comm, cudaStream_t stream);

RINGDOVE_NCCL(MemAlloc, void **ptr, size_t size);
RINGDOVE_NCCL(MemFree, void *ptr);
RINGDOVE_NCCL(CommRegister, const ncclComm_t comm, void *buff, size_t size, void **handle);
RINGDOVE_NCCL(CommDeregister, const ncclComm_t comm, void *handle);
RINGDOVE_NCCL(CommWindowRegister, ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win,
              int winFlags);
RINGDOVE_NCCL(CommWindowDeregister, ncclComm_t comm, ncclWindow_t win);
RINGDOVE_NCCL(WinGetUserPtr, ncclComm_t comm, ncclWindow_t win, void **outUserPtr);

typedef enum {
    ncclStatGpuMemSuspend = 0,
    ncclStatGpuMemSuspended = 1,
    ncclStatGpuMemPersist = 2,
    ncclStatGpuMemTotal = 3
} ncclCommMemStat_t;

RINGDOVE_NCCL(CommMemStats, ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value);

/* Functions of features that are absent: README.md says what they answer. */

#define NCCL_SUSPEND_MEM 0x01

RINGDOVE_NCCL(CommSuspend, ncclComm_t comm, int flags);
RINGDOVE_NCCL(CommResume, ncclComm_t comm);

typedef enum {
    NCCL_GIN_TYPE_NONE = 0,
    NCCL_GIN_TYPE_PROXY = 2,
    NCCL_GIN_TYPE_GDAKI = 3,
    NCCL_GIN_TYPE_GPI = 4
} ncclGinType_t;

typedef struct ncclCommProperties {
    size_t size;
    unsigned int magic;
    unsigned int version;
    int rank;
    int nRanks;
    int cudaDev;
    int nvmlDev;
    bool deviceApiSupport;
    bool multimemSupport;
    ncclGinType_t ginType;
    int nLsaTeams;
    bool hostRmaSupport;
    ncclGinType_t railedGinType;
} ncclCommProperties_t;

#define NCCL_COMM_PROPERTIES_INITIALIZER \
    { sizeof(ncclCommProperties_t), 0xcafebeefu, NCCL_VERSION_CODE, 0, 0, 0, 0, false, false,  \
      NCCL_GIN_TYPE_NONE, 0, false, NCCL_GIN_TYPE_NONE }

RINGDOVE_NCCL(CommQueryProperties, ncclComm_t comm, ncclCommProperties_t *props);

typedef struct {
    int opCnt;
    int peer;
    int sigIdx;
    int ctx;
} ncclWaitSignalDesc_t;

RINGDOVE_NCCL(PutSignal, const void *localbuff, size_t count, ncclDataType_t datatype, int peer,
              ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx, unsigned int flags,
              ncclComm_t comm, cudaStream_t stream);
RINGDOVE_NCCL(Signal, int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
              cudaStream_t stream);
RINGDOVE_NCCL(WaitSignal, int nDesc, ncclWaitSignalDesc_t *signalDescs, ncclComm_t comm,
              cudaStream_t stream);

#undef RINGDOVE_NCCL

#ifdef __cplusplus
}
#endif

#endif
