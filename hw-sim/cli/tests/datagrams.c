/* Queue pairs without connections (UD) and with unreliable ones (UC), through the real verbs library.
 * Each job checks what the documentation promises, and what must not work. */
#include "adapters.h"

enum { GRH = 40, KEY = 0x1234567 };

/* With the work request interface, for these operations; null if they are refused. */
static struct ibv_qp *make_of_extended(enum ibv_qp_type type, uint64_t operations) {
    struct ibv_qp_init_attr_ex init = {
        .send_cq = cq, .recv_cq = cq, .qp_type = type, .pd = pd, .send_ops_flags = operations,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1,
                 .max_inline_data = 64 } };
    return ibv_create_qp_ex(context, &init);
}

static void datagram_to_rts(struct ibv_qp *qp, uint32_t key) {
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = key };
    SAME(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), 0);
    attr.qp_state = IBV_QPS_RTR;
    SAME(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
    attr.qp_state = IBV_QPS_RTS;
    SAME(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
}

static struct ibv_qp *datagrams(uint32_t key) {
    struct ibv_qp *qp = make_of(IBV_QPT_UD);
    datagram_to_rts(qp, key);
    return qp;
}

static int is_ethernet(void) { return port.link_layer == IBV_LINK_LAYER_ETHERNET; }

/* Our own port, by the GID with this index or, with -1, by its LID. */
static struct ibv_ah_attr route(int index) {
    struct ibv_ah_attr attr = { .dlid = port.lid, .port_num = 1 };
    if (index >= 0) {
        attr.is_global = 1;
        attr.grh.sgid_index = index;
        SAME(ibv_query_gid(context, 1, index, &attr.grh.dgid), 0);
    }
    return attr;
}

static struct ibv_ah *handle(int index) {
    struct ibv_ah_attr attr = route(index);
    struct ibv_ah *ah = ibv_create_ah(pd, &attr);
    CHECK(ah);
    return ah;
}

static int send_to(struct ibv_qp *qp, uint64_t id, struct ibv_ah *ah, uint32_t number, uint32_t key,
                   struct ibv_sge piece, int opcode) {
    struct ibv_send_wr *bad, wr = { .wr_id = id, .sg_list = &piece, .num_sge = 1, .opcode = opcode,
                                    .send_flags = IBV_SEND_SIGNALED, .imm_data = 0x12345678 };
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = number;
    wr.wr.ud.remote_qkey = key;
    return ibv_post_send(qp, &wr, &bad);
}

static struct ibv_wc success(uint64_t id) {
    struct ibv_wc wc = next();
    SAME(wc.wr_id, id);
    if (wc.status) FAIL("request %lld: %s", (long long)id, ibv_wc_status_str(wc.status));
    return wc;
}

/* Completions of a send and of the receive that it fills may come in any order. */
static struct ibv_wc both(uint64_t sent, uint64_t received) {
    struct ibv_wc first = next(), second = next();
    SAME(first.status, IBV_WC_SUCCESS);
    SAME(second.status, IBV_WC_SUCCESS);
    if (first.wr_id == sent) {
        SAME(second.wr_id, received);
        return second;
    }
    SAME(first.wr_id, received);
    SAME(second.wr_id, sent);
    return first;
}

static void nothing_comes(void) {
    struct ibv_wc wc;
    for (int i = 0; i < 2000; i++) SAME(ibv_poll_cq(cq, 1, &wc), 0);
}

static void answer(struct ibv_qp *from, struct ibv_qp *to, struct ibv_wc *wc, uint32_t offset) {
    struct ibv_ah *back =
        ibv_create_ah_from_wc(pd, wc, (struct ibv_grh *)(memory + offset), 1);
    CHECK(back);
    receive(to, 20, sge(3 * 8192, 1000));
    memcpy(memory + 2 * 8192, "answer", 7);
    SAME(send_to(from, 21, back, wc->src_qp, KEY, sge(2 * 8192, 7), IBV_WR_SEND), 0);
    struct ibv_wc got = both(21, 20);
    SAME(got.src_qp, from->qp_num);
    SAME(strcmp((char *)memory + 3 * 8192 + GRH, "answer"), 0);
    SAME(ibv_destroy_ah(back), 0);
}

/* A datagram arrives behind room for a header, names its sender, and can be answered. */
static void job_datagrams(void) {
    a = datagrams(KEY);
    b = datagrams(KEY);
    int mtu = 128 << port.active_mtu;
    for (int index = is_ethernet() ? 0 : -1; index < port.gid_tbl_len; index++) {
        struct ibv_ah *ah = handle(index);
        for (int length = 0; length <= mtu; length = length ? 8 * length : 1) {
            for (int i = 0; i < length; i++) memory[i] = i + length;
            memset(memory + 8192, 0, 8192);
            receive(b, 1, sge(8192, 8192));
            SAME(send_to(a, 2, ah, b->qp_num, KEY, sge(0, length), IBV_WR_SEND_WITH_IMM), 0);
            struct ibv_wc wc = both(2, 1);
            SAME(wc.byte_len, length + GRH);
            SAME(wc.src_qp, a->qp_num);
            SAME(wc.slid, port.lid);
            SAME(wc.wc_flags, IBV_WC_WITH_IMM | (index >= 0 ? IBV_WC_GRH : 0));
            SAME(wc.imm_data, 0x12345678);
            SAME(memcmp(memory, memory + 8192 + GRH, length), 0);
            CHECK(length == mtu || memory[8192 + GRH + length] == 0);
            if (length == 8) answer(b, a, &wc, 8192);
        }
        SAME(ibv_destroy_ah(ah), 0);
    }
    /* By the key of the sender itself, which programs ask for with the highest bit. */
    struct ibv_ah *ah = handle(is_ethernet() ? 3 : -1);
    receive(b, 1, sge(8192, 8192));
    SAME(send_to(a, 2, ah, b->qp_num, 1u << 31, sge(0, 8), IBV_WR_SEND), 0);
    both(2, 1);
    /* To itself. */
    receive(a, 3, sge(8192, 8192));
    SAME(send_to(a, 4, ah, a->qp_num, KEY, sge(0, 8), IBV_WR_SEND), 0);
    SAME(both(4, 3).src_qp, a->qp_num);
}

/* What nobody waits for, or has no right to come, is lost; its sender learns nothing of it. */
static void job_lost(void) {
    struct ibv_ah *ah = handle(is_ethernet() ? 3 : -1);
    a = datagrams(KEY);
    b = datagrams(KEY);
    struct ibv_qp *connected = make_of(IBV_QPT_RC);
    SAME(to_init(connected), 0);
    SAME(send_to(a, 1, ah, b->qp_num, KEY, sge(0, 8), IBV_WR_SEND), 0); /* no receive request */
    success(1);
    nothing_comes();
    receive(b, 9, sge(8192, 100));
    SAME(send_to(a, 2, ah, b->qp_num, KEY + 1, sge(0, 8), IBV_WR_SEND), 0); /* another key */
    success(2);
    SAME(send_to(a, 3, ah, 0xfffffe, KEY, sge(0, 8), IBV_WR_SEND), 0); /* nobody */
    success(3);
    SAME(send_to(a, 4, ah, connected->qp_num, KEY, sge(0, 8), IBV_WR_SEND), 0);
    success(4);
    nothing_comes();
    memory[0] = 77;
    SAME(send_to(a, 5, ah, b->qp_num, KEY, sge(0, 8), IBV_WR_SEND), 0);
    both(5, 9);
    SAME(memory[8192 + GRH], 77);
    /* The receiver goes, and another comes. */
    ibv_destroy_qp(b);
    SAME(send_to(a, 6, ah, b->qp_num, KEY, sge(0, 8), IBV_WR_SEND), 0);
    success(6);
    /* Many: the fabric loses none of those that find a receive request. */
    b = datagrams(KEY);
    for (int round = 0; round < 500; round++) {
        for (int i = 0; i < 8; i++) receive(b, 100 + i, sge(8192 + 4096 * i, 4096));
        for (int i = 0; i < 8; i++)
            SAME(send_to(a, i, ah, b->qp_num, KEY, sge(0, 1000), IBV_WR_SEND), 0);
        int seen = 0, sent = 0;
        while (seen < 8 || sent < 8) {
            struct ibv_wc wc = next();
            SAME(wc.status, IBV_WC_SUCCESS);
            if (wc.opcode & IBV_WC_RECV) SAME(wc.wr_id, 100 + seen++);
            else SAME(wc.wr_id, sent++);
        }
    }
}

/* A sender's own mistake stops its send queue, until it is told to go on; it still receives. */
static void stopped(struct ibv_ah *ah, struct ibv_sge piece, int status) {
    SAME(send_to(a, 1, ah, b->qp_num, KEY, piece, IBV_WR_SEND), 0);
    SAME(send_to(a, 2, ah, b->qp_num, KEY, sge(0, 8), IBV_WR_SEND), 0);
    expect(1, status);
    expect(2, IBV_WC_WR_FLUSH_ERR);
    SAME(state(a), IBV_QPS_SQE);
    receive(a, 3, sge(8192, 100));
    SAME(send_to(b, 4, ah, a->qp_num, KEY, sge(0, 8), IBV_WR_SEND), 0);
    both(4, 3);
    SAME(send_to(a, 5, ah, b->qp_num, KEY, sge(0, 8), IBV_WR_SEND), 0);
    expect(5, IBV_WC_WR_FLUSH_ERR);
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };
    SAME(ibv_modify_qp(a, &attr, IBV_QP_STATE), 0);
    receive(b, 6, sge(8192, 100));
    SAME(send_to(a, 7, ah, b->qp_num, KEY, sge(0, 8), IBV_WR_SEND), 0);
    both(7, 6);
}

static void job_mistakes(void) {
    struct ibv_ah *ah = handle(is_ethernet() ? 3 : -1);
    a = datagrams(KEY);
    b = datagrams(KEY);
    stopped(ah, sge(0, (128 << port.active_mtu) + 1), IBV_WC_LOC_LEN_ERR);
    struct ibv_sge bad_key = sge(0, 8);
    bad_key.lkey ^= 0xff00;
    stopped(ah, bad_key, IBV_WC_LOC_PROT_ERR);
    stopped(ah, sge(BYTES - 4, 8), IBV_WC_LOC_PROT_ERR);
    /* A handle of another protection domain. */
    struct ibv_pd *own = pd, *elsewhere = ibv_alloc_pd(context);
    CHECK(pd = elsewhere);
    struct ibv_ah *foreign = handle(is_ethernet() ? 3 : -1);
    pd = own;
    SAME(send_to(a, 1, foreign, b->qp_num, KEY, sge(0, 8), IBV_WR_SEND), 0);
    expect(1, IBV_WC_LOC_QP_OP_ERR);
    SAME(state(a), IBV_QPS_SQE);
    struct ibv_qp_attr on = { .qp_state = IBV_QPS_RTS };
    SAME(ibv_modify_qp(a, &on, IBV_QP_STATE), 0);
    SAME(ibv_destroy_ah(foreign), 0);
    SAME(ibv_dealloc_pd(elsewhere), 0);
    /* One that was destroyed, twice. */
    struct ibv_ah *gone = handle(is_ethernet() ? 3 : -1);
    SAME(ibv_destroy_ah(gone), 0);
    SAME(send_to(a, 1, gone, b->qp_num, KEY, sge(0, 8), IBV_WR_SEND), EINVAL);
    SAME(ibv_destroy_ah(gone), EINVAL);
    /* Refused when they are posted. */
    SAME(send_to(a, 1, NULL, b->qp_num, KEY, sge(0, 8), IBV_WR_SEND), EINVAL);
    SAME(send_to(a, 1, ah, b->qp_num, KEY, sge(0, 8), IBV_WR_RDMA_WRITE), EINVAL);
    SAME(send_to(a, 1, ah, b->qp_num, KEY, sge(0, 8), IBV_WR_RDMA_READ), EINVAL);
    /* Handles that lead nowhere. */
    struct ibv_ah_attr attr = route(is_ethernet() ? 3 : -1);
    attr.port_num = 2;
    CHECK(!ibv_create_ah(pd, &attr) && errno == EINVAL);
    attr = route(0);
    attr.grh.sgid_index = 99;
    CHECK(!ibv_create_ah(pd, &attr) && errno == EINVAL);
    if (is_ethernet()) {
        attr = route(-1);
        CHECK(!ibv_create_ah(pd, &attr) && errno == EINVAL);
    }
    /* A receive request that is too small ends the receiver, and nothing is written past it. */
    memset(memory + 8192, 0, 8192);
    receive(b, 8, sge(8192, GRH + 99));
    SAME(send_to(a, 9, ah, b->qp_num, KEY, sge(0, 100), IBV_WR_SEND), 0);
    struct ibv_wc first = next(), second = next();
    struct ibv_wc *got = first.wr_id == 8 ? &first : &second;
    SAME(got->wr_id, 8);
    SAME(got->status, IBV_WC_LOC_LEN_ERR);
    SAME(state(b), IBV_QPS_ERR);
    for (int i = 0; i < 8192; i++) SAME(memory[8192 + i], 0);
    /* Attributes of connections mean nothing here. */
    struct ibv_qp *fresh = make_of(IBV_QPT_UD);
    struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
    SAME(ibv_modify_qp(fresh, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT
                                         | IBV_QP_ACCESS_FLAGS), EINVAL);
    CHECK(!make_of_extended(IBV_QPT_UD, IBV_QP_EX_WITH_RDMA_WRITE) && errno == EOPNOTSUPP);
}

/* Multicast: neither the group nor the way to it. */
static void job_multicast(void) {
    a = datagrams(KEY);
    union ibv_gid group = { .raw = { 0xff, 0x12 } };
    SAME(ibv_attach_mcast(a, &group, 0xc001), EOPNOTSUPP);
    SAME(ibv_detach_mcast(a, &group, 0xc001), EOPNOTSUPP);
    struct ibv_ah_attr attr = route(0);
    attr.grh.dgid = group;
    CHECK(!ibv_create_ah(pd, &attr) && errno == EOPNOTSUPP);
    if (is_ethernet()) return;
    attr = (struct ibv_ah_attr){ .dlid = 0xc001, .port_num = 1 };
    CHECK(!ibv_create_ah(pd, &attr) && errno == EOPNOTSUPP);
    /* A LID that no port has is none of a group: what is sent there is lost. */
    attr.dlid = 0xbfff;
    struct ibv_ah *nobody = ibv_create_ah(pd, &attr);
    CHECK(nobody);
    SAME(send_to(a, 1, nobody, a->qp_num, KEY, sge(0, 8), IBV_WR_SEND), 0);
    success(1);
    SAME(ibv_destroy_ah(nobody), 0);
}

/* Datagrams by `ibv_wr_set_ud_addr`, read by the functions of an extended queue. */
static void job_extended(void) {
    struct ibv_ah *ah = handle(is_ethernet() ? 3 : -1);
    struct ibv_qp *qp = make_of_extended(IBV_QPT_UD, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM);
    CHECK(qp);
    datagram_to_rts(qp, KEY);
    struct ibv_cq_init_attr_ex wanted = { .cqe = 16,
        .wc_flags = IBV_WC_EX_WITH_SRC_QP | IBV_WC_EX_WITH_SLID | IBV_WC_EX_WITH_BYTE_LEN };
    struct ibv_cq_ex *extended = ibv_create_cq_ex(context, &wanted);
    CHECK(extended);
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = ibv_cq_ex_to_cq(extended), .qp_type = IBV_QPT_UD,
        .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
    CHECK(b = ibv_create_qp(pd, &init));
    datagram_to_rts(b, KEY);
    receive(b, 1, sge(8192, 100));
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
    ibv_wr_start(ex);
    ex->wr_id = 2;
    ex->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_send(ex);
    ibv_wr_set_ud_addr(ex, ah, b->qp_num, KEY);
    ibv_wr_set_inline_data(ex, "inline", 7);
    SAME(ibv_wr_complete(ex), 0);
    success(2);
    struct ibv_poll_cq_attr poll = {};
    time_t began = time(NULL);
    while (ibv_start_poll(extended, &poll) == ENOENT)
        if (time(NULL) > began + 20) FAIL("no completion within 20 s");
    SAME(extended->wr_id, 1);
    SAME(ibv_wc_read_src_qp(extended), qp->qp_num);
    SAME(ibv_wc_read_slid(extended), port.lid);
    SAME(ibv_wc_read_byte_len(extended), GRH + 7);
    ibv_end_poll(extended);
    SAME(strcmp((char *)memory + 8192 + GRH, "inline"), 0);
}

static void unreliable_to_rts(struct ibv_qp *qp, uint32_t number) {
    SAME(to_init(qp), 0);
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024,
                                .dest_qp_num = number, .rq_psn = 7,
                                .ah_attr = route(is_ethernet() ? 3 : -1) };
    SAME(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN
                                      | IBV_QP_RQ_PSN), 0);
    attr.qp_state = IBV_QPS_RTS;
    attr.sq_psn = 7;
    SAME(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
}

/* Sends and writes of any length; what fails on the other side is lost without a word. */
static void job_unreliable(void) {
    a = make_of(IBV_QPT_UC);
    b = make_of(IBV_QPT_UC);
    unreliable_to_rts(a, b->qp_num);
    unreliable_to_rts(b, a->qp_num);
    enum { LARGE = 200000, THERE = 400000 };
    for (int i = 0; i < LARGE; i++) memory[i] = i % 251;
    receive(b, 1, sge(THERE, LARGE));
    SAME(post(a, 2, IBV_WR_SEND_WITH_IMM, sge(0, LARGE), 0, 0, 0), 0);
    struct ibv_wc wc = both(2, 1);
    SAME(wc.byte_len, LARGE);
    SAME(wc.imm_data, 0x12345678);
    SAME(memcmp(memory, memory + THERE, LARGE), 0);
    memset(memory + THERE, 0, LARGE);
    receive(b, 3, sge(0, 0));
    SAME(post(a, 4, IBV_WR_RDMA_WRITE_WITH_IMM, sge(0, LARGE), (uintptr_t)memory + THERE, mr->rkey,
              0), 0);
    wc = both(4, 3);
    SAME(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    SAME(memcmp(memory, memory + THERE, LARGE), 0);
    /* Without a receive request, with a bad key, behind the region's end. */
    memset(memory + THERE, 0, LARGE);
    SAME(post(a, 5, IBV_WR_SEND, sge(0, LARGE), 0, 0, 0), 0);
    success(5);
    SAME(post(a, 6, IBV_WR_RDMA_WRITE, sge(0, 8), (uintptr_t)memory + THERE, mr->rkey ^ 0xff00, 0),
         0);
    success(6);
    SAME(post(a, 7, IBV_WR_RDMA_WRITE, sge(0, 8), (uintptr_t)memory + BYTES - 4, mr->rkey, 0), 0);
    success(7);
    nothing_comes();
    SAME(state(a), IBV_QPS_RTS);
    SAME(state(b), IBV_QPS_RTS);
    /* The next message is not concerned. */
    receive(b, 8, sge(THERE, 100));
    SAME(post(a, 9, IBV_WR_SEND, sge(0, 100), 0, 0, 0), 0);
    both(9, 8);
    SAME(memcmp(memory, memory + THERE, 100), 0);
    for (int i = 100; i < LARGE; i++) SAME(memory[THERE + i], 0);
    /* Reads and atomics need answers, which nobody gives. */
    struct ibv_sge piece = sge(0, 8);
    SAME(post(a, 10, IBV_WR_RDMA_READ, piece, (uintptr_t)memory, mr->rkey, 0), EINVAL);
    SAME(post(a, 10, IBV_WR_ATOMIC_FETCH_AND_ADD, piece, (uintptr_t)memory, mr->rkey, 0), EINVAL);
    CHECK(!make_of_extended(IBV_QPT_UC, IBV_QP_EX_WITH_RDMA_READ) && errno == EOPNOTSUPP);
    /* Its own bad key stops the send queue. */
    piece.lkey ^= 0xff00;
    SAME(post(a, 11, IBV_WR_SEND, piece, 0, 0, 0), 0);
    expect(11, IBV_WC_LOC_PROT_ERR);
    SAME(state(a), IBV_QPS_SQE);
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };
    SAME(ibv_modify_qp(a, &attr, IBV_QP_STATE), 0);
    /* The peer goes: whatever is sent is lost. */
    ibv_destroy_qp(b);
    for (int i = 0; i < 100; i++) {
        SAME(post(a, i, IBV_WR_SEND, sge(0, 60000), 0, 0, 0), 0);
        success(i);
    }
}

static void *no_memory(struct ibv_pd *domain, void *own, size_t size, size_t alignment, uint64_t kind) {
    (void)domain, (void)own, (void)size, (void)alignment, (void)kind;
    return IBV_ALLOCATOR_USE_DEFAULT;
}

static void no_free(struct ibv_pd *domain, void *own, void *memory_of_it, uint64_t kind) {
    (void)domain, (void)own, (void)memory_of_it, (void)kind;
}

/* A parent domain takes the place of its protection domain, and keeps what it stands on. */
static void job_domains(void) {
    struct ibv_td_init_attr td_attr = {};
    struct ibv_td *td = ibv_alloc_td(context, &td_attr);
    CHECK(td);
    td_attr.comp_mask = 1;
    CHECK(!ibv_alloc_td(context, &td_attr) && errno == EINVAL);
    struct ibv_pd *below = pd;
    struct ibv_parent_domain_init_attr attr = {
        .pd = below, .td = td, .alloc = no_memory, .free = no_free, .pd_context = &td,
        .comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT };
    struct ibv_pd *parent = ibv_alloc_parent_domain(context, &attr);
    CHECK(parent && parent->context == context);
    attr.pd = parent;
    CHECK(!ibv_alloc_parent_domain(context, &attr) && errno == EINVAL);
    attr.pd = NULL;
    CHECK(!ibv_alloc_parent_domain(context, &attr) && errno == EINVAL);
    SAME(ibv_dealloc_td(td), EBUSY);
    SAME(ibv_dereg_mr(mr), 0);
    SAME(ibv_dealloc_pd(below), EBUSY);
    /* Memory of the one, queue pairs of the other. */
    CHECK(mr = ibv_reg_mr(below, memory, BYTES, ALL));
    pd = parent;
    pair();
    memory[0] = 5;
    SAME(post_write(1, 0, 64, 8), 0);
    expect(1, IBV_WC_SUCCESS);
    SAME(memory[64], 5);
    ibv_destroy_qp(a);
    ibv_destroy_qp(b);
    SAME(ibv_dealloc_pd(parent), 0);
    SAME(ibv_dealloc_td(td), 0);
    SAME(ibv_dereg_mr(mr), 0);
    SAME(ibv_dealloc_pd(below), 0);
}

int main(int count, char **arguments) {
    static const struct job jobs[] = {
        { "datagrams", job_datagrams }, { "lost", job_lost }, { "mistakes", job_mistakes },
        { "extended", job_extended },   { "unreliable", job_unreliable },
        { "domains", job_domains },     { "multicast", job_multicast },
    };
    CHECK(count == 2);
    open_device(getenv("ETHERNET") ? 1 : 0);
    do_job(jobs, sizeof jobs / sizeof *jobs, arguments[1]);
    return 0;
}
