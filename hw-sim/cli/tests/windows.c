/* Memory windows, changed registrations and extended completion queues, through the real verbs
 * library. Each job checks what the documentation promises, and what must not work. */
#include "adapters.h"

static struct ibv_mr *region;
static uint8_t *bytes;
static int access_event = IBV_EVENT_QP_ACCESS_ERR;

enum { REMOTE = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };

static void make_region(void) {
    CHECK(bytes = aligned_alloc(4096, 8192));
    memset(bytes, 0, 8192);
    CHECK(region = ibv_reg_mr(pd, bytes, 8192, ALL | IBV_ACCESS_MW_BIND));
}

static struct ibv_mw_bind_info part(struct ibv_mr *of, uint32_t offset, uint32_t length, int access) {
    return (struct ibv_mw_bind_info){ of, (uintptr_t)of->addr + offset, length, access };
}

/* Queue pair b owns the windows, a is the peer. */
static int post_bind(struct ibv_qp *qp, uint64_t id, struct ibv_mw *mw, uint32_t key,
                     struct ibv_mw_bind_info info) {
    struct ibv_send_wr *bad, wr = { .wr_id = id, .opcode = IBV_WR_BIND_MW,
                                    .send_flags = IBV_SEND_SIGNALED };
    wr.bind_mw.mw = mw;
    wr.bind_mw.rkey = key;
    wr.bind_mw.bind_info = info;
    return ibv_post_send(qp, &wr, &bad);
}

static void bind_one(struct ibv_mw *mw, struct ibv_mw_bind_info info, int status) {
    struct ibv_mw_bind bind = { .wr_id = 50, .send_flags = IBV_SEND_SIGNALED, .bind_info = info };
    uint32_t before = mw->rkey;
    SAME(ibv_bind_mw(b, mw, &bind), 0);
    CHECK(mw->rkey != before && mw->rkey >> 8 == before >> 8);
    struct ibv_wc wc = next();
    SAME(wc.wr_id, 50);
    SAME(wc.status, status);
    if (!status) SAME(wc.opcode, IBV_WC_BIND_MW);
}

static void invalidate(struct ibv_qp *qp, uint32_t key, int status) {
    struct ibv_send_wr *bad, wr = { .wr_id = 51, .opcode = IBV_WR_LOCAL_INV,
                                    .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = key };
    SAME(ibv_post_send(qp, &wr, &bad), 0);
    struct ibv_wc wc = next();
    SAME(wc.wr_id, 51);
    SAME(wc.status, status);
    if (!status) SAME(wc.opcode, IBV_WC_LOCAL_INV);
}

static void written(uint32_t offset, uint64_t remote, uint32_t key) {
    memory[0] = 1 + rand() % 255;
    SAME(post(a, 60, IBV_WR_RDMA_WRITE, sge(0, 1), remote, key, 0), 0);
    expect(60, IBV_WC_SUCCESS);
    SAME(bytes[offset], memory[0]);
}

static void not_written(uint64_t remote, uint32_t key) {
    refused(IBV_WC_REM_ACCESS_ERR, IBV_WR_RDMA_WRITE, sge(0, 1), remote, key, access_event);
}

/* A window of type 1 has a part of its region's range and rights, serves every queue pair of its
 * domain, and loses both with the next binding. */
static void job_type_1(void) {
    make_region();
    pair();
    uint64_t base = (uintptr_t)bytes;
    struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
    CHECK(mw && mw->pd == pd && mw->type == IBV_MW_TYPE_1);
    not_written(base, mw->rkey);
    bind_one(mw, part(region, 1024, 512, REMOTE), IBV_WC_SUCCESS);
    uint32_t first = mw->rkey;
    written(1024, base + 1024, first);
    written(1535, base + 1535, first);
    not_written(base + 1023, first);
    not_written(base + 1536, first);
    /* Another pair, made after the binding. */
    written(1024, base + 1024, first);
    /* A key of a window is of no use to its own process. */
    struct ibv_sge own = { base + 1024, 8, first };
    refused(IBV_WC_LOC_PROT_ERR, IBV_WR_RDMA_WRITE, own, (uintptr_t)memory, mr->rkey, -1);
    /* What the binding does not grant, and what the earlier one granted. */
    bind_one(mw, part(region, 0, 4096, IBV_ACCESS_REMOTE_READ), IBV_WC_SUCCESS);
    not_written(base, mw->rkey);
    not_written(base + 1024, first);
    SAME(post(a, 61, IBV_WR_RDMA_READ, sge(0, 8), base, mw->rkey, 0), 0);
    expect(61, IBV_WC_SUCCESS);
    /* Addresses from zero. */
    bind_one(mw, part(region, 2048, 64, REMOTE | IBV_ACCESS_ZERO_BASED), IBV_WC_SUCCESS);
    written(2048 + 63, 63, mw->rkey);
    not_written(64, mw->rkey);
    /* The region cannot go, or change, below a window. */
    SAME(ibv_dereg_mr(region), EBUSY);
    CHECK(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL) && errno == EBUSY);
    bind_one(mw, part(region, 0, 0, 0), IBV_WC_SUCCESS);
    not_written(base, mw->rkey);
    /* Posting is for the other type; a domain with a window stays. */
    SAME(post_bind(b, 1, mw, mw->rkey + 1, part(region, 0, 64, REMOTE)), EINVAL);
    struct ibv_pd *elsewhere = ibv_alloc_pd(context);
    struct ibv_mw *foreign = ibv_alloc_mw(elsewhere, IBV_MW_TYPE_1);
    SAME(ibv_dealloc_pd(elsewhere), EBUSY);
    struct ibv_mr *theirs = ibv_reg_mr(elsewhere, bytes, 64, ALL | IBV_ACCESS_MW_BIND);
    bind_one(foreign, part(theirs, 0, 64, REMOTE), IBV_WC_MW_BIND_ERR);
    SAME(state(b), IBV_QPS_ERR);
    restart();
    SAME(ibv_dereg_mr(theirs), 0);
    SAME(ibv_dealloc_mw(foreign), 0);
    SAME(ibv_dealloc_pd(elsewhere), 0);
    bind_one(mw, part(region, 0, 64, REMOTE), IBV_WC_SUCCESS);
    written(0, base, mw->rkey);
    uint32_t gone = mw->rkey;
    SAME(ibv_dealloc_mw(mw), 0);
    not_written(base, gone);
    SAME(ibv_dereg_mr(region), 0);
}

/* What cannot be bound ends the queue pair with the status for it. */
static void job_bad_bindings(void) {
    make_region();
    struct ibv_mr *plain = ibv_reg_mr(pd, bytes, 4096, ALL);
    struct ibv_mr *constant = ibv_reg_mr(pd, bytes, 4096, IBV_ACCESS_MW_BIND);
    struct ibv_mw *one = ibv_alloc_mw(pd, IBV_MW_TYPE_1), *two = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
    CHECK(plain && constant && one && two);
    CHECK(!ibv_alloc_mw(pd, 3) && errno == EINVAL);
    pair();
    struct ibv_mw_bind_info bad[] = {
        part(plain, 0, 64, REMOTE),               /* no right to bind */
        part(constant, 0, 64, REMOTE),            /* no right to write */
        part(region, 8000, 193, REMOTE),          /* beyond the end */
        { region, (uintptr_t)bytes - 1, 8, REMOTE },
        part(region, 0, 64, REMOTE | IBV_ACCESS_ON_DEMAND),
    };
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        bind_one(one, bad[i], IBV_WC_MW_BIND_ERR);
        restart();
        SAME(post_bind(b, 52, two, ibv_inc_rkey(two->rkey), bad[i]), 0);
        expect(52, IBV_WC_MW_BIND_ERR);
        restart();
    }
    /* Reading needs no right of the region to be written. */
    bind_one(one, part(constant, 0, 64, IBV_ACCESS_REMOTE_READ), IBV_WC_SUCCESS);
    struct ibv_mw_bind bind = { .bind_info = part(region, 0, 64, REMOTE) };
    SAME(ibv_bind_mw(b, two, &bind), EINVAL);
    SAME(post_bind(b, 53, two, two->rkey + 0x100, part(region, 0, 64, REMOTE)), EINVAL);
    SAME(post_bind(b, 53, two, two->rkey, part(region, 0, 0, 0)), 0);
    expect(53, IBV_WC_MW_BIND_ERR);
}

/* A window of type 2 serves the queue pair that bound it, and must be taken back before it is bound
 * again; that pair takes it back itself, or its peer does with a message. */
static void job_type_2(void) {
    make_region();
    pair();
    uint64_t base = (uintptr_t)bytes;
    struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
    CHECK(mw);
    uint32_t key = ibv_inc_rkey(mw->rkey);
    SAME(post_bind(b, 1, mw, key, part(region, 0, 64, REMOTE)), 0);
    expect(1, IBV_WC_SUCCESS);
    written(0, base, key);
    /* Not through another queue pair: a's own memory is the same, and a has not bound it. */
    struct ibv_qp *bound_by = b, *peer = a;
    SAME(post(b, 2, IBV_WR_RDMA_WRITE, sge(0, 8), base, key, 0), 0);
    expect(2, IBV_WC_REM_ACCESS_ERR);
    expect_event(access_event);
    a = peer, b = bound_by;
    /* With its queue pair the window goes. */
    restart();
    not_written(base, key);
    key = ibv_inc_rkey(key);
    SAME(post_bind(b, 3, mw, key, part(region, 64, 64, REMOTE)), 0);
    expect(3, IBV_WC_SUCCESS);
    written(64, base + 64, key);
    invalidate(b, key, IBV_WC_SUCCESS);
    not_written(base + 64, key);
    invalidate(b, key, IBV_WC_MW_BIND_ERR);
    restart();
    /* By the peer's message; the key comes with the completion. */
    key = ibv_inc_rkey(key);
    SAME(post_bind(b, 4, mw, key, part(region, 0, 64, REMOTE)), 0);
    expect(4, IBV_WC_SUCCESS);
    receive(b, 5, sge(512, 64));
    struct ibv_send_wr *bad, wr = { .wr_id = 6, .opcode = IBV_WR_SEND_WITH_INV,
                                    .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = key };
    struct ibv_sge piece = sge(0, 8);
    wr.sg_list = &piece, wr.num_sge = 1;
    SAME(ibv_post_send(a, &wr, &bad), 0);
    for (int i = 0; i < 2; i++) {
        struct ibv_wc wc = next();
        SAME(wc.status, IBV_WC_SUCCESS);
        if (wc.wr_id == 6) continue;
        SAME(wc.wr_id, 5);
        CHECK(wc.wc_flags & IBV_WC_WITH_INV);
        SAME(wc.invalidated_rkey, key);
    }
    not_written(base, key);
    /* A message with a key that opens nothing is an error on both sides. */
    receive(b, 7, sge(512, 64));
    SAME(ibv_post_send(a, &wr, &bad), 0);
    int seen = 0;
    for (int i = 0; i < 2; i++) {
        struct ibv_wc wc = next();
        SAME(wc.status, IBV_WC_REM_INV_REQ_ERR);
        seen |= wc.wr_id == 6 ? 1 : wc.wr_id == 7 ? 2 : 4;
    }
    SAME(seen, 3);
    expect_event(IBV_EVENT_QP_REQ_ERR);
    restart();
    /* Twice without being taken back. */
    key = ibv_inc_rkey(key);
    SAME(post_bind(b, 8, mw, key, part(region, 0, 64, REMOTE)), 0);
    expect(8, IBV_WC_SUCCESS);
    SAME(post_bind(b, 9, mw, ibv_inc_rkey(key), part(region, 0, 64, REMOTE)), 0);
    expect(9, IBV_WC_MW_BIND_ERR);
}

/* Many bindings between many messages: each takes its turn, completions come in order. */
static void job_order_of_bindings(void) {
    make_region();
    pair();
    struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
    uint32_t key = mw->rkey;
    for (int round = 0; round < 200; round++) {
        key = ibv_inc_rkey(key);
        uint64_t id = round * 10;
        SAME(post(b, id, IBV_WR_RDMA_READ, sge(4096, 4096), (uintptr_t)memory, mr->rkey, 0), 0);
        SAME(post_bind(b, id + 1, mw, key, part(region, 0, 64, REMOTE)), 0);
        SAME(post(b, id + 2, IBV_WR_RDMA_WRITE, sge(0, 8192), (uintptr_t)memory + 65536, mr->rkey, 0),
             0);
        struct ibv_send_wr *bad, wr = { .wr_id = id + 3, .opcode = IBV_WR_LOCAL_INV,
                                        .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = key };
        SAME(ibv_post_send(b, &wr, &bad), 0);
        SAME(post(b, id + 4, IBV_WR_RDMA_READ, sge(8192, 64), (uintptr_t)memory, mr->rkey, 0), 0);
        for (int i = 0; i < 5; i++) expect(id + i, IBV_WC_SUCCESS);
    }
}

/* A registration keeps its key when its rights, its domain or its memory change. */
static void job_reregistration(void) {
    make_region();
    struct ibv_mr *changing = ibv_reg_mr(pd, bytes, 4096, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_pd *elsewhere = ibv_alloc_pd(context);
    uint32_t key = changing->rkey;
    uint64_t base = (uintptr_t)bytes;
    int to_access = IBV_REREG_MR_CHANGE_ACCESS, to_pd = IBV_REREG_MR_CHANGE_PD;
    pair();
    not_written(base, key);
    SAME(ibv_rereg_mr(changing, to_access, NULL, NULL, 0, ALL), 0);
    SAME(changing->rkey, key);
    written(0, base, key);
    SAME(ibv_rereg_mr(changing, to_pd, elsewhere, NULL, 0, 0), 0);
    CHECK(changing->pd == elsewhere);
    not_written(base, key);
    SAME(ibv_dealloc_pd(elsewhere), EBUSY);
    SAME(ibv_rereg_mr(changing, to_pd, pd, NULL, 0, 0), 0);
    SAME(ibv_dealloc_pd(elsewhere), 0);
    SAME(ibv_rereg_mr(changing, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, bytes + 4096, 2048, 0), 0);
    CHECK(changing->addr == bytes + 4096 && changing->length == 2048);
    written(4096, base + 4096, key);
    not_written(base, key);
    not_written(base + 4096 + 2048, key);
    /* What is refused changes nothing. */
    CHECK(ibv_rereg_mr(changing, to_access, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE)
          && errno == EINVAL);
    CHECK(ibv_rereg_mr(changing, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, (void *)8, 64, 0)
          && errno == EFAULT);
    written(4096, base + 4096, key);
    SAME(ibv_dereg_mr(changing), 0);
}

/* One completion at a time, its fields by functions. */
static void job_extended_queue(void) {
    struct ibv_cq_init_attr_ex wanted = { .cqe = 256, .channel = channel,
                                          .wc_flags = IBV_WC_STANDARD_FLAGS };
    CHECK(!ibv_create_cq(context, 16, NULL, NULL, context->num_comp_vectors) && errno == EINVAL);
    CHECK(!ibv_create_cq(context, 16, NULL, NULL, -1) && errno == EINVAL);
    wanted.comp_vector = context->num_comp_vectors;
    CHECK(!ibv_create_cq_ex(context, &wanted) && errno == EINVAL);
    wanted.comp_vector = 0;
    wanted.wc_flags |= IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
    CHECK(!ibv_create_cq_ex(context, &wanted) && errno == EOPNOTSUPP);
    wanted.wc_flags = IBV_WC_STANDARD_FLAGS;
    struct ibv_cq_ex *ex = ibv_create_cq_ex(context, &wanted);
    CHECK(ex && ex->channel == channel && ex->cqe == 256);
    struct ibv_cq *plain = cq;
    cq = ibv_cq_ex_to_cq(ex);
    pair();
    struct ibv_poll_cq_attr none = { 0 }, unknown = { 1 };
    SAME(ibv_start_poll(ex, &unknown), EINVAL);
    SAME(ibv_start_poll(ex, &none), ENOENT);
    receive(b, 70, sge(512, 64));
    SAME(post(a, 71, IBV_WR_SEND_WITH_IMM, sge(0, 24), 0, 0, 0), 0);
    int seen = 0, code;
    time_t start = time(NULL);
    while ((code = ibv_start_poll(ex, &none)) == ENOENT)
        if (time(NULL) > start + 20) FAIL("no completion within 20 s");
    SAME(code, 0);
    while (seen != 3) {
        SAME(ex->status, IBV_WC_SUCCESS);
        if (ex->wr_id == 70) {
            SAME(ibv_wc_read_opcode(ex), IBV_WC_RECV);
            SAME(ibv_wc_read_byte_len(ex), 24);
            SAME(ibv_wc_read_imm_data(ex), 0x12345678);
            SAME(ibv_wc_read_wc_flags(ex), IBV_WC_WITH_IMM);
            SAME(ibv_wc_read_qp_num(ex), b->qp_num);
            SAME(ibv_wc_read_slid(ex), 0);
            seen |= 1;
        } else {
            SAME(ex->wr_id, 71);
            SAME(ibv_wc_read_opcode(ex), IBV_WC_SEND);
            SAME(ibv_wc_read_qp_num(ex), a->qp_num);
            SAME(ibv_wc_read_vendor_err(ex), 0);
            seen |= 2;
        }
        while (seen != 3 && (code = ibv_next_poll(ex)) == ENOENT)
            if (time(NULL) > start + 20) FAIL("no completion within 20 s");
    }
    SAME(ibv_next_poll(ex), ENOENT);
    ibv_end_poll(ex);
    /* The plain way works on the same queue, and it has events. */
    SAME(ibv_req_notify_cq(cq, 0), 0);
    SAME(post_write(72, 0, 64, 8), 0);
    struct ibv_cq *told;
    void *cq_context;
    SAME(ibv_get_cq_event(channel, &told, &cq_context), 0);
    CHECK(told == cq);
    ibv_ack_cq_events(cq, 1);
    expect(72, IBV_WC_SUCCESS);
    ibv_destroy_qp(a);
    ibv_destroy_qp(b);
    SAME(ibv_destroy_cq(cq), 0);
    SAME(ibv_destroy_cq(plain), 0);
}

int main(int count, char **arguments) {
    static const struct job jobs[] = {
        { "type-1", job_type_1 },
        { "type-2", job_type_2 },
        { "bad-bindings", job_bad_bindings },
        { "order-of-bindings", job_order_of_bindings },
        { "reregistration", job_reregistration },
        { "extended-queue", job_extended_queue },
    };
    CHECK(count >= 2);
    open_device(0);
    do_job(jobs, sizeof jobs / sizeof *jobs, arguments[1]);
    return 0;
}
