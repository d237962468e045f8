/* Virtual adapters through the real verbs library: each job checks one part of what the InfiniBand
 * specification says, between two queue pairs of one process or of two. */
#include "adapters.h"

/* Every step of the state machine, and what is refused on the way. */
static void job_states(void) {
    struct ibv_qp *qp = make();
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
    a = qp;
    SAME(post_write(1, 0, 64, 8), EINVAL);
    SAME(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT), EINVAL);
    attr.port_num = 2;
    SAME(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT
                                      | IBV_QP_ACCESS_FLAGS), EINVAL);
    SAME(to_rtr(qp, 5, 1, NULL), EINVAL);
    SAME(to_rts(qp), EINVAL);
    SAME(state(qp), IBV_QPS_RESET);
    SAME(to_init(qp), 0);
    SAME(qp->state, IBV_QPS_INIT);
    SAME(post_write(1, 0, 64, 8), EINVAL);
    receive(qp, 9, sge(0, 64));
    SAME(to_rts(qp), EINVAL);
    attr.qp_state = IBV_QPS_RTR;
    SAME(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
    SAME(to_rtr(qp, 5, 1, NULL), 0);
    SAME(post_write(1, 0, 64, 8), EINVAL);
    SAME(to_rts(qp), 0);
    SAME(state(qp), IBV_QPS_RTS);
    attr.qp_state = IBV_QPS_ERR;
    SAME(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
    expect(9, IBV_WC_WR_FLUSH_ERR);
    SAME(post_write(10, 0, 64, 8), 0);
    expect(10, IBV_WC_WR_FLUSH_ERR);
    receive(qp, 11, sge(0, 64));
    expect(11, IBV_WC_WR_FLUSH_ERR);
    SAME(to_init(qp), EINVAL);
    attr.qp_state = IBV_QPS_RESET;
    SAME(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
    SAME(ibv_destroy_qp(qp), 0);
    /* A pair can be reset and connected again. */
    pair();
    SAME(post_write(1, 0, 64, 8), 0);
    expect(1, IBV_WC_SUCCESS);
    SAME(ibv_modify_qp(a, &attr, IBV_QP_STATE), 0);
    SAME(ibv_modify_qp(b, &attr, IBV_QP_STATE), 0);
    connect_to(a, b->qp_num, port.lid);
    connect_to(b, a->qp_num, port.lid);
    SAME(post_write(2, 0, 64, 8), 0);
    expect(2, IBV_WC_SUCCESS);
    struct ibv_qp_init_attr raw = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RAW_PACKET };
    CHECK(!ibv_create_qp(pd, &raw) && errno == EOPNOTSUPP);
}

/* What each verb moves. */
static void job_verbs(void) {
    pair();
    for (int i = 0; i < 300000; i++) memory[i] = i * 7 + (i >> 9);
    SAME(post_write(1, 3, 500001, 300000 - 3), 0);
    expect(1, IBV_WC_SUCCESS);
    SAME(memcmp(memory + 3, memory + 500001, 300000 - 3), 0);
    memset(memory + 500000, 0, 300000);
    SAME(post(a, 2, IBV_WR_RDMA_READ, sge(500000, 299999), (uintptr_t)memory, mr->rkey, 0), 0);
    expect(2, IBV_WC_SUCCESS);
    SAME(memcmp(memory, memory + 500000, 299999), 0);
    receive(b, 3, sge(600000, 100000));
    SAME(post(a, 4, IBV_WR_SEND_WITH_IMM, sge(0, 70000), 0, 0, 0), 0);
    for (int i = 0; i < 2; i++) {
        struct ibv_wc wc = next();
        SAME(wc.status, IBV_WC_SUCCESS);
        if (wc.wr_id == 3) {
            SAME(wc.opcode, IBV_WC_RECV);
            SAME(wc.byte_len, 70000);
            SAME(wc.wc_flags & IBV_WC_WITH_IMM, IBV_WC_WITH_IMM);
            SAME(wc.imm_data, 0x12345678);
            SAME(wc.qp_num, b->qp_num);
        }
    }
    SAME(memcmp(memory, memory + 600000, 70000), 0);
    receive(b, 5, sge(0, 0));
    SAME(post(a, 6, IBV_WR_RDMA_WRITE_WITH_IMM, sge(0, 100), (uintptr_t)memory + 900000, mr->rkey,
              0), 0);
    for (int i = 0; i < 2; i++) {
        struct ibv_wc wc = next();
        SAME(wc.status, IBV_WC_SUCCESS);
        if (wc.wr_id == 5) SAME(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
        if (wc.wr_id == 5) SAME(wc.byte_len, 100);
    }
    /* Inline: the buffer may change as soon as the call returns. Not registered either. */
    char text[] = "inline";
    struct ibv_sge loose = { (uintptr_t)text, sizeof text, 0 };
    SAME(post(a, 7, IBV_WR_RDMA_WRITE, loose, (uintptr_t)memory, mr->rkey, IBV_SEND_INLINE), 0);
    memset(text, 'x', sizeof text);
    expect(7, IBV_WC_SUCCESS);
    SAME(strcmp((char *)memory, "inline"), 0);
    loose.length = 129;
    CHECK(post(a, 8, IBV_WR_RDMA_WRITE, loose, (uintptr_t)memory, mr->rkey, IBV_SEND_INLINE));
    /* Gather and scatter. */
    struct ibv_sge from[3] = { sge(10, 3), sge(100, 40000), sge(7, 1) };
    struct ibv_sge into[2] = { sge(700000, 39000), sge(800000, 2000) };
    struct ibv_recv_wr *bad_r, r = { .wr_id = 9, .sg_list = into, .num_sge = 2 };
    struct ibv_send_wr *bad_s, s = { .wr_id = 10, .sg_list = from, .num_sge = 3,
                                     .opcode = IBV_WR_SEND };
    SAME(ibv_post_recv(b, &r, &bad_r), 0);
    SAME(ibv_post_send(a, &s, &bad_s), 0);
    expect(9, IBV_WC_SUCCESS); /* and the sender was not signaled */
    SAME(memcmp(memory + 10, memory + 700000, 3), 0);
    SAME(memcmp(memory + 100, memory + 700003, 38997), 0);
    SAME(memcmp(memory + 100 + 38997, memory + 800000, 1003), 0);
    SAME(memory[801003], memory[7]);
    /* Atomics. */
    uint64_t *word = (uint64_t *)(memory + 4096), *old = (uint64_t *)(memory + 8192);
    *word = 40;
    struct ibv_sge eight = sge(8192, 8);
    struct ibv_send_wr at = { .wr_id = 11, .sg_list = &eight, .num_sge = 1,
                              .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
                              .send_flags = IBV_SEND_SIGNALED };
    at.wr.atomic.remote_addr = (uintptr_t)word;
    at.wr.atomic.rkey = mr->rkey;
    at.wr.atomic.compare_add = 2;
    SAME(ibv_post_send(a, &at, &bad_s), 0);
    expect(11, IBV_WC_SUCCESS);
    SAME(*word, 42);
    SAME(*old, 40);
    at.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
    at.wr.atomic.compare_add = 42;
    at.wr.atomic.swap = 99;
    SAME(ibv_post_send(a, &at, &bad_s), 0);
    expect(11, IBV_WC_SUCCESS);
    SAME(*word, 99);
    SAME(*old, 42);
    SAME(ibv_post_send(a, &at, &bad_s), 0);
    expect(11, IBV_WC_SUCCESS);
    SAME(*word, 99);
    SAME(*old, 99);
    /* A queue that is full says so and names the request. */
    struct ibv_send_wr many[65];
    for (int i = 0; i < 65; i++) {
        many[i] = (struct ibv_send_wr){ .wr_id = i, .next = i < 64 ? &many[i + 1] : NULL,
                                        .sg_list = &eight, .num_sge = 1,
                                        .opcode = IBV_WR_SEND };
    }
    rnr_retry = 7;
    SAME(ibv_post_send(a, many, &bad_s), ENOMEM);
    SAME(bad_s->wr_id, 64);
}

/* The same through ibv_wr_*. */
static void job_work_requests(void) {
    struct ibv_qp_init_attr_ex init = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd,
        .cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 4, .max_recv_sge = 4,
                 .max_inline_data = 64 },
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND_WITH_IMM
                          | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD };
    CHECK(a = ibv_create_qp_ex(context, &init));
    b = make();
    connect_to(a, b->qp_num, port.lid);
    connect_to(b, a->qp_num, port.lid);
    struct ibv_qp_ex *x = ibv_qp_to_qp_ex(a);
    CHECK(x && !ibv_qp_to_qp_ex(b));
    strcpy((char *)memory, "one");
    receive(b, 9, sge(4096, 64));
    ibv_wr_start(x);
    x->wr_id = 1;
    x->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(x, mr->rkey, (uintptr_t)memory + 100);
    ibv_wr_set_sge(x, mr->lkey, (uintptr_t)memory, 4);
    x->wr_id = 2;
    ibv_wr_send_imm(x, 77);
    ibv_wr_set_inline_data(x, "two", 4);
    SAME(ibv_wr_complete(x), 0);
    for (int i = 0; i < 3; i++) SAME(next().status, IBV_WC_SUCCESS);
    SAME(strcmp((char *)memory + 100, "one"), 0);
    SAME(strcmp((char *)memory + 4096, "two"), 0);
    ibv_wr_start(x);
    x->wr_id = 3;
    ibv_wr_rdma_write(x, mr->rkey, (uintptr_t)memory + 100);
    ibv_wr_set_sge(x, mr->lkey, (uintptr_t)memory + 50, 4);
    ibv_wr_abort(x);
    char big[65];
    ibv_wr_start(x);
    ibv_wr_rdma_write(x, mr->rkey, (uintptr_t)memory + 100);
    ibv_wr_set_inline_data(x, big, sizeof big);
    CHECK(ibv_wr_complete(x));
    struct ibv_sge list[2] = { sge(200, 4), sge(300, 4) };
    ibv_wr_start(x);
    x->wr_id = 4;
    ibv_wr_rdma_read(x, mr->rkey, (uintptr_t)memory + 100);
    ibv_wr_set_sge_list(x, 2, list);
    x->wr_id = 5;
    ibv_wr_atomic_fetch_add(x, mr->rkey, (uintptr_t)memory + 800, 5);
    ibv_wr_set_sge(x, mr->lkey, (uintptr_t)memory + 808, 8);
    SAME(ibv_wr_complete(x), 0);
    expect(4, IBV_WC_SUCCESS);
    expect(5, IBV_WC_SUCCESS);
    SAME(strcmp((char *)memory + 200, "one"), 0);
    SAME(*(uint64_t *)(memory + 800), 5);
    init.send_ops_flags = IBV_QP_EX_WITH_TSO;
    CHECK(!ibv_create_qp_ex(context, &init) && errno == EOPNOTSUPP);
}

static void job_protection(void) {
    uint64_t base = (uintptr_t)memory;
    int write = IBV_WR_RDMA_WRITE, read = IBV_WR_RDMA_READ, add = IBV_WR_ATOMIC_FETCH_AND_ADD;
    int access = IBV_EVENT_QP_ACCESS_ERR, request = IBV_EVENT_QP_REQ_ERR;
    uint8_t *other = aligned_alloc(4096, 8192);
    memset(other, 1, 8192);
    struct ibv_mr *readable = ibv_reg_mr(pd, other, 4096, IBV_ACCESS_REMOTE_READ);
    struct ibv_mr *local = ibv_reg_mr(pd, other + 4096, 4096, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_pd *elsewhere = ibv_alloc_pd(context);
    struct ibv_mr *foreign = ibv_reg_mr(elsewhere, other, 4096, ALL);
    CHECK(readable && local && foreign);
    pair();
    /* Local keys, ranges, rights. */
    struct ibv_sge bad = sge(0, 8);
    bad.lkey += 2;
    refused(IBV_WC_LOC_PROT_ERR, write, bad, base, mr->rkey, -1);
    refused(IBV_WC_LOC_PROT_ERR, write, sge(BYTES - 4, 8), base, mr->rkey, -1);
    bad = (struct ibv_sge){ (uintptr_t)other, 8, foreign->lkey };
    refused(IBV_WC_LOC_PROT_ERR, write, bad, base, mr->rkey, -1);
    bad = (struct ibv_sge){ (uintptr_t)other, 8, readable->lkey };
    refused(IBV_WC_LOC_PROT_ERR, read, bad, base, mr->rkey, -1);
    /* Remote ones. */
    refused(IBV_WC_REM_ACCESS_ERR, write, sge(0, 8), base, mr->rkey ^ 0x1000, access);
    refused(IBV_WC_REM_ACCESS_ERR, write, sge(0, 8), base + BYTES - 4, mr->rkey, access);
    refused(IBV_WC_REM_ACCESS_ERR, write, sge(0, 8), base - 1, mr->rkey, access);
    refused(IBV_WC_REM_ACCESS_ERR, write, sge(0, 8), (uintptr_t)other, readable->rkey, access);
    refused(IBV_WC_REM_ACCESS_ERR, write, sge(0, 8), (uintptr_t)other, foreign->rkey, access);
    refused(IBV_WC_REM_ACCESS_ERR, read, sge(0, 8), (uintptr_t)other + 4096, local->rkey, access);
    refused(IBV_WC_REM_ACCESS_ERR, add, sge(0, 8), (uintptr_t)other, readable->rkey, access);
    refused(IBV_WC_REM_INV_REQ_ERR, add, sge(0, 8), base + 4, mr->rkey, request);
    for (int i = 0; i < 8192; i++) SAME(other[i], 1);
    /* A region that is gone. */
    uint32_t gone = readable->rkey;
    SAME(ibv_dereg_mr(readable), 0);
    refused(IBV_WC_REM_ACCESS_ERR, read, sge(0, 8), (uintptr_t)other, gone, access);
    /* The queue pair's own rights. */
    qp_access = IBV_ACCESS_REMOTE_WRITE;
    restart();
    refused(IBV_WC_REM_ACCESS_ERR, read, sge(0, 8), base, mr->rkey, access);
    refused(IBV_WC_REM_ACCESS_ERR, add, sge(0, 8), base, mr->rkey, access);
    qp_access = ALL;
    restart();
    /* A message that is longer than its receive request. */
    receive(b, 20, sge(0, 8));
    receive(b, 21, sge(0, 8));
    SAME(post(a, 22, IBV_WR_SEND, sge(64, 9), 0, 0, 0), 0);
    int seen = 0;
    for (int i = 0; i < 3; i++) {
        struct ibv_wc wc = next();
        seen |= wc.wr_id == 20 && wc.status == IBV_WC_LOC_LEN_ERR ? 1 : 0;
        seen |= wc.wr_id == 21 && wc.status == IBV_WC_WR_FLUSH_ERR ? 2 : 0;
        seen |= wc.wr_id == 22 && wc.status == IBV_WC_REM_INV_REQ_ERR ? 4 : 0;
    }
    SAME(seen, 7);
    expect_event(request);
    /* Registrations that must not be. */
    CHECK(!ibv_reg_mr(pd, other, 4096, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
    CHECK(!ibv_reg_mr(pd, (void *)8, 4096, ALL) && errno == EFAULT);
    CHECK(!ibv_reg_mr(pd, (void *)"constant", 4, ALL) && errno == EFAULT);
    CHECK(ibv_reg_mr(pd, (void *)"constant", 4, IBV_ACCESS_REMOTE_READ));
    /* What is in use stays. */
    SAME(ibv_dealloc_pd(elsewhere), EBUSY);
    SAME(ibv_dereg_mr(foreign), 0);
    SAME(ibv_dealloc_pd(elsewhere), 0);
    SAME(ibv_destroy_cq(cq), EBUSY);
}

/* No receive request: for ever, or for as long as was asked. */
static void job_receiver_not_ready(void) {
    pair();
    SAME(post(a, 1, IBV_WR_SEND, sge(0, 8), 0, 0, 0), 0);
    SAME(post(a, 2, IBV_WR_SEND, sge(0, 8), 0, 0, 0), 0);
    struct ibv_wc wc;
    for (int i = 0; i < 10000; i++) SAME(ibv_poll_cq(cq, 1, &wc), 0);
    receive(b, 3, sge(64, 8));
    receive(b, 4, sge(64, 8));
    for (int i = 0; i < 4; i++) SAME(next().status, IBV_WC_SUCCESS);
    rnr_retry = 0;
    restart();
    SAME(post(a, 5, IBV_WR_SEND, sge(0, 8), 0, 0, 0), 0);
    expect(5, IBV_WC_RNR_RETRY_EXC_ERR);
    SAME(state(a), IBV_QPS_ERR);
    rnr_retry = 3;
    restart();
    SAME(post(a, 6, IBV_WR_RDMA_WRITE_WITH_IMM, sge(0, 8), (uintptr_t)memory, mr->rkey, 0), 0);
    expect(6, IBV_WC_RNR_RETRY_EXC_ERR);
    /* Too late: the sender has given up. */
    receive(b, 7, sge(0, 8));
    for (int i = 0; i < 1000; i++) SAME(ibv_poll_cq(cq, 1, &wc), 0);
}

/* Nobody there, or not the one that was meant. */
static void job_unreachable(void) {
    timeout_code = 8, retries = 1;
    a = make();
    connect_to(a, 0xabcdef, 4711);
    SAME(post_write(1, 0, 64, 8), 0);
    SAME(post_write(2, 0, 64, 8), 0);
    expect(1, IBV_WC_RETRY_EXC_ERR);
    expect(2, IBV_WC_WR_FLUSH_ERR);
    ibv_destroy_qp(a);
    /* A peer that is not ready, and one that listens to another. */
    a = make(), b = make();
    connect_to(a, b->qp_num, port.lid);
    SAME(post_write(3, 0, 64, 8), 0);
    expect(3, IBV_WC_RETRY_EXC_ERR);
    ibv_destroy_qp(a);
    a = make();
    connect_to(b, 0x123456, port.lid);
    connect_to(a, b->qp_num, port.lid);
    SAME(post_write(4, 0, 64, 8), 0);
    expect(4, IBV_WC_RETRY_EXC_ERR);
    /* A peer that goes away. */
    restart();
    SAME(post_write(5, 0, 64, 8), 0);
    expect(5, IBV_WC_SUCCESS);
    SAME(ibv_destroy_qp(b), 0);
    SAME(post_write(6, 0, 64, 8), 0);
    expect(6, IBV_WC_RETRY_EXC_ERR);
}

/* Completion events, solicited ones, asynchronous ones. */
static void job_events(void) {
    struct pollfd file = { channel->fd, POLLIN, 0 };
    struct ibv_cq *which;
    void *own;
    struct ibv_wc wc;
    pair();
    SAME(ibv_req_notify_cq(cq, 0), 0);
    SAME(poll(&file, 1, 0), 0);
    SAME(post_write(1, 0, 64, 8), 0);
    SAME(ibv_get_cq_event(channel, &which, &own), 0);
    CHECK(which == cq && own == &cq);
    ibv_ack_cq_events(cq, 1);
    expect(1, IBV_WC_SUCCESS);
    /* One event for each time that it is asked for. */
    SAME(post_write(2, 0, 64, 8), 0);
    expect(2, IBV_WC_SUCCESS);
    SAME(poll(&file, 1, 0), 0);
    /* What came before it is asked for is told at once: the program may not look again. */
    struct ibv_qp_attr to_error = { .qp_state = IBV_QPS_ERR };
    struct ibv_qp *flushed = make();
    SAME(to_init(flushed), 0);
    SAME(ibv_modify_qp(flushed, &to_error, IBV_QP_STATE), 0);
    receive(flushed, 12, sge(64, 8));
    SAME(poll(&file, 1, 0), 0);
    SAME(ibv_req_notify_cq(cq, 0), 0);
    SAME(poll(&file, 1, 20000), 1);
    SAME(ibv_get_cq_event(channel, &which, &own), 0);
    ibv_ack_cq_events(cq, 1);
    expect(12, IBV_WC_WR_FLUSH_ERR);
    SAME(ibv_destroy_qp(flushed), 0);
    /* Solicited ones only. */
    SAME(ibv_req_notify_cq(cq, 1), 0);
    receive(b, 3, sge(64, 8));
    receive(b, 4, sge(64, 8));
    SAME(post(a, 5, IBV_WR_SEND, sge(0, 8), 0, 0, 0), 0);
    for (int i = 0; i < 2; i++) SAME(next().status, IBV_WC_SUCCESS);
    SAME(poll(&file, 1, 0), 0);
    SAME(post(a, 6, IBV_WR_SEND, sge(0, 8), 0, 0, IBV_SEND_SOLICITED), 0);
    SAME(ibv_get_cq_event(channel, &which, &own), 0);
    ibv_ack_cq_events(cq, 1);
    for (int i = 0; i < 2; i++) SAME(next().status, IBV_WC_SUCCESS);
    /* A queue that overruns. */
    struct ibv_cq *small = ibv_create_cq(context, 2, NULL, NULL, 0), *large = cq;
    CHECK(small && small->cqe == 2);
    cq = small;
    struct ibv_qp *x = make();
    cq = large;
    struct ibv_qp *y = make();
    connect_to(x, y->qp_num, port.lid);
    connect_to(y, x->qp_num, port.lid);
    a = x;
    for (int i = 0; i < 4; i++) SAME(post_write(i, 0, 64, 8), 0);
    expect_event(IBV_EVENT_CQ_ERR);
    expect_event(IBV_EVENT_QP_FATAL);
    SAME(state(x), IBV_QPS_ERR);
    SAME(ibv_poll_cq(small, 1, &wc), 1);
    SAME(ibv_destroy_qp(x), 0);
    SAME(ibv_destroy_cq(small), 0);
    /* Events that nobody has read go with their queue. */
    struct ibv_cq *gone = ibv_create_cq(context, 4, NULL, channel, 0);
    cq = gone;
    x = make();
    cq = large;
    SAME(ibv_req_notify_cq(gone, 0), 0);
    struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
    SAME(ibv_modify_qp(x, &error, IBV_QP_STATE), EINVAL);
    SAME(to_init(x), 0);
    SAME(ibv_modify_qp(x, &error, IBV_QP_STATE), 0);
    SAME(to_init(x), EINVAL);
    receive(x, 1, sge(0, 8));
    SAME(poll(&file, 1, 20000), 1);
    SAME(ibv_destroy_qp(x), 0);
    SAME(ibv_destroy_cq(gone), 0);
    SAME(poll(&file, 1, 0), 0);
}

/* One receive queue for two queue pairs. */
static void job_shared_receive(void) {
    struct ibv_srq_init_attr init = { .attr = { .max_wr = 8, .max_sge = 2 } };
    CHECK(srq = ibv_create_srq(pd, &init));
    struct ibv_qp *first = make(), *second = make();
    struct ibv_srq *shared = srq;
    srq = NULL;
    struct ibv_qp *p = make(), *q = make();
    connect_to(first, p->qp_num, port.lid);
    connect_to(p, first->qp_num, port.lid);
    connect_to(second, q->qp_num, port.lid);
    connect_to(q, second->qp_num, port.lid);
    struct ibv_sge piece = sge(4096, 64);
    struct ibv_recv_wr *bad, wr = { .sg_list = &piece, .num_sge = 1 };
    for (int i = 0; i < 8; i++) {
        wr.wr_id = 100 + i;
        SAME(ibv_post_srq_recv(shared, &wr, &bad), 0);
    }
    SAME(ibv_post_srq_recv(shared, &wr, &bad), ENOMEM);
    SAME(ibv_post_recv(first, &wr, &bad), EINVAL);
    struct ibv_srq_attr limit = { .srq_limit = 7 };
    SAME(ibv_modify_srq(shared, &limit, IBV_SRQ_LIMIT), 0);
    for (int i = 0; i < 4; i++)
        SAME(post(i % 2 ? p : q, i, IBV_WR_SEND, sge(0, 8), 0, 0, 0), 0);
    int mask = 0;
    for (int i = 0; i < 8; i++) {
        struct ibv_wc wc = next();
        SAME(wc.status, IBV_WC_SUCCESS);
        if (wc.wr_id >= 100) mask |= 1 << (wc.wr_id - 100);
    }
    SAME(mask, 15);
    expect_event(IBV_EVENT_SRQ_LIMIT_REACHED);
    SAME(ibv_query_srq(shared, &limit), 0);
    SAME(limit.srq_limit, 0);
    SAME(ibv_destroy_srq(shared), EBUSY);
    struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
    SAME(ibv_modify_qp(first, &error, IBV_QP_STATE), 0);
    expect_event(IBV_EVENT_QP_LAST_WQE_REACHED);
    SAME(ibv_destroy_qp(first), 0);
    SAME(ibv_destroy_qp(second), 0);
    SAME(ibv_destroy_srq(shared), 0);
}

static int (*alloc)(uint64_t *, size_t), (*release)(uint64_t), (*load)(void *, uint64_t, size_t),
    (*store)(uint64_t, const void *, size_t), (*export_range)(void *, uint64_t, size_t, int,
                                                              unsigned long long);

static void driver(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *cuda = NULL;
    CHECK(library);
    int (*init)(unsigned) = dlsym(library, "cuInit");
    int (*retain)(void **, int) = dlsym(library, "cuDevicePrimaryCtxRetain");
    int (*current)(void *) = dlsym(library, "cuCtxSetCurrent");
    SAME(init(0), 0);
    SAME(retain(&cuda, 0), 0);
    SAME(current(cuda), 0);
    alloc = dlsym(library, "cuMemAlloc_v2");
    release = dlsym(library, "cuMemFree_v2");
    load = dlsym(library, "cuMemcpyDtoH_v2");
    store = dlsym(library, "cuMemcpyHtoD_v2");
    export_range = dlsym(library, "cuMemGetHandleForAddressRange");
}

/* A kernel that waits for a signal which an adapter writes, and then passes on the data that came
 * before it: it must find them whole. */
static const char *WAITER =
    ".version 6.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry waiter(.param .u64 data, .param .u64 out)\n{\n"
    ".reg .b64 %a<8>;\n.reg .pred %p<3>;\n"
    "ld.param.u64 %a0, [data];\nld.param.u64 %a1, [out];\n"
    "again: ld.acquire.sys.global.u64 %a2, [%a0 + 65536];\n"
    "setp.eq.u64 %p0, %a2, 0;\n@%p0 bra again;\n"
    "mov.u64 %a3, 0;\nmov.u64 %a6, 0;\n"
    "next: add.u64 %a4, %a0, %a3;\nld.global.u64 %a5, [%a4];\nadd.u64 %a6, %a6, %a5;\n"
    "add.u64 %a3, %a3, 8;\nsetp.lt.u64 %p1, %a3, 65536;\n@%p1 bra next;\n"
    "st.global.u64 [%a1], %a6;\nret;\n}\n";

static void job_kernel(void) {
    driver();
    open_device(0);
    pair();
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *module, *function;
    int (*load_module)(void **, const char *) = dlsym(cuda, "cuModuleLoadData");
    int (*get)(void **, void *, const char *) = dlsym(cuda, "cuModuleGetFunction");
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                  void *, void **, void **) = dlsym(cuda, "cuLaunchKernel");
    int (*wait)(void) = dlsym(cuda, "cuCtxSynchronize");
    SAME(load_module(&module, WAITER), 0);
    SAME(get(&function, module, "waiter"), 0);
    uint64_t device, out, sum, zero = 0;
    int fd;
    SAME(alloc(&device, 128 << 10), 0);
    SAME(alloc(&out, 8), 0);
    SAME(export_range(&fd, device, 128 << 10, 1, 0), 0);
    struct ibv_mr *buffer = ibv_reg_dmabuf_mr(pd, 0, 128 << 10, 0, fd, ALL);
    CHECK(buffer);
    uint64_t *words = (uint64_t *)memory;
    for (uint64_t round = 1; round <= 20; round++) {
        SAME(store(device + 65536, &zero, 8), 0);
        void *parameters[] = { &device, &out };
        SAME(launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL), 0);
        for (int i = 0; i < 8192; i++) words[i] = round;
        words[8192] = round;
        SAME(post(a, 1, IBV_WR_RDMA_WRITE, sge(0, 65536), 0, buffer->rkey, 0), 0);
        SAME(post(a, 2, IBV_WR_RDMA_WRITE, sge(65536, 8), 65536, buffer->rkey, 0), 0);
        SAME(wait(), 0);
        SAME(load(&sum, out, 8), 0);
        SAME(sum, 8192 * round);
        expect(1, IBV_WC_SUCCESS);
        expect(2, IBV_WC_SUCCESS);
    }
}

/* GPU memory as a dma-buf, and as a plain address where the machine has peer memory. The driver is
 * loaded before the verbs library has asked for its providers. */
static void job_gpu(void) {
    driver();
    open_device(0);
    pair();
    uint64_t device;
    char text[32];
    int fd = -1;
    SAME(alloc(&device, 1 << 20), 0);
    SAME(store(device + 8192, "from before", 12), 0);
    SAME(export_range(&fd, device + 4096, 8192, 1, 0), 0);
    CHECK(fd >= 0);
    CHECK(export_range(&fd, device + 1, 4096, 1, 0) != 0);
    CHECK(export_range(&fd, device, 2 << 20, 1, 0) != 0);
    struct ibv_mr *buffer = ibv_reg_dmabuf_mr(pd, 0, 8192, 0x1000, fd, ALL);
    CHECK(buffer);
    CHECK(!ibv_reg_dmabuf_mr(pd, 4096, (1 << 20), 0, fd, ALL) && errno == EINVAL);
    CHECK(!ibv_reg_dmabuf_mr(pd, 0, 8192, 0, context->async_fd, ALL) && errno == EINVAL);
    close(fd);
    int read = IBV_WR_RDMA_READ, write = IBV_WR_RDMA_WRITE;
    SAME(post(a, 1, read, sge(0, 12), 0x1000 + 4096, buffer->rkey, 0), 0);
    expect(1, IBV_WC_SUCCESS);
    SAME(strcmp((char *)memory, "from before"), 0);
    strcpy((char *)memory, "to the GPU");
    SAME(post(a, 2, write, sge(0, 11), 0x1000, buffer->rkey, 0), 0);
    expect(2, IBV_WC_SUCCESS);
    SAME(load(text, device + 4096, 11), 0);
    SAME(strcmp(text, "to the GPU"), 0);
    /* A dma-buf keeps its memory; a plain address does not. */
    struct ibv_mr *plain = ibv_reg_mr(pd, (void *)device, 1 << 20, ALL);
    if (getenv("NO_PEER_MEMORY")) {
        CHECK(!plain && errno == EFAULT);
        SAME(release(device), 0);
    } else {
        CHECK(plain);
        SAME(post(a, 3, write, sge(0, 11), device + 100, plain->rkey, 0), 0);
        expect(3, IBV_WC_SUCCESS);
        SAME(load(text, device + 100, 11), 0);
        SAME(strcmp(text, "to the GPU"), 0);
        SAME(release(device), 0);
        SAME(post(a, 4, write, sge(0, 11), device + 100, plain->rkey, 0), 0);
        expect(4, IBV_WC_REM_ACCESS_ERR);
        restart();
    }
    SAME(post(a, 5, read, sge(64, 11), 0x1000, buffer->rkey, 0), 0);
    expect(5, IBV_WC_SUCCESS);
    SAME(strcmp((char *)memory + 64, "to the GPU"), 0);
}

/* Signals: each write lands after the ones before it, seen by another thread's plain spinning. */
static void job_order(void) {
    pair();
    enum { ROUNDS = 3000 };
    volatile uint64_t *flag = (volatile uint64_t *)(memory + 512 * 1024);
    uint64_t *source = (uint64_t *)memory, *target = (uint64_t *)(memory + 256 * 1024);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        int words = 1 + round * 37 % 3000;
        for (int i = 0; i < words; i++) source[i] = round;
        source[4000] = round;
        SAME(post_write(1, 0, 256 * 1024, words * 8), 0);
        SAME(post_write(2, 4000 * 8, 512 * 1024, 8), 0);
        /* Nobody polls: the adapter's own engine must serve. */
        while (*flag != round) {}
        for (int i = 0; i < words; i++) SAME(target[i], round);
        expect(1, IBV_WC_SUCCESS);
        expect(2, IBV_WC_SUCCESS);
    }
}

/* Rounds in which a signal was seen before all data of the write in front of it. */
static int too_early(struct ibv_mr *of_data, struct ibv_mr *of_signal) {
    enum { ROUNDS = 500 };
    volatile uint64_t *flag = (volatile uint64_t *)(memory + 512 * 1024);
    volatile uint64_t *target = (volatile uint64_t *)(memory + 256 * 1024);
    uint64_t *source = (uint64_t *)memory;
    int early = 0;
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        int words = 100 + round * 37 % 3000, missing = 0;
        for (int i = 0; i < words; i++) source[i] = round;
        source[4000] = round;
        struct ibv_sge data = sge(0, words * 8), signal = sge(4000 * 8, 8);
        struct ibv_send_wr *bad, writes[2] = {
            { .wr_id = 1, .next = &writes[1], .sg_list = &data, .num_sge = 1,
              .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
              .wr.rdma = { (uintptr_t)target, of_data->rkey } },
            { .wr_id = 2, .sg_list = &signal, .num_sge = 1,
              .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
              .wr.rdma = { (uintptr_t)flag, of_signal->rkey } },
        };
        /* In one call, so that both are under way together whoever runs when. */
        SAME(ibv_post_send(a, writes, &bad), 0);
        /* On one processor, who places the data runs only if this thread lets it. */
        while (*flag != round) sched_yield();
        for (int i = 0; i < words; i++) missing |= target[i] != round;
        early += missing;
        expect(1, IBV_WC_SUCCESS);
        expect(2, IBV_WC_SUCCESS);
        /* What is reported has landed. */
        for (int i = 0; i < words; i++) SAME(target[i], round);
    }
    *flag = 0;
    return early;
}

/* Where memory is registered with relaxed ordering, and there alone, writes land out of order. */
static void job_relaxed(void) {
    pair();
    struct ibv_mr *relaxed = ibv_reg_mr(pd, memory, BYTES, ALL | IBV_ACCESS_RELAXED_ORDERING);
    CHECK(relaxed);
    SAME(too_early(mr, mr), 0);
    /* A write that may not be passed passes none either. */
    SAME(too_early(relaxed, mr), 0);
    /* By chance: whoever places the data and this thread must run by turns. */
    int early = 0;
    for (int tries = 0; !early && tries < 100; tries++) early = too_early(relaxed, relaxed);
    CHECK(early > 0);
}

/* Threads with a pair and a completion queue each, while another registers and deregisters. */
static volatile int finished;

struct worker {
    struct ibv_qp *from, *to;
    struct ibv_cq *cq;
    uint32_t base;
};

static void *work(void *argument) {
    struct worker *w = argument;
    unsigned seed = w->base;
    struct ibv_wc wc;
    for (int round = 0; round < 400; round++) {
        uint32_t length = 1 + rand_r(&seed) % 50000;
        uint8_t *source = memory + w->base, *target = source + 60000;
        memset(source, round + 1, length);
        int posted = post(w->from, round, IBV_WR_RDMA_WRITE, sge(w->base, length),
                          (uintptr_t)target, mr->rkey, 0);
        SAME(posted, 0);
        while (ibv_poll_cq(w->cq, 1, &wc) == 0) {}
        SAME(wc.status, IBV_WC_SUCCESS);
        SAME(wc.wr_id, round);
        SAME(memcmp(source, target, length), 0);
    }
    return NULL;
}

static void *churn(void *unused) {
    (void)unused;
    static uint8_t mine[65536];
    while (!finished) {
        struct ibv_mr *other = ibv_reg_mr(pd, mine, sizeof mine, ALL);
        CHECK(other);
        SAME(ibv_dereg_mr(other), 0);
    }
    return NULL;
}

static void job_threads(void) {
    enum { THREADS = 4 };
    struct worker workers[THREADS];
    pthread_t threads[THREADS], churner;
    struct ibv_cq *shared = cq;
    for (int i = 0; i < THREADS; i++) {
        struct worker *w = &workers[i];
        CHECK(cq = w->cq = ibv_create_cq(context, 64, NULL, NULL, 0));
        w->from = make();
        cq = shared;
        w->to = make();
        w->base = i * 131072;
        connect_to(w->from, w->to->qp_num, port.lid);
        connect_to(w->to, w->from->qp_num, port.lid);
    }
    pthread_create(&churner, NULL, churn, NULL);
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, &workers[i]);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    finished = 1;
    pthread_join(churner, NULL);
    for (int i = 0; i < THREADS; i++) {
        SAME(ibv_destroy_qp(workers[i].from), 0);
        SAME(ibv_destroy_qp(workers[i].to), 0);
        SAME(ibv_destroy_cq(workers[i].cq), 0);
    }
    SAME(ibv_destroy_cq(cq), 0);
    SAME(ibv_destroy_comp_channel(channel), 0);
    SAME(ibv_dereg_mr(mr), 0);
    SAME(ibv_dealloc_pd(pd), 0);
    SAME(ibv_close_device(context), 0);
}

static void job_port_down(void) {
    SAME(port.state, IBV_PORT_DOWN);
    timeout_code = 8, retries = 1;
    pair();
    SAME(post_write(1, 0, 64, 8), 0);
    expect(1, IBV_WC_RETRY_EXC_ERR);
}

static void job_port_down_later(void) {
    SAME(port.state, IBV_PORT_ACTIVE);
    timeout_code = 8, retries = 1;
    pair();
    for (int i = 0; i < 5; i++) {
        SAME(post_write(i, 0, 64, 8), 0);
        expect(i, IBV_WC_SUCCESS);
    }
    SAME(post_write(5, 0, 64, 8), 0);
    expect(5, IBV_WC_RETRY_EXC_ERR);
    expect_event(IBV_EVENT_PORT_ERR);
    SAME(ibv_query_port(context, 1, &port), 0);
    SAME(port.state, IBV_PORT_DOWN);
}

static void job_qp_error(void) {
    pair();
    for (int i = 0; i < 3; i++) SAME(post_write(i, 0, 64, 8), 0);
    expect(0, IBV_WC_SUCCESS);
    expect(1, IBV_WC_SUCCESS);
    struct ibv_wc wc = next();
    SAME(wc.status, IBV_WC_FATAL_ERR);
    SAME(wc.vendor_err, 0x99);
    expect_event(IBV_EVENT_QP_FATAL);
    SAME(state(a), IBV_QPS_ERR);
}

/* Under delays, reordering and receivers that are not ready all messages arrive, in the order of
 * each queue pair. */
static void job_adverse(void) {
    pair();
    for (int i = 0; i < 60; i++) receive(b, i, sge(4096, 64));
    for (int i = 0; i < 60; i++) {
        *(int *)(memory + 4 * i) = i;
        SAME(post(a, 1000 + i, IBV_WR_SEND, sge(4 * i, 4), 0, 0, 0), 0);
    }
    for (int sent = 0, received = 0; sent + received < 120;) {
        struct ibv_wc wc = next();
        SAME(wc.status, IBV_WC_SUCCESS);
        if (wc.wr_id < 1000) SAME(wc.wr_id, received++);
        else SAME(wc.wr_id, 1000 + sent++);
    }
}

/* Two processes meet through files. */
static uint32_t meet(const char *folder, int rank, uint32_t mine, uint64_t *address,
                     uint32_t *rkey, uint16_t *lid) {
    char name[256], draft[300];
    snprintf(name, sizeof name, "%s/rank%d", folder, rank);
    snprintf(draft, sizeof draft, "%s.draft", name);
    FILE *file = fopen(draft, "w");
    CHECK(file);
    fprintf(file, "%u %llu %u %u\n", mine, (unsigned long long)(uintptr_t)memory, mr->rkey,
            port.lid);
    fclose(file);
    SAME(rename(draft, name), 0);
    snprintf(name, sizeof name, "%s/rank%d", folder, 1 - rank);
    time_t start = time(NULL);
    while (!(file = fopen(name, "r")))
        if (time(NULL) > start + 20) FAIL("the other process did not come");
    unsigned number, key, its_lid;
    unsigned long long its_address;
    SAME(fscanf(file, "%u %llu %u %u", &number, &its_address, &key, &its_lid), 4);
    fclose(file);
    *address = its_address, *rkey = key, *lid = its_lid;
    return number;
}

/* Rank 1 is killed in the middle; rank 0 must learn of it. */
static void job_killed(const char *folder) {
    int rank = atoi(getenv("RANK"));
    /* `hwsim run` ends the others politely; this one has something to find out first. */
    signal(SIGTERM, SIG_IGN);
    timeout_code = 16, retries = 2; /* Long enough for the peer to connect. */
    a = make();
    uint64_t address;
    uint32_t rkey;
    uint16_t lid;
    uint32_t number = meet(folder, rank, a->qp_num, &address, &rkey, &lid);
    CHECK(lid != port.lid); /* Each is on a node of its own. */
    connect_to(a, number, lid);
    volatile uint64_t *flag = (volatile uint64_t *)memory;
    if (rank == 1) {
        while (*flag < 100) {}
        raise(SIGKILL);
    }
    for (uint64_t i = 1;; i++) {
        *(uint64_t *)(memory + 64) = i;
        SAME(post(a, i, IBV_WR_RDMA_WRITE, sge(64, 8), address, rkey, 0), 0);
        struct ibv_wc wc = next();
        if (wc.status == IBV_WC_SUCCESS) continue;
        SAME(wc.status, IBV_WC_RETRY_EXC_ERR);
        CHECK(i > 100);
        puts("learned of it");
        return;
    }
}

int main(int count, char **arguments) {
    static const struct job jobs[] = {
        { "states", job_states }, { "verbs", job_verbs },
        { "work-requests", job_work_requests }, { "protection", job_protection },
        { "receiver-not-ready", job_receiver_not_ready }, { "unreachable", job_unreachable },
        { "events", job_events }, { "shared-receive", job_shared_receive }, { "gpu", job_gpu }, { "kernel", job_kernel },
        { "order", job_order }, { "relaxed", job_relaxed }, { "port-down", job_port_down },
        { "port-down-later", job_port_down_later }, { "qp-error", job_qp_error },
        { "adverse", job_adverse }, { "threads", job_threads },
    };
    CHECK(count >= 2);
    if (strcmp(arguments[1], "gpu") && strcmp(arguments[1], "kernel"))
        open_device(getenv("ETHERNET") ? 1 : 0);
    if (!strcmp(arguments[1], "killed")) {
        CHECK(count == 3);
        job_killed(arguments[2]);
        return 0;
    }
    do_job(jobs, sizeof jobs / sizeof *jobs, arguments[1]);
    return 0;
}
