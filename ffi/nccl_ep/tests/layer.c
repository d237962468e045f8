/* One rank of a layer of experts, written as for NCCL EP: low latency, in whole calls and in halves,
 * then high throughput, forward and backward. Every element is compared. Ranks are processes; the id
 * comes through the file that is named. */
#include "nccl_ep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LOCAL = 3, TOP_K = 2, HIDDEN = 72, MOST = 9 };
static int rank, ranks, experts;
static CUstream stream;

#define NEED(condition)                                                                       \
    do {                                                                                      \
        if (!(condition)) {                                                                   \
            printf("rank %d, line %d: %s: %s\n", rank, __LINE__, #condition,                  \
                   ncclGetLastError(NULL));                                                   \
            exit(1);                                                                          \
        }                                                                                     \
    } while (0)
#define OK(call) NEED((call) == ncclSuccess)

static int number(const char *name) {
    const char *text = getenv(name);
    return text ? atoi(text) : 0;
}

/* The rule of all ranks: how many tokens there are, what they choose, weigh, and hold. */
static int tokens_of(int source) { return source == 1 ? 0 : 4 + source % 5; }
static long long chosen(int source, int token, int k) {
    if (k == 1 && token % 4 == 3) return -1;
    return (token * 5 + source + k * (1 + token % (experts - 1))) % experts;
}
static float weight(int source, int token, int k) {
    return 1.0f / (float)(1 + k + token + 2 * source);
}
static float element(int source, int token, int at) {
    return (float)(source * 17 + token * 3) - 0.25f * (float)at;
}
static float scaled(float value, long long expert) { return value * (float)(expert + 2); }

static CUdeviceptr device(size_t bytes) {
    CUdeviceptr at;
    NEED(cuMemAlloc(&at, bytes ? bytes : 16) == 0 && cuMemsetD8(at, 0xA5, bytes ? bytes : 16) == 0);
    NEED(cuCtxSynchronize() == 0);
    return at;
}
static void upload(CUdeviceptr at, const void *from, size_t bytes) {
    NEED(bytes == 0 || cuMemcpyHtoD(at, from, bytes) == 0);
    NEED(cuCtxSynchronize() == 0);
}
static void download(void *to, CUdeviceptr at, size_t bytes) {
    NEED(cuStreamSynchronize(stream) == 0);
    NEED(bytes == 0 || cuMemcpyDtoH(to, at, bytes) == 0);
}

static ncclEpTensor_t tensor(CUdeviceptr at, ncclDataType_t type, unsigned int ndim, size_t *sizes) {
    ncclEpTensor_t made = {NCCL_EP_TENSOR_INIT_INLINE, .ndim = ndim, .datatype = type,
                           .data = (void *)(uintptr_t)at, .sizes = sizes};
    return made;
}

/* This rank's tokens, choices and weights. */
static CUdeviceptr x_at, idx_at, weights_at, out_at;
static size_t x_sizes[2], k_sizes[2];
static ncclEpTensor_t x, idx, weights, out;

static void bring(void) {
    int tokens = tokens_of(rank);
    static float host_x[MOST][HIDDEN], host_weights[MOST][TOP_K];
    static long long host_idx[MOST][TOP_K];
    for (int t = 0; t < tokens; t++) {
        for (int h = 0; h < HIDDEN; h++) host_x[t][h] = element(rank, t, h);
        for (int k = 0; k < TOP_K; k++) {
            host_idx[t][k] = chosen(rank, t, k);
            host_weights[t][k] = weight(rank, t, k);
        }
    }
    x_sizes[0] = k_sizes[0] = (size_t)tokens, x_sizes[1] = HIDDEN, k_sizes[1] = TOP_K;
    x_at = device(sizeof host_x), idx_at = device(sizeof host_idx);
    weights_at = device(sizeof host_weights), out_at = device(sizeof host_x);
    upload(x_at, host_x, sizeof host_x), upload(idx_at, host_idx, sizeof host_idx);
    upload(weights_at, host_weights, sizeof host_weights);
    x = tensor(x_at, ncclFloat32, 2, x_sizes), out = tensor(out_at, ncclFloat32, 2, x_sizes);
    idx = tensor(idx_at, ncclInt64, 2, k_sizes);
    weights = tensor(weights_at, ncclFloat32, 2, k_sizes);
}

static ncclEpGroup_t group_of(ncclComm_t comm, ncclEpAlgorithm_t algorithm) {
    ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;
    ncclEpGroup_t group;
    config.algorithm = algorithm;
    config.num_experts = (unsigned int)experts;
    config.max_dispatch_tokens_per_rank = MOST;
    config.max_recv_tokens_per_rank = (unsigned int)(MOST * ranks);
    config.max_token_bytes = HIDDEN * 4;
    OK(ncclEpCreateGroup(&group, comm, &config));
    return group;
}

static float *read_out(void) {
    static float host[MOST][HIDDEN];
    download(host, out_at, sizeof host);
    return host[0];
}

/* Each row of a local expert, in the order of source and token, becomes its result. */
static void experts_of_low_latency(CUdeviceptr rows_at, CUdeviceptr counts_at) {
    size_t rows = (size_t)(LOCAL * ranks * MOST);
    float(*host)[HIDDEN] = malloc(rows * sizeof *host);
    int counts[LOCAL];
    download(host, rows_at, rows * sizeof *host), download(counts, counts_at, sizeof counts);
    for (int e = 0; e < LOCAL; e++) {
        long long expert = rank * LOCAL + e;
        int row = 0;
        for (int source = 0; source < ranks; source++)
            for (int t = 0; t < tokens_of(source); t++)
                for (int k = 0; k < TOP_K; k++) {
                    if (chosen(source, t, k) != expert) continue;
                    float *values = host[e * ranks * MOST + row++];
                    for (int h = 0; h < HIDDEN; h++) {
                        NEED(values[h] == element(source, t, h));
                        values[h] = scaled(values[h], expert);
                    }
                }
        NEED(counts[e] == row);
    }
    upload(rows_at, host, rows * sizeof *host);
    free(host);
}

static void low_latency(ncclComm_t comm, int in_halves) {
    ncclEpGroup_t group = group_of(comm, NCCL_EP_ALGO_LOW_LATENCY);
    ncclEpHandle_t handle;
    size_t bytes = 0;
    OK(ncclEpHandleMemSize(group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, &bytes, TOP_K));
    NEED(bytes > 0);
    OK(ncclEpInitHandle(&handle, group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, TOP_K, NULL));
    OK(ncclEpUpdateHandle(handle, &idx, NULL, stream));
    size_t row_sizes[3] = {LOCAL, (size_t)(ranks * MOST), HIDDEN}, count_sizes[1] = {LOCAL};
    CUdeviceptr rows_at = device(row_sizes[0] * row_sizes[1] * HIDDEN * 4);
    CUdeviceptr counts_at = device(LOCAL * 4);
    ncclEpTensor_t rows = tensor(rows_at, ncclFloat32, 3, row_sizes);
    ncclEpTensor_t counts = tensor(counts_at, ncclInt32, 1, count_sizes);
    ncclEpDispatchInputs_t inputs = NCCL_EP_DISPATCH_INPUTS_INIT;
    ncclEpDispatchOutputs_t outputs = NCCL_EP_DISPATCH_OUTPUTS_INIT;
    ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;
    ncclEpDispatchConfig_t dispatch = NCCL_EP_DISPATCH_CONFIG_INIT;
    ncclEpCombineConfig_t combine = NCCL_EP_COMBINE_CONFIG_INIT;
    dispatch.send_only = combine.send_only = (unsigned int)in_halves;
    inputs.tokens = &x, outputs.tokens = &rows, info.expert_counters = &counts;
    for (int step = 0; step < 3; step++) {
        OK(ncclEpDispatch(handle, &inputs, &outputs, &info, &dispatch, stream));
        if (in_halves) {
            NEED(ncclEpDispatch(handle, &inputs, &outputs, &info, &dispatch, stream) ==
                 ncclInvalidUsage);
            OK(ncclEpComplete(handle, NULL, stream));
        }
        experts_of_low_latency(rows_at, counts_at);
        ncclEpCombineInputs_t results = NCCL_EP_COMBINE_INPUTS_INIT;
        ncclEpCombineOutputs_t sums = NCCL_EP_COMBINE_OUTPUTS_INIT;
        results.tokens = &rows, sums.tokens = &out, sums.topk_weights = &weights;
        OK(ncclEpCombine(handle, &results, &sums, &combine, stream));
        if (in_halves) OK(ncclEpComplete(handle, NULL, stream));
        float *seen = read_out();
        for (int t = 0; t < tokens_of(rank); t++)
            for (int h = 0; h < HIDDEN; h++) {
                float sum = 0;
                for (int k = 0; k < TOP_K; k++) {
                    long long expert = chosen(rank, t, k);
                    if (expert < 0) continue;
                    volatile float term = weight(rank, t, k) * scaled(element(rank, t, h), expert);
                    sum = sum + term;
                }
                NEED(seen[t * HIDDEN + h] == sum);
            }
    }
    NEED(ncclEpComplete(handle, NULL, stream) == ncclInvalidUsage);
    OK(ncclEpHandleDestroy(handle));
    OK(ncclEpGroupDestroy(group));
}

/* A token's result at one rank: the weighted sum over its experts there, in the order of choices. */
static float result_at(int at, int source, int token, float value) {
    float sum = 0;
    for (int k = 0; k < TOP_K; k++) {
        long long expert = chosen(source, token, k);
        if (expert < 0 || expert / LOCAL != at) continue;
        volatile float term = weight(source, token, k) * scaled(value, expert);
        sum = sum + term;
    }
    return sum;
}
static int is_chosen(int at, int source, int token) {
    for (int k = 0; k < TOP_K; k++) {
        long long expert = chosen(source, token, k);
        if (expert >= 0 && expert / LOCAL == at) return 1;
    }
    return 0;
}

/* The rows that came, in the order of source and token; gives how many. */
static int rows_of_throughput(CUdeviceptr rows_at, CUdeviceptr idx_rows, CUdeviceptr weight_rows,
                              int is_backward) {
    int most = ranks * MOST, row = 0;
    float(*host)[HIDDEN] = malloc((size_t)most * sizeof *host);
    long long(*indices)[TOP_K] = malloc((size_t)most * sizeof *indices);
    float(*given)[TOP_K] = malloc((size_t)most * sizeof *given);
    download(host, rows_at, (size_t)most * sizeof *host);
    download(indices, idx_rows, (size_t)most * sizeof *indices);
    download(given, weight_rows, (size_t)most * sizeof *given);
    for (int source = 0; source < ranks; source++)
        for (int t = 0; t < tokens_of(source); t++) {
            if (!is_chosen(rank, source, t)) continue;
            for (int h = 0; h < HIDDEN; h++) {
                NEED(host[row][h] == element(source, t, h));
                if (!is_backward) host[row][h] = result_at(rank, source, t, host[row][h]);
            }
            for (int k = 0; k < TOP_K; k++) {
                long long expert = chosen(source, t, k);
                int is_here = expert >= 0 && expert / LOCAL == rank;
                NEED(indices[row][k] == (is_here ? expert % LOCAL : -1));
                NEED(given[row][k] == (is_here ? weight(source, t, k) : 0));
            }
            row++;
        }
    upload(rows_at, host, (size_t)most * sizeof *host);
    free(host), free(indices), free(given);
    return row;
}

static void throughput(ncclComm_t comm) {
    ncclEpGroup_t group = group_of(comm, NCCL_EP_ALGO_HIGH_THROUGHPUT);
    ncclEpHandle_t handle;
    size_t row_sizes[2] = {(size_t)(ranks * MOST), HIDDEN};
    size_t choice_sizes[2] = {row_sizes[0], TOP_K}, count_sizes[1] = {LOCAL}, one[1] = {1};
    CUdeviceptr rows_at = device(row_sizes[0] * HIDDEN * 4), counts_at = device(LOCAL * 4);
    CUdeviceptr total_at = device(8), idx_rows = device(row_sizes[0] * TOP_K * 8);
    CUdeviceptr weight_rows = device(row_sizes[0] * TOP_K * 4);
    ncclEpTensor_t rows = tensor(rows_at, ncclFloat32, 2, row_sizes);
    ncclEpTensor_t row_idx = tensor(idx_rows, ncclInt64, 2, choice_sizes);
    ncclEpTensor_t row_weights = tensor(weight_rows, ncclFloat32, 2, choice_sizes);
    ncclEpTensor_t counts = tensor(counts_at, ncclInt32, 1, count_sizes);
    ncclEpTensor_t total = tensor(total_at, ncclInt64, 1, one);
    ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;
    info.expert_counters = &counts, info.recv_total_counter = &total;
    OK(ncclEpCreateHandle(&handle, group, NCCL_EP_LAYOUT_FLAT, &idx, &info, NULL, stream));
    /* The counts are there before any token is sent. */
    int seen_counts[LOCAL];
    long long seen_total;
    download(seen_counts, counts_at, sizeof seen_counts), download(&seen_total, total_at, 8);

    ncclEpDispatchInputs_t inputs = NCCL_EP_DISPATCH_INPUTS_INIT;
    ncclEpDispatchOutputs_t outputs = NCCL_EP_DISPATCH_OUTPUTS_INIT;
    inputs.tokens = &x, inputs.topk_weights = &weights;
    outputs.tokens = &rows, outputs.topk_idx = &row_idx, outputs.topk_weights = &row_weights;
    OK(ncclEpDispatch(handle, &inputs, &outputs, NULL, NULL, stream));
    int received = rows_of_throughput(rows_at, idx_rows, weight_rows, 0);
    NEED(seen_total == received);
    for (int e = 0; e < LOCAL; e++) {
        int expected = 0;
        for (int source = 0; source < ranks; source++)
            for (int t = 0; t < tokens_of(source); t++)
                for (int k = 0; k < TOP_K; k++)
                    expected += chosen(source, t, k) == rank * LOCAL + e;
        NEED(seen_counts[e] == expected);
    }
    ncclEpCombineInputs_t results = NCCL_EP_COMBINE_INPUTS_INIT;
    ncclEpCombineOutputs_t sums = NCCL_EP_COMBINE_OUTPUTS_INIT;
    results.tokens = &rows, sums.tokens = &out;
    OK(ncclEpCombine(handle, &results, &sums, NULL, stream));
    float *seen = read_out();
    for (int t = 0; t < tokens_of(rank); t++)
        for (int h = 0; h < HIDDEN; h++) {
            float sum = 0;
            for (int k = 0; k < TOP_K; k++) {
                long long expert = chosen(rank, t, k);
                if (expert < 0) continue;
                int at = (int)(expert / LOCAL);
                if (k == 1 && chosen(rank, t, 0) / LOCAL == at) continue;
                sum = sum + result_at(at, rank, t, element(rank, t, h));
            }
            NEED(seen[t * HIDDEN + h] == sum);
        }

    /* Backward: gradients go the way of the tokens, and those of the tokens come back. */
    ncclEpDispatchConfig_t dispatch = NCCL_EP_DISPATCH_CONFIG_INIT;
    ncclEpCombineConfig_t combine = NCCL_EP_COMBINE_CONFIG_INIT;
    dispatch.pass_direction = combine.pass_direction = NCCL_EP_BWD_PASS;
    NEED(ncclEpDispatch(handle, &inputs, &outputs, NULL, &dispatch, stream) == ncclInvalidUsage);
    inputs.topk_weights = NULL, outputs.topk_idx = outputs.topk_weights = NULL;
    OK(ncclEpDispatch(handle, &inputs, &outputs, NULL, &dispatch, stream));
    rows_of_throughput(rows_at, idx_rows, weight_rows, 1);
    CUdeviceptr sums_at = device(MOST * TOP_K * 4);
    ncclEpTensor_t weight_sums = tensor(sums_at, ncclFloat32, 2, k_sizes);
    results.topk_weights = &row_weights, sums.topk_weights = &weight_sums;
    OK(ncclEpCombine(handle, &results, &sums, &combine, stream));
    float gradients[MOST][TOP_K];
    download(gradients, sums_at, sizeof gradients);
    for (int t = 0; t < tokens_of(rank); t++)
        for (int k = 0; k < TOP_K; k++)
            NEED(gradients[t][k] == (chosen(rank, t, k) < 0 ? 0 : weight(rank, t, k)));
    OK(ncclEpHandleDestroy(handle));
    OK(ncclEpGroupDestroy(group));
}

/* What is wrong, and what is not implemented, is answered on each rank alone. */
static void refused(ncclComm_t comm) {
    int version = 0;
    OK(ncclEpGetVersion(&version));
    NEED(version == NCCL_EP_VERSION_CODE && ncclEpGetVersion(NULL) == ncclInvalidArgument);
    ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT, wrong;
    ncclEpGroup_t group;
    config.num_experts = (unsigned int)experts, config.max_dispatch_tokens_per_rank = MOST;
    config.max_recv_tokens_per_rank = (unsigned int)(MOST * ranks);
    config.max_token_bytes = HIDDEN * 4;
#define REFUSED(field, value, code)                              \
    do {                                                         \
        wrong = config, wrong.field = value;                     \
        NEED(ncclEpCreateGroup(&group, comm, &wrong) == (code)); \
    } while (0)
    REFUSED(magic, 0, ncclInvalidArgument);
    REFUSED(size, 8, ncclInvalidArgument);
    REFUSED(num_experts, (unsigned int)(experts + 1), ncclInvalidArgument);
    REFUSED(max_dispatch_tokens_per_rank, 0, ncclInvalidArgument);
    REFUSED(enable_mask, 1, ncclInvalidUsage);
    NEED(strstr(ncclGetLastError(NULL), "enable_mask is not implemented"));
    REFUSED(rdma_buffer_size, 1 << 20, ncclInvalidUsage);
    REFUSED(timeout_ns, 5, ncclInvalidUsage);
    NEED(ncclEpCreateGroup(&group, NULL, &config) == ncclInvalidArgument);
    NEED(ncclEpCreateGroup(NULL, comm, &config) == ncclInvalidArgument);
    OK(ncclEpCreateGroup(&group, comm, &config));
    ncclEpHandle_t handle;
    NEED(ncclEpInitHandle(&handle, group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, TOP_K, NULL) ==
         ncclInvalidUsage);
    NEED(ncclEpInitHandle(&handle, group, NCCL_EP_LAYOUT_UNSET, NULL, TOP_K, NULL) ==
         ncclInvalidArgument);
    NEED(ncclEpInitHandle(&handle, group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, 17, NULL) ==
         ncclInvalidArgument);
    OK(ncclEpInitHandle(&handle, group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, TOP_K, NULL));
    ncclEpTensor_t blank;
    memset(&blank, 0, sizeof blank);
    NEED(ncclEpUpdateHandle(handle, &blank, NULL, stream) == ncclInvalidArgument);
    NEED(ncclEpUpdateHandle(handle, &x, NULL, stream) == ncclInvalidArgument);
    NEED(ncclEpUpdateHandle(handle, NULL, NULL, stream) == ncclInvalidArgument);
    ncclEpDispatchInputs_t inputs = NCCL_EP_DISPATCH_INPUTS_INIT;
    ncclEpDispatchOutputs_t outputs = NCCL_EP_DISPATCH_OUTPUTS_INIT;
    NEED(ncclEpDispatch(handle, &inputs, &outputs, NULL, NULL, stream) == ncclInvalidArgument);
    inputs.tokens = &x, outputs.tokens = &x;
    NEED(ncclEpDispatch(handle, &inputs, &outputs, NULL, NULL, stream) == ncclInvalidArgument);
    ncclEpCombineInputs_t results = NCCL_EP_COMBINE_INPUTS_INIT;
    ncclEpCombineOutputs_t sums = NCCL_EP_COMBINE_OUTPUTS_INIT;
    results.tokens = &x, sums.tokens = &out;
    NEED(ncclEpCombine(handle, &results, &sums, NULL, stream) == ncclInvalidUsage);
    int mask[64], error;
    NEED(ncclEpMaskQuery(group, mask, stream) == ncclInvalidUsage);
    NEED(ncclEpMaskUpdate(group, mask, stream) == ncclInvalidUsage);
    NEED(ncclEpMaskClean(group, stream) == ncclInvalidUsage);
    NEED(ncclEpGetAsyncError(group, &error) == ncclInvalidUsage);
    NEED(ncclEpErrorClear(group) == ncclInvalidUsage);
    OK(ncclEpHandleDestroy(handle));
    NEED(ncclEpHandleDestroy(handle) == ncclInvalidArgument);
    OK(ncclEpGroupDestroy(group));
    NEED(ncclEpGroupDestroy(group) == ncclInvalidArgument);

    size_t sizes[2] = {4, 5};
    ncclEpTensor_t *made;
    OK(ncclEpTensorAlloc(&made, 2, ncclBfloat16, sizes, NULL));
    NEED(made->ndim == 2 && made->sizes[1] == 5 && made->sizes != sizes && made->data == NULL);
    OK(ncclEpTensorDestroy(made));
    NEED(ncclEpTensorDestroy(made) == ncclInvalidArgument);
    OK(ncclEpTensorDestroy(NULL));
    NEED(ncclEpTensorAlloc(&made, 0, ncclBfloat16, sizes, NULL) == ncclInvalidArgument);
}

int main(int argc, char **argv) {
    rank = number("RANK"), ranks = number("WORLD_SIZE"), experts = ranks * LOCAL;
    NEED(argc == 2);
    ncclUniqueId id;
    if (rank == 0) {
        /* The name appears when the file is whole. */
        char draft[4096];
        snprintf(draft, sizeof draft, "%s.draft", argv[1]);
        OK(ncclGetUniqueId(&id));
        FILE *file = fopen(draft, "wb");
        NEED(file && fwrite(&id, sizeof id, 1, file) == 1 && fclose(file) == 0);
        NEED(rename(draft, argv[1]) == 0);
    } else {
        FILE *file = NULL;
        for (int i = 0; i < 6000 && !(file = fopen(argv[1], "rb")); i++) usleep(10000);
        NEED(file && fread(&id, sizeof id, 1, file) == 1 && fclose(file) == 0);
    }
    CUcontext context;
    ncclComm_t comm;
    NEED(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, number("LOCAL_RANK")) == 0);
    NEED(cuCtxSetCurrent(context) == 0 && cuStreamCreate(&stream, 1) == 0);
    OK(ncclCommInitRank(&comm, ranks, id, rank));
    bring();
    refused(comm);
    low_latency(comm, 0);
    low_latency(comm, 1);
    throughput(comm);
    OK(ncclCommFinalize(comm));
    OK(ncclCommDestroy(comm));
    printf("rank %d of %d: right\n", rank, ranks);
    return 0;
}
