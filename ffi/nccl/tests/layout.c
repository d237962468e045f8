/* Names, values and layouts that programs were compiled with. */
#include "nccl.h"

#include <stddef.h>

#define SAME(what, value) _Static_assert((what) == (value), #what)

SAME(sizeof(ncclUniqueId), 128);
SAME(sizeof(ncclConfig_t), 48);
SAME(offsetof(ncclConfig_t, magic), 8);
SAME(offsetof(ncclConfig_t, version), 12);
SAME(offsetof(ncclConfig_t, blocking), 16);
SAME(offsetof(ncclConfig_t, cgaClusterSize), 20);
SAME(offsetof(ncclConfig_t, minCTAs), 24);
SAME(offsetof(ncclConfig_t, maxCTAs), 28);
SAME(offsetof(ncclConfig_t, netName), 32);
SAME(offsetof(ncclConfig_t, splitShare), 40);
SAME(NCCL_VERSION_CODE, 22105);
SAME(NCCL_VERSION(2, 8, 4), 2804);
SAME(ncclRemoteError, 6);
SAME(ncclInProgress, 7);
SAME(ncclBfloat16, 9);
SAME(ncclFloat8e4m3, 10);
SAME(ncclFloat8e5m2, 11);
SAME(ncclAvg, 4);
SAME(ncclNumOps, 5);
SAME(ncclScalarHostImmediate, 1);
SAME(sizeof(ncclRedOp_t), 4);
SAME(sizeof(ncclTeam_t), 12);
SAME(sizeof(ncclDataType_t), 4);
SAME(sizeof(ncclResult_t), 4);
SAME(sizeof(ncclWindow_t), 8);
SAME(NCCL_WIN_COLL_SYMMETRIC, 1);
SAME(ncclStatGpuMemTotal, 3);
SAME(sizeof(ncclSimInfo_t), 24);
SAME(offsetof(ncclSimInfo_t, estimatedTime), 16);
SAME(sizeof(ncclCommProperties_t), 56);
SAME(offsetof(ncclCommProperties_t, rank), 16);
SAME(offsetof(ncclCommProperties_t, deviceApiSupport), 32);
SAME(offsetof(ncclCommProperties_t, ginType), 36);
SAME(offsetof(ncclCommProperties_t, nLsaTeams), 40);
SAME(offsetof(ncclCommProperties_t, hostRmaSupport), 44);
SAME(offsetof(ncclCommProperties_t, railedGinType), 48);
SAME(sizeof(ncclWaitSignalDesc_t), 16);

int main(void) { return 0; }
