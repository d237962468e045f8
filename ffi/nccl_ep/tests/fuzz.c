/* Structures of NCCL EP that nobody meant, drawn at random, on a communicator of one rank: each call
 * gets one thing that is wrong, has to be refused with a code and a message, and must leave group and
 * handle as they are. A structure ends where the next page cannot be read.
 *
 *   fuzz SEED CALLS
 *
 * Prints a line for each thing that is not as it should be, and ends with their number. */
#define _GNU_SOURCE
#include "nccl_ep.h"

#include "../../nccl/tests/fuzz.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { EXPERTS = 3, TOP_K = 2, HIDDEN = 24, MOST = 5, TOKENS = 4 };

static CUstream stream;
static ncclComm_t comm;
static char *page_end;

#define ONE_OF(...) \
    (((const uint64_t[]){__VA_ARGS__})[draw(sizeof((const uint64_t[]){__VA_ARGS__}) / 8)])

static void refused(int line, const char *name, ncclResult_t result) {
    const char *said = ncclGetLastError(NULL);
    EXPECT(result == ncclInvalidArgument || result == ncclInvalidUsage, "called in line %d, %s: %d",
           line, name, result);
    EXPECT(said && *said, "called in line %d, %s says nothing", line, name);
}
#define REFUSED(call) refused(__LINE__, #call, call)

static CUdeviceptr device(size_t bytes) {
    CUdeviceptr at;
    CUDA(cuMemAlloc(&at, bytes));
    CUDA(cuMemsetD8(at, 0, bytes));
    CUDA(cuCtxSynchronize());
    return at;
}

/* The structures of a whole step, right as they stand. */
static size_t x_sizes[2] = {TOKENS, HIDDEN}, k_sizes[2] = {TOKENS, TOP_K};
static size_t row_sizes[3] = {EXPERTS, MOST, HIDDEN}, count_sizes[1] = {EXPERTS};
static ncclEpTensor_t x, idx, rows, counts, weights, out;

static ncclEpTensor_t tensor(size_t bytes, ncclDataType_t type, unsigned int ndim, size_t *sizes) {
    ncclEpTensor_t made = {NCCL_EP_TENSOR_INIT_INLINE, .ndim = ndim, .datatype = type,
                           .data = (void *)(uintptr_t)device(bytes), .sizes = sizes};
    return made;
}

static float element(int number, int token, int at) {
    return (float)(number % 50 + token * 3) - 0.25f * (float)at;
}

static void bring(void) {
    long long chosen[TOKENS][TOP_K];
    float factors[TOKENS][TOP_K];
    for (int t = 0; t < TOKENS; t++)
        for (int k = 0; k < TOP_K; k++) {
            chosen[t][k] = (t + k) % EXPERTS;
            factors[t][k] = k ? 0.5f : 2.0f;
        }
    x = tensor(TOKENS * HIDDEN * 4, ncclFloat32, 2, x_sizes);
    out = tensor(TOKENS * HIDDEN * 4, ncclFloat32, 2, x_sizes);
    idx = tensor(sizeof chosen, ncclInt64, 2, k_sizes);
    weights = tensor(sizeof factors, ncclFloat32, 2, k_sizes);
    rows = tensor(EXPERTS * MOST * HIDDEN * 4, ncclFloat32, 3, row_sizes);
    counts = tensor(EXPERTS * 4, ncclInt32, 1, count_sizes);
    CUDA(cuMemcpyHtoD((CUdeviceptr)(uintptr_t)idx.data, chosen, sizeof chosen));
    CUDA(cuMemcpyHtoD((CUdeviceptr)(uintptr_t)weights.data, factors, sizeof factors));
    CUDA(cuCtxSynchronize());
}

static ncclEpGroupConfig_t right_config(void) {
    ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;
    config.algorithm = NCCL_EP_ALGO_LOW_LATENCY;
    config.num_experts = EXPERTS;
    config.max_dispatch_tokens_per_rank = MOST;
    config.max_recv_tokens_per_rank = MOST;
    config.max_token_bytes = HIDDEN * 4;
    return config;
}

/* A whole step is still right: rows come back as they went, twice and a half. */
static void step(ncclEpHandle_t handle, int number) {
    float host[TOKENS][HIDDEN], seen[TOKENS][HIDDEN];
    for (int t = 0; t < TOKENS; t++)
        for (int h = 0; h < HIDDEN; h++) host[t][h] = element(number, t, h);
    CUDA(cuMemcpyHtoD((CUdeviceptr)(uintptr_t)x.data, host, sizeof host));
    CUDA(cuCtxSynchronize());
    ncclEpDispatchInputs_t inputs = NCCL_EP_DISPATCH_INPUTS_INIT;
    ncclEpDispatchOutputs_t outputs = NCCL_EP_DISPATCH_OUTPUTS_INIT;
    ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;
    inputs.tokens = &x, outputs.tokens = &rows, info.expert_counters = &counts;
    OK(ncclEpUpdateHandle(handle, &idx, NULL, stream));
    OK(ncclEpDispatch(handle, &inputs, &outputs, &info, NULL, stream));
    ncclEpCombineInputs_t results = NCCL_EP_COMBINE_INPUTS_INIT;
    ncclEpCombineOutputs_t sums = NCCL_EP_COMBINE_OUTPUTS_INIT;
    results.tokens = &rows, sums.tokens = &out, sums.topk_weights = &weights;
    OK(ncclEpCombine(handle, &results, &sums, NULL, stream));
    CUDA(cuStreamSynchronize(stream));
    CUDA(cuMemcpyDtoH(seen, (CUdeviceptr)(uintptr_t)out.data, sizeof seen));
    for (int t = 0; t < TOKENS; t++)
        for (int h = 0; h < HIDDEN; h++) {
            float expected = 2.0f * host[t][h] + 0.5f * host[t][h];
            EXPECT(seen[t][h] == expected, "token %d at %d: %g, not %g", t, h, seen[t][h], expected);
        }
}

/* A structure at the end of the page. */
static void *at_end(const void *from, size_t bytes) {
    return memcpy(page_end - bytes, from, bytes);
}
/* The same with a size or a magic number that is none: of a structure that says it is smaller no
 * more is there than its first two numbers. */
static void *bad_head(const void *from, size_t bytes) {
    unsigned int head[2];
    memcpy(head, from, sizeof head);
    if (draw(2)) {
        head[1] ^= 1u << draw(32);
        char *at = at_end(from, bytes);
        return memcpy(at, head, sizeof head);
    }
    head[0] = (unsigned int)ONE_OF(0, 4, 8, bytes - 8, bytes - 4, bytes + 4, bytes + 8, UINT32_MAX);
    const size_t room = head[0] < bytes ? 8 : bytes;
    return memcpy(page_end - room, head, sizeof head);
}

/* A tensor with a field that cannot be. */
static ncclEpTensor_t *bad_tensor(const ncclEpTensor_t *right) {
    static size_t sizes[8];
    ncclEpTensor_t bad = *right;
    memcpy(sizes, right->sizes, right->ndim * sizeof *sizes);
    bad.sizes = sizes;
    switch (draw(8)) {
    case 0: bad.ndim = (unsigned int)ONE_OF(0, 9, 1000, INT32_MAX, UINT32_MAX); break;
    case 1: bad.datatype = (ncclDataType_t)ONE_OF(12, 13, 99, INT32_MAX, UINT32_MAX); break;
    case 2: bad.sizes = NULL; break;
    case 3: bad.data = NULL; break;
    case 4: bad.win_hdl = (void *)0x1000; break;
    case 5: sizes[draw(right->ndim)] = ONE_OF(SIZE_MAX, SIZE_MAX / 4 + 2, (size_t)1 << 63); break;
    case 6: return (ncclEpTensor_t *)((char *)at_end(&bad, sizeof bad) - 1);
    default: bad.magic ^= 1u << draw(32), bad.size += (unsigned int)draw(2) * 8;
    }
    return at_end(&bad, sizeof bad);
}

static void try_a_group(void) {
    ncclEpGroupConfig_t config = right_config();
    ncclEpGroup_t group = NULL;
    switch (draw(9)) {
    case 0: config.algorithm = (ncclEpAlgorithm_t)ONE_OF(2, 99, INT32_MAX, UINT32_MAX); break;
    case 1: config.num_experts = 0; break;
    case 2: config.max_dispatch_tokens_per_rank = 0; break;
    case 3: config.max_token_bytes = 0; break;
    case 4: config.enable_mask = 1 + (unsigned int)draw(UINT32_MAX); break;
    case 5: config.timeout_ns = 1 + draw(UINT64_MAX - 1); break;
    case 6: config.rdma_buffer_size = 1 + draw(UINT32_MAX); break;
    case 7:
        REFUSED(ncclEpCreateGroup(&group, (ncclComm_t)(uintptr_t)draw(UINT64_MAX), &config));
        return;
    default: REFUSED(ncclEpCreateGroup(&group, comm, bad_head(&config, sizeof config))); return;
    }
    REFUSED(ncclEpCreateGroup(&group, comm, at_end(&config, sizeof config)));
}

/* A group whose numbers are possible, and perhaps too large for any GPU: whatever it answers, it
 * answers, and is gone afterwards. */
static void try_large_numbers(void) {
    ncclEpGroupConfig_t config = right_config();
    config.algorithm = (ncclEpAlgorithm_t)draw(2);
    config.num_experts = (unsigned int)ONE_OF(1, 3, 4096, 65535, 65537, 1 << 20);
    config.max_dispatch_tokens_per_rank =
        (unsigned int)ONE_OF(TOKENS, 65537, (uint64_t)1 << 31, UINT32_MAX);
    config.max_recv_tokens_per_rank = (unsigned int)ONE_OF(0, 1, MOST, UINT32_MAX);
    config.max_token_bytes = (unsigned int)ONE_OF(1, HIDDEN * 4, 1 << 20, UINT32_MAX);
    ncclEpGroup_t group = NULL;
    ncclEpHandle_t handle = NULL;
    OK(ncclEpCreateGroup(&group, comm, &config));
    const int layout = config.algorithm == NCCL_EP_ALGO_LOW_LATENCY ? NCCL_EP_LAYOUT_EXPERT_MAJOR
                                                                    : NCCL_EP_LAYOUT_FLAT;
    size_t bytes;
    ncclResult_t result = ncclEpHandleMemSize(group, layout, NULL, &bytes, TOP_K);
    EXPECT(result == ncclSuccess || *ncclGetLastError(NULL), "%d", result);
    if (ncclEpInitHandle(&handle, group, layout, NULL, TOP_K, NULL) == ncclSuccess) {
        result = ncclEpUpdateHandle(handle, &idx, NULL, stream);
        ncclEpDispatchInputs_t inputs = NCCL_EP_DISPATCH_INPUTS_INIT;
        ncclEpDispatchOutputs_t outputs = NCCL_EP_DISPATCH_OUTPUTS_INIT;
        inputs.tokens = &x, outputs.tokens = &rows;
        /* The rows of another group than the right one are not there. */
        if (result == ncclSuccess && config.num_experts > EXPERTS)
            REFUSED(ncclEpDispatch(handle, &inputs, &outputs, NULL, NULL, stream));
        OK(ncclEpHandleDestroy(handle));
    }
    OK(ncclEpGroupDestroy(group));
}

static void try_a_call(ncclEpGroup_t group, ncclEpHandle_t handle) {
    ncclEpHandle_t made = NULL;
    ncclEpDispatchInputs_t inputs = NCCL_EP_DISPATCH_INPUTS_INIT;
    ncclEpDispatchOutputs_t outputs = NCCL_EP_DISPATCH_OUTPUTS_INIT;
    ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;
    ncclEpDispatchConfig_t dispatch = NCCL_EP_DISPATCH_CONFIG_INIT;
    ncclEpCombineConfig_t combine = NCCL_EP_COMBINE_CONFIG_INIT;
    ncclEpCombineInputs_t results = NCCL_EP_COMBINE_INPUTS_INIT;
    ncclEpCombineOutputs_t sums = NCCL_EP_COMBINE_OUTPUTS_INIT;
    ncclEpHandleConfig_t of_handle = NCCL_EP_HANDLE_CONFIG_INIT;
    const ncclEpLayout_t right = NCCL_EP_LAYOUT_EXPERT_MAJOR;
    inputs.tokens = &x, outputs.tokens = &rows, info.expert_counters = &counts;
    results.tokens = &rows, sums.tokens = &out, sums.topk_weights = &weights;
#define DISPATCH(in, out, info, config) ncclEpDispatch(handle, in, out, info, config, stream)
#define COMBINE(in, out, config) ncclEpCombine(handle, in, out, config, stream)
    switch (draw(19)) {
    case 0: try_a_group(); break;
    case 1: REFUSED(ncclEpUpdateHandle(handle, bad_tensor(&idx), NULL, stream)); break;
    case 2: {
        size_t sizes[2] = {TOKENS, TOP_K};
        sizes[draw(2)] = ONE_OF(MOST + 1, 17, 1 << 20, (uint64_t)1 << 32, ((uint64_t)1 << 32) + 2);
        ncclEpTensor_t other = idx;
        other.sizes = sizes;
        REFUSED(ncclEpUpdateHandle(handle, &other, NULL, stream));
        break;
    }
    case 3:
        inputs.tokens = bad_tensor(&x);
        REFUSED(DISPATCH(&inputs, &outputs, &info, NULL));
        break;
    case 4:
        outputs.tokens = bad_tensor(&rows);
        REFUSED(DISPATCH(&inputs, &outputs, &info, NULL));
        break;
    case 5:
        info.expert_counters = bad_tensor(&counts);
        REFUSED(DISPATCH(&inputs, &outputs, &info, NULL));
        break;
    case 6: REFUSED(DISPATCH(bad_head(&inputs, sizeof inputs), &outputs, &info, NULL)); break;
    case 7: REFUSED(DISPATCH(&inputs, bad_head(&outputs, sizeof outputs), &info, NULL)); break;
    case 8: REFUSED(DISPATCH(&inputs, &outputs, bad_head(&info, sizeof info), NULL)); break;
    case 9:
        REFUSED(DISPATCH(&inputs, &outputs, &info, bad_head(&dispatch, sizeof dispatch)));
        break;
    case 10: results.tokens = bad_tensor(&rows); REFUSED(COMBINE(&results, &sums, NULL)); break;
    case 11: sums.tokens = bad_tensor(&out); REFUSED(COMBINE(&results, &sums, NULL)); break;
    case 12:
        sums.topk_weights = bad_tensor(&weights);
        REFUSED(COMBINE(&results, &sums, NULL));
        break;
    case 13: REFUSED(COMBINE(bad_head(&results, sizeof results), &sums, NULL)); break;
    case 14: REFUSED(COMBINE(&results, bad_head(&sums, sizeof sums), NULL)); break;
    case 15: REFUSED(COMBINE(&results, &sums, bad_head(&combine, sizeof combine))); break;
    case 16: {
        const int layouts[] = {-1, 0, 2, 3, 4, INT32_MAX, INT32_MIN};
        const int counts_of[] = {0, -1, 17, INT32_MAX, INT32_MIN};
        const ncclEpLayout_t layout = (ncclEpLayout_t)layouts[draw(7)];
        REFUSED(ncclEpInitHandle(&made, group, layout, NULL, TOP_K, NULL));
        REFUSED(ncclEpInitHandle(&made, group, right, NULL, counts_of[draw(5)], NULL));
        REFUSED(ncclEpInitHandle(&made, group, right, bad_head(&of_handle, sizeof of_handle), 1,
                                 NULL));
        REFUSED(ncclEpInitHandle(&made, (ncclEpGroup_t)(uintptr_t)(draw(UINT64_MAX) | 1), right,
                                 NULL, 1, NULL));
        break;
    }
    case 17: {
        ncclEpTensor_t *fresh;
        size_t sizes[2] = {draw(UINT64_MAX), draw(UINT64_MAX)};
        REFUSED(ncclEpTensorAlloc(&fresh, 9 + (unsigned int)draw(99), ncclFloat32, sizes, NULL));
        REFUSED(ncclEpTensorAlloc(&fresh, 2, (ncclDataType_t)(12 + draw(99)), sizes, NULL));
        REFUSED(ncclEpTensorDestroy((ncclEpTensor_t *)(uintptr_t)draw(UINT64_MAX)));
        REFUSED(ncclEpHandleDestroy((ncclEpHandle_t)(uintptr_t)(draw(UINT64_MAX) | 1)));
        REFUSED(ncclEpGroupDestroy((ncclEpGroup_t)(uintptr_t)(draw(UINT64_MAX) | 1)));
        REFUSED(ncclEpComplete(handle, NULL, stream));
        break;
    }
    default: if (draw(4) == 0) try_large_numbers();
    }
}

int main(int count, char **words) {
    if (count != 3) return 2;
    const int calls = atoi(words[2]);
    state = strtoull(words[1], NULL, 10) * 2654435761u + 1;
    printf("seed %s\n", words[1]);
    CUcontext context;
    CUDA(cuInit(0));
    CUDA(cuDevicePrimaryCtxRetain(&context, 0));
    CUDA(cuCtxSetCurrent(context));
    CUDA(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(ncclCommInitAll(&comm, 1, NULL));
    const long page = sysconf(_SC_PAGESIZE);
    char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CUDA(pages == MAP_FAILED || mprotect(pages + page, page, PROT_NONE));
    page_end = pages + page;
    bring();
    ncclEpGroupConfig_t config = right_config();
    ncclEpGroup_t group;
    ncclEpHandle_t handle;
    OK(ncclEpCreateGroup(&group, comm, &config));
    OK(ncclEpInitHandle(&handle, group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, TOP_K, NULL));
    step(handle, 0);
    for (int i = 1; i <= calls && wrong < 40; i++) {
        try_a_call(group, handle);
        if (i % 50 == 0) step(handle, i);
    }
    step(handle, calls);
    OK(ncclEpHandleDestroy(handle));
    OK(ncclEpGroupDestroy(group));
    OK(ncclCommDestroy(comm));
    printf("%d calls, %d wrong\n", calls, wrong);
    return wrong != 0;
}
