/* What the programs that try virtual adapters share: a device, two queue pairs that are joined, and
 * checks that end the program. Functions that one of them does not use are marked so. */
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <infiniband/verbs.h>

#define FAIL(...)                                                                                  \
    do {                                                                                           \
        fprintf(stderr, "line %d: ", __LINE__);                                                    \
        fprintf(stderr, __VA_ARGS__);                                                              \
        fprintf(stderr, "\n");                                                                     \
        exit(1);                                                                                   \
    } while (0)
#define CHECK(condition)                                                                           \
    if (!(condition)) FAIL("%s (errno %d)", #condition, errno)
#define SAME(seen, expected)                                                                       \
    do {                                                                                           \
        long long seen_ = (seen), expected_ = (expected);                                          \
        if (seen_ != expected_) FAIL("%s is %lld, expected %lld", #seen, seen_, expected_);        \
    } while (0)

#define UNUSED __attribute__((unused))

enum { BYTES = 1 << 20, ALL = 0xf };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_comp_channel *channel;
static struct ibv_mr *mr;
static uint8_t *memory;
static struct ibv_port_attr port;

/* What a pair of queue pairs is made with; tests change it before. */
static int qp_access = ALL, rnr_retry = 7, timeout_code = 14, retries = 7, capacity = 64;
UNUSED static struct ibv_srq *srq;

/* What a program can be asked to try. */
struct job {
    const char *name;
    void (*job)(void);
};

/* Does the job of this name, and says so. */
static void do_job(const struct job *jobs, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++) {
        if (!strcmp(name, jobs[i].name)) {
            jobs[i].job();
            puts("done");
            return;
        }
    }
    FAIL("no job %s", name);
}

static void open_device(int adapter) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list && list[0]);
    char name[16];
    snprintf(name, sizeof name, "hwsim%d", adapter);
    for (int i = 0; list[i]; i++)
        if (!strcmp(ibv_get_device_name(list[i]), name)) context = ibv_open_device(list[i]);
    CHECK(context);
    ibv_free_device_list(list);
    CHECK(pd = ibv_alloc_pd(context));
    CHECK(channel = ibv_create_comp_channel(context));
    CHECK(cq = ibv_create_cq(context, 256, &cq, channel, 0));
    CHECK(memory = aligned_alloc(4096, BYTES));
    memset(memory, 0, BYTES);
    CHECK(mr = ibv_reg_mr(pd, memory, BYTES, ALL));
    SAME(ibv_query_port(context, 1, &port), 0);
}

static struct ibv_qp *make_of(enum ibv_qp_type type) {
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = type,
        .cap = { .max_send_wr = capacity, .max_recv_wr = capacity, .max_send_sge = 4,
                 .max_recv_sge = 4, .max_inline_data = 128 } };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(qp);
    return qp;
}

UNUSED static struct ibv_qp *make(void) { return make_of(IBV_QPT_RC); }

static int to_init(struct ibv_qp *qp) {
    struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1,
                             .qp_access_flags = qp_access };
    return ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT
                                     | IBV_QP_ACCESS_FLAGS);
}

UNUSED static int to_rtr(struct ibv_qp *qp, uint32_t number, uint16_t lid, union ibv_gid *gid) {
    struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024,
                             .dest_qp_num = number, .rq_psn = 7, .max_dest_rd_atomic = 4,
                             .min_rnr_timer = 1, .ah_attr = { .dlid = lid, .port_num = 1 } };
    if (gid) {
        a.ah_attr.is_global = 1;
        a.ah_attr.grh.dgid = *gid;
    }
    return ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN
                                     | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC
                                     | IBV_QP_MIN_RNR_TIMER);
}

UNUSED static int to_rts(struct ibv_qp *qp) {
    struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTS, .timeout = timeout_code,
                             .retry_cnt = retries, .rnr_retry = rnr_retry, .sq_psn = 7,
                             .max_rd_atomic = 4 };
    return ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT
                                     | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN
                                     | IBV_QP_MAX_QP_RD_ATOMIC);
}

UNUSED static void connect_to(struct ibv_qp *qp, uint32_t number, uint16_t lid) {
    union ibv_gid gid;
    int global = port.link_layer == IBV_LINK_LAYER_ETHERNET;
    if (global) SAME(ibv_query_gid(context, 1, 3, &gid), 0);
    SAME(to_init(qp), 0);
    SAME(to_rtr(qp, number, lid, global ? &gid : NULL), 0);
    SAME(to_rts(qp), 0);
}

static struct ibv_qp *a, *b;

UNUSED static void pair(void) {
    a = make();
    b = make();
    CHECK(a->qp_num != b->qp_num);
    connect_to(a, b->qp_num, port.lid);
    connect_to(b, a->qp_num, port.lid);
}

static struct ibv_wc next(void) {
    struct ibv_wc wc;
    time_t start = time(NULL);
    while (ibv_poll_cq(cq, 1, &wc) == 0)
        if (time(NULL) > start + 20) FAIL("no completion within 20 s");
    return wc;
}

UNUSED static void expect(uint64_t id, int status) {
    struct ibv_wc wc = next();
    SAME(wc.wr_id, id);
    if (wc.status != status)
        FAIL("request %lld: %s, expected %s", (long long)id, ibv_wc_status_str(wc.status),
             ibv_wc_status_str(status));
}

static struct ibv_sge sge(uint32_t offset, uint32_t length) {
    return (struct ibv_sge){ (uintptr_t)memory + offset, length, mr->lkey };
}

static int post(struct ibv_qp *qp, uint64_t id, int opcode, struct ibv_sge piece, uint64_t remote,
                uint32_t rkey, int flags) {
    struct ibv_send_wr *bad, wr = { .wr_id = id, .sg_list = &piece, .num_sge = 1,
                                    .opcode = opcode, .send_flags = flags | IBV_SEND_SIGNALED,
                                    .imm_data = 0x12345678 };
    wr.wr.rdma.remote_addr = remote;
    wr.wr.rdma.rkey = rkey;
    return ibv_post_send(qp, &wr, &bad);
}

UNUSED static int post_write(uint64_t id, uint32_t from, uint32_t to, uint32_t length) {
    return post(a, id, IBV_WR_RDMA_WRITE, sge(from, length), (uintptr_t)memory + to, mr->rkey, 0);
}

UNUSED static void receive(struct ibv_qp *qp, uint64_t id, struct ibv_sge piece) {
    struct ibv_recv_wr *bad, wr = { .wr_id = id, .sg_list = &piece, .num_sge = 1 };
    SAME(ibv_post_recv(qp, &wr, &bad), 0);
}

static int state(struct ibv_qp *qp) {
    struct ibv_qp_attr attributes;
    struct ibv_qp_init_attr init;
    SAME(ibv_query_qp(qp, &attributes, IBV_QP_STATE, &init), 0);
    return attributes.qp_state;
}

UNUSED static void expect_event(int type) {
    struct pollfd file = { context->async_fd, POLLIN, 0 };
    struct ibv_async_event event;
    if (poll(&file, 1, 20000) != 1) FAIL("no asynchronous event within 20 s");
    SAME(ibv_get_async_event(context, &event), 0);
    if (event.event_type != type)
        FAIL("%s, expected %s", ibv_event_type_str(event.event_type), ibv_event_type_str(type));
    ibv_ack_async_event(&event);
}

UNUSED static void restart(void) {
    ibv_destroy_qp(a);
    ibv_destroy_qp(b);
    pair();
}

/* A request that is not allowed fails on the requester with the right status, puts both queue pairs
 * into the error state, flushes what follows, and changes nothing. */
UNUSED static void refused(int expected, int opcode, struct ibv_sge piece, uint64_t remote, uint32_t rkey,
                    int event) {
    SAME(post_write(1, 0, 64, 8), 0);
    SAME(post(a, 2, opcode, piece, remote, rkey, 0), 0);
    SAME(post_write(3, 0, 64, 8), 0);
    expect(1, IBV_WC_SUCCESS);
    struct ibv_wc wc = next();
    SAME(wc.wr_id, 2);
    if (wc.status != expected)
        FAIL("%s, expected %s", ibv_wc_status_str(wc.status), ibv_wc_status_str(expected));
    CHECK(wc.vendor_err != 0);
    SAME(wc.qp_num, a->qp_num);
    expect(3, IBV_WC_WR_FLUSH_ERR);
    SAME(state(a), IBV_QPS_ERR);
    if (event >= 0) expect_event(event);
    SAME(state(b), event >= 0 ? IBV_QPS_ERR : IBV_QPS_RTS);
    restart();
}
