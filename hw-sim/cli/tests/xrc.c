/* Extended reliable connections (XRC), through the real verbs library: one connection, and several
 * shared receive queues that its messages name. */
#include "xrc.h"

enum { QUEUE_DEPTH = 8 };

static uint32_t number_of(struct ibv_srq *queue) {
    uint32_t number = 0;
    SAME(ibv_get_srq_num(queue, &number), 0);
    CHECK(number > 0 && number < 1 << 24);
    return number;
}

static struct ibv_qp *make_sender(void) {
    struct ibv_qp_init_attr init = { .send_cq = cq, .qp_type = IBV_QPT_XRC_SEND,
                                     .cap = { .max_send_wr = 8, .max_send_sge = 1 } };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(qp);
    return qp;
}

/* Each end needs the attributes of its half; those of the other are dropped. */
static void connect_half(struct ibv_qp *qp, uint32_t peer, int sends) {
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .rq_psn = 7,
                                .dest_qp_num = peer, .max_dest_rd_atomic = 4, .min_rnr_timer = 1,
                                .ah_attr = { .dlid = port.lid, .port_num = 1 } };
    int both = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    int own = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    SAME(to_init(qp), 0);
    if (!sends)
        SAME(ibv_modify_qp(qp, &attr, both), EINVAL);
    SAME(ibv_modify_qp(qp, &attr, both | own), 0);
    attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = timeout_code, .sq_psn = 7,
                                 .retry_cnt = retries, .rnr_retry = rnr_retry, .max_rd_atomic = 4 };
    both = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT;
    own = IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    if (sends)
        SAME(ibv_modify_qp(qp, &attr, both), EINVAL);
    SAME(ibv_modify_qp(qp, &attr, both | own), 0);
}

/* a sends, b receives. */
static void connect_xrc(void) {
    a = make_sender();
    b = make_receiver();
    connect_half(a, b->qp_num, 1);
    connect_half(b, a->qp_num, 0);
}

static void receive_in(struct ibv_srq *queue, uint64_t id, struct ibv_sge piece) {
    struct ibv_recv_wr *bad, wr = { .wr_id = id, .sg_list = &piece, .num_sge = 1 };
    SAME(ibv_post_srq_recv(queue, &wr, &bad), 0);
}

static int post_to(uint32_t queue, uint64_t id, int opcode, struct ibv_sge piece, uint32_t to) {
    struct ibv_send_wr *bad, wr = { .wr_id = id, .sg_list = &piece, .num_sge = 1,
                                    .opcode = opcode, .send_flags = IBV_SEND_SIGNALED };
    wr.wr.rdma.remote_addr = (uintptr_t)memory + to;
    wr.wr.rdma.rkey = mr->rkey;
    wr.qp_type.xrc.remote_srqn = queue;
    return ibv_post_send(a, &wr, &bad);
}

static void expect_far(uint64_t id, int status) {
    struct ibv_wc wc;
    time_t start = time(NULL);
    while (ibv_poll_cq(far_cq, 1, &wc) == 0)
        if (time(NULL) > start + 20) FAIL("no completion within 20 s");
    SAME(wc.wr_id, id);
    SAME(wc.status, status);
    SAME(wc.qp_num, b->qp_num);
}

/* A message finds the queue that it names, and waits for a request of that one. */
static void queues(void) {
    struct ibv_srq *one = make_queue(QUEUE_DEPTH), *other = make_queue(QUEUE_DEPTH);
    uint32_t numbers[] = { number_of(one), number_of(other) };
    CHECK(numbers[0] != numbers[1]);
    connect_xrc();
    memset(memory, 0xab, 64);
    receive_in(one, 1, sge(4096, 64));
    receive_in(other, 2, sge(8192, 64));
    SAME(post_to(numbers[1], 10, IBV_WR_SEND, sge(0, 64), 0), 0);
    expect(10, IBV_WC_SUCCESS);
    expect_far(2, IBV_WC_SUCCESS);
    CHECK(memory[8192] == 0xab && memory[8255] == 0xab && memory[8256] == 0 && memory[4096] == 0);
    SAME(post_to(numbers[0], 11, IBV_WR_SEND, sge(0, 64), 0), 0);
    expect(11, IBV_WC_SUCCESS);
    expect_far(1, IBV_WC_SUCCESS);
    CHECK(memory[4096] == 0xab);
    /* Neither has a request now. */
    SAME(post_to(numbers[0], 12, IBV_WR_SEND, sge(0, 8), 0), 0);
    receive_in(one, 3, sge(4096, 64));
    expect(12, IBV_WC_SUCCESS);
    expect_far(3, IBV_WC_SUCCESS);
    SAME(post_to(numbers[0], 13, IBV_WR_RDMA_WRITE, sge(0, 64), 12288), 0);
    expect(13, IBV_WC_SUCCESS);
    CHECK(memory[12288] == 0xab && memory[12351] == 0xab);
    SAME(post_to(numbers[0], 14, IBV_WR_RDMA_READ, sge(16384, 64), 12288), 0);
    expect(14, IBV_WC_SUCCESS);
    CHECK(memory[16384] == 0xab);
    /* A queue that is gone is found no more, also by the connection that has used it last. */
    receive_in(one, 4, sge(4096, 64));
    SAME(post_to(numbers[0], 15, IBV_WR_SEND, sge(0, 8), 0), 0);
    expect(15, IBV_WC_SUCCESS);
    expect_far(4, IBV_WC_SUCCESS);
    SAME(ibv_destroy_srq(one), 0);
    SAME(post_to(numbers[0], 16, IBV_WR_SEND, sge(0, 8), 0), 0);
    expect(16, IBV_WC_REM_INV_REQ_ERR);
    /* What stands on the domain holds it. */
    SAME(ibv_close_xrcd(domain), EBUSY);
    SAME(ibv_destroy_qp(a), 0);
    SAME(ibv_destroy_qp(b), 0);
    SAME(ibv_close_xrcd(domain), EBUSY);
    SAME(ibv_destroy_srq(other), 0);
    SAME(ibv_close_xrcd(domain), 0);
}

/* Numbers of nobody, of another domain, and of a queue that is gone: the sender is told. */
static void strangers(void) {
    struct ibv_xrcd *own = domain;
    CHECK(domain = open_domain(-1, O_CREAT));
    uint32_t elsewhere = number_of(make_queue(QUEUE_DEPTH));
    domain = own;
    struct ibv_srq *gone = make_queue(QUEUE_DEPTH);
    uint32_t numbers[] = { 0, 0xffffff, elsewhere, number_of(gone) };
    SAME(ibv_destroy_srq(gone), 0);
    for (int i = 0; i < 4; i++) {
        for (int opcode = 0; opcode < 2; opcode++) {
            connect_xrc();
            int kind = opcode ? IBV_WR_SEND : IBV_WR_RDMA_WRITE;
            SAME(post_to(numbers[i], 1, kind, sge(0, 8), 4096), 0);
            expect(1, IBV_WC_REM_INV_REQ_ERR);
            SAME(ibv_destroy_qp(a), 0);
            SAME(ibv_destroy_qp(b), 0);
        }
    }
    CHECK(memory[4096] == 0);
    /* Neither end has a receive queue of its own. */
    connect_xrc();
    struct ibv_sge piece = sge(0, 8);
    struct ibv_recv_wr *bad, wr = { .sg_list = &piece, .num_sge = 1 };
    SAME(ibv_post_recv(a, &wr, &bad), EINVAL);
    SAME(ibv_post_recv(b, &wr, &bad), EINVAL);
}

/* A second handle on the receiving end, by its number, holds it. */
static void handles(void) {
    struct ibv_srq *queue = make_queue(QUEUE_DEPTH);
    connect_xrc();
    struct ibv_qp_open_attr attr = { .comp_mask = 0xb, .qp_num = b->qp_num, .xrcd = domain,
                                     .qp_type = IBV_QPT_XRC_RECV };
    struct ibv_qp *again = ibv_open_qp(context, &attr);
    CHECK(again);
    SAME(again->qp_num, b->qp_num);
    attr.qp_num = a->qp_num;
    CHECK(!ibv_open_qp(context, &attr));
    SAME(ibv_destroy_qp(b), 0);
    b = again;
    receive_in(queue, 1, sge(4096, 64));
    SAME(post_to(number_of(queue), 2, IBV_WR_SEND, sge(0, 8), 0), 0);
    expect(2, IBV_WC_SUCCESS);
    expect_far(1, IBV_WC_SUCCESS);
    attr.qp_num = b->qp_num;
    SAME(ibv_destroy_qp(b), 0);
    CHECK(!ibv_open_qp(context, &attr));
}

/* Domains that a file names: whoever opens the file has the same. */
static void files(void) {
    char name[] = "/tmp/xrc-XXXXXX";
    int file = mkstemp(name), again = open(name, O_RDONLY);
    CHECK(file >= 0 && again >= 0 && unlink(name) == 0);
    CHECK(!open_domain(file, 0) && errno == EAGAIN);
    struct ibv_xrcd *first = open_domain(file, O_CREAT), *second = open_domain(again, 0);
    CHECK(first && second);
    CHECK(!open_domain(again, O_CREAT | O_EXCL) && errno == EINVAL);
    domain = first;
    struct ibv_srq *queue = make_queue(QUEUE_DEPTH);
    domain = second;
    connect_xrc();
    receive_in(queue, 1, sge(4096, 64));
    SAME(post_to(number_of(queue), 2, IBV_WR_SEND, sge(0, 8), 0), 0);
    expect(2, IBV_WC_SUCCESS);
    expect_far(1, IBV_WC_SUCCESS);
    SAME(ibv_close_xrcd(first), 0);
    SAME(ibv_close_xrcd(second), EBUSY);
    CHECK(!open_domain(-1, 0) && errno == EINVAL);
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    open_device(0);
    CHECK(far_cq = ibv_create_cq(context, 64, NULL, NULL, 0));
    CHECK(domain = open_domain(-1, O_CREAT));
    const struct job jobs[] = {
        { "queues", queues }, { "strangers", strangers }, { "handles", handles },
        { "files", files },
    };
    do_job(jobs, sizeof jobs / sizeof *jobs, arguments[1]);
}
