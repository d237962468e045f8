/* An XRC domain of several processes, through the real verbs library: one connection to a node, and
 * messages for the shared receive queues of two processes there. This process sends; the others do
 * as they are told. */
#include "xrc.h"
#include <sys/socket.h>
#include <sys/wait.h>

enum { LONG = 200000, QUEUE_DEPTH = 64 };

static struct ibv_srq *queue;
static int file;

struct order {
    char what;
    uint32_t number;
};

struct answer {
    uint64_t id, address, word;
    uint32_t queue, pair, key, bytes;
    int status;
};

/* A process that does as it is told. */
struct member {
    pid_t pid;
    int socket;
    struct answer hello;
};

static void tell(int socket, const void *what, size_t bytes) {
    if (write(socket, what, bytes) != (ssize_t)bytes) FAIL("nobody listens");
}

static void hear(int socket, void *what, size_t bytes) {
    if (read(socket, what, bytes) != (ssize_t)bytes) FAIL("nobody speaks");
}

static struct answer ask(struct member *of, char what, uint32_t number) {
    struct order order = { what, number };
    struct answer answer;
    tell(of->socket, &order, sizeof order);
    hear(of->socket, &answer, sizeof answer);
    return answer;
}

static struct ibv_qp *open_receiver(uint32_t number) {
    struct ibv_qp_open_attr attr = { .comp_mask = 0xb, .qp_num = number, .xrcd = domain,
                                     .qp_type = IBV_QPT_XRC_RECV };
    return ibv_open_qp(context, &attr);
}

static void serve(int socket, int first, int late) {
    CHECK(alarm(120) == 0);
    if (late) hear(socket, &late, sizeof late);
    open_device(0);
    CHECK(far_cq = ibv_create_cq(context, 256, NULL, NULL, 0));
    /* The second one must not make it anew, and finds it. */
    if (!first) CHECK(!open_domain(file, O_CREAT | O_EXCL) && errno == EINVAL);
    CHECK(domain = open_domain(file, first ? O_CREAT : 0));
    queue = make_queue(QUEUE_DEPTH);
    struct answer answer = { .address = (uintptr_t)memory, .key = mr->rkey };
    SAME(ibv_get_srq_num(queue, &answer.queue), 0);
    tell(socket, &answer, sizeof answer);
    struct ibv_qp *opened = NULL;
    for (;;) {
        struct order order;
        struct ibv_wc wc;
        if (read(socket, &order, sizeof order) != sizeof order) exit(1);
        memset(&answer, 0, sizeof answer);
        time_t start = time(NULL);
        switch (order.what) {
        case 'm': /* make a receiving end */
            b = make_receiver();
            SAME(to_init(b), 0);
            answer.pair = b->qp_num;
            break;
        case 'c': { /* connect it */
            SAME(to_rtr(b, order.number, port.lid, NULL), 0);
            SAME(to_rts(b), 0);
            break;
        }
        case 'o': /* open that of another process */
            opened = open_receiver(order.number);
            answer.status = opened ? 0 : errno;
            if (opened) answer.pair = opened->qp_num;
            if (opened) answer.word = state(opened);
            break;
        case 'C': /* connect that one */
            SAME(to_init(opened), 0);
            SAME(to_rtr(opened, order.number, port.lid, NULL), 0);
            SAME(to_rts(opened), 0);
            break;
        case 't': { /* change whichever there is */
            struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS, .min_rnr_timer = order.number };
            answer.status = ibv_modify_qp(opened ? opened : b, &attr,
                                          IBV_QP_STATE | IBV_QP_MIN_RNR_TIMER);
            break;
        }
        case 'a': { /* its attributes */
            struct ibv_qp_attr attr;
            struct ibv_qp_init_attr init;
            SAME(ibv_query_qp(opened ? opened : b, &attr, IBV_QP_STATE, &init), 0);
            answer = (struct answer){ .status = attr.qp_state, .word = attr.min_rnr_timer,
                                      .pair = attr.dest_qp_num, .key = attr.rq_psn };
            break;
        }
        case 'E': /* end the connection */
            SAME(ibv_modify_qp(opened, &(struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR },
                               IBV_QP_STATE), 0);
            break;
        case 'x': /* end the handle */
            SAME(ibv_destroy_qp(opened), 0);
            opened = NULL;
            break;
        case 'd': /* end the receiving end */
            SAME(ibv_destroy_qp(b), 0);
            break;
        case 'r': { /* a receive request of so many bytes */
            struct ibv_sge piece = sge(0, order.number);
            struct ibv_recv_wr *bad, wr = { .wr_id = 1000 + order.number, .sg_list = &piece,
                                            .num_sge = 1 };
            memset(memory, 0, order.number);
            SAME(ibv_post_srq_recv(queue, &wr, &bad), 0);
            break;
        }
        case 'w': /* a completion */
            while (ibv_poll_cq(far_cq, 1, &wc) == 0)
                if (time(NULL) > start + 20) FAIL("no completion within 20 s");
            answer = (struct answer){ .id = wc.wr_id, .bytes = wc.byte_len, .pair = wc.qp_num,
                                      .status = wc.status };
            for (uint32_t i = 0; i < wc.byte_len && i < BYTES; i++) answer.word += memory[i];
            break;
        case 'p': /* a word of memory */
            answer.word = *(volatile uint64_t *)(memory + order.number);
            break;
        case 'l': exit(0); /* leave, with all that is open */
        case 'q':
            if (opened) SAME(ibv_destroy_qp(opened), 0);
            SAME(ibv_destroy_srq(queue), 0);
            SAME(ibv_close_xrcd(domain), 0);
            exit(0);
        default: FAIL("what is %c?", order.what);
        }
        tell(socket, &answer, sizeof answer);
    }
}

/* Before this process opens a device: what is open stays its own. */
static struct member start(int first, int late) {
    struct member member;
    int ends[2];
    SAME(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    CHECK((member.pid = fork()) >= 0);
    if (member.pid == 0) {
        close(ends[0]);
        serve(ends[1], first, late);
    }
    close(ends[1]);
    member.socket = ends[0];
    if (!late) hear(member.socket, &member.hello, sizeof member.hello);
    return member;
}

static void begin_late(struct member *member) {
    int go = 1;
    tell(member->socket, &go, sizeof go);
    hear(member->socket, &member->hello, sizeof member->hello);
}

static void end_by(struct member *member, char what) {
    struct order order = { what, 0 };
    int status;
    tell(member->socket, &order, sizeof order);
    CHECK(waitpid(member->pid, &status, 0) == member->pid);
    SAME(status, 0);
}

static void end(struct member *member) {
    end_by(member, 'q');
}

static void murder(struct member *member) {
    SAME(kill(member->pid, SIGKILL), 0);
    CHECK(waitpid(member->pid, NULL, 0) == member->pid);
}

static uint32_t number;

/* a sends, to a receiving end that the owner makes. */
static void join(struct member *owner) {
    struct ibv_qp_init_attr init = { .send_cq = cq, .qp_type = IBV_QPT_XRC_SEND,
                                     .cap = { .max_send_wr = 64, .max_send_sge = 1 } };
    CHECK(a = ibv_create_qp(pd, &init));
    number = ask(owner, 'm', 0).pair;
    SAME(to_init(a), 0);
    SAME(to_rtr(a, number, port.lid, NULL), 0);
    ask(owner, 'c', a->qp_num);
    SAME(to_rts(a), 0);
}

static int post_to(struct member *to, uint64_t id, int opcode, uint32_t bytes, uint64_t remote) {
    struct ibv_sge piece = sge(0, bytes);
    struct ibv_send_wr *bad, wr = { .wr_id = id, .sg_list = &piece, .num_sge = 1,
                                    .opcode = opcode, .send_flags = IBV_SEND_SIGNALED };
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = to->hello.address + remote;
        wr.wr.atomic.rkey = to->hello.key;
        wr.wr.atomic.compare_add = 5;
    } else {
        wr.wr.rdma.remote_addr = to->hello.address + remote;
        wr.wr.rdma.rkey = to->hello.key;
    }
    wr.qp_type.xrc.remote_srqn = to->hello.queue;
    return ibv_post_send(a, &wr, &bad);
}

/* A message of so many bytes arrives at this one, whole. */
static void arrives(struct member *to, uint32_t bytes, uint8_t byte) {
    ask(to, 'r', bytes);
    memset(memory, byte, bytes);
    SAME(post_to(to, bytes, IBV_WR_SEND, bytes, 0), 0);
    expect(bytes, IBV_WC_SUCCESS);
    struct answer got = ask(to, 'w', 0);
    SAME(got.id, 1000 + bytes);
    SAME(got.status, IBV_WC_SUCCESS);
    SAME(got.bytes, bytes);
    SAME(got.pair, number);
    SAME(got.word, (uint64_t)byte * bytes);
}

static struct member members[4];

/* So many processes have the domain, and one more that opens it later. */
static void begin_with(int count) {
    char name[] = "/tmp/xrc-XXXXXX";
    CHECK((file = mkstemp(name)) >= 0 && unlink(name) == 0);
    for (int i = 0; i < count; i++) members[i] = start(i == 0, 0);
    if (count == 3) members[3] = start(0, 1);
    open_device(0);
}

static void begin(void) {
    begin_with(2);
    join(&members[0]);
}

static void finish(void) {
    SAME(ibv_destroy_qp(a), 0);
    ibv_dereg_mr(mr);
    free(memory);
    ibv_close_device(context);
    close(file);
}

/* Each message finds the queue that it names, in the process that has it; so do reads, writes and
 * atomics, which its protection domain allows. */
static void shared(void) {
    begin();
    for (int round = 0; round < 20; round++)
        for (int i = 0; i < 2; i++) arrives(&members[i], round % 4 == 3 ? LONG : 64, 3 + round + i);
    struct member *other = &members[1];
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < 2; i++) {
            *(uint64_t *)memory = 77 + round + i;
            SAME(post_to(&members[i], 1, IBV_WR_RDMA_WRITE, 8, 4096), 0);
            expect(1, IBV_WC_SUCCESS);
            SAME(ask(&members[i], 'p', 4096).word, 77 + round + i);
            SAME(post_to(&members[i], 2, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 4096), 0);
            expect(2, IBV_WC_SUCCESS);
            SAME(*(uint64_t *)memory, 77 + round + i);
            SAME(post_to(&members[i], 3, IBV_WR_RDMA_READ, LONG, 4096), 0);
            expect(3, IBV_WC_SUCCESS);
            SAME(*(uint64_t *)memory, 82 + round + i);
        }
    }
    /* Many under way at once, for both in turns; without a receive request at first. */
    for (int i = 0; i < 32; i++) SAME(post_to(&members[i % 2], 100 + i, IBV_WR_SEND, 64, 0), 0);
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 2; k++) ask(&members[k], 'r', 64);
    for (int i = 0; i < 32; i++) expect(100 + i, IBV_WC_SUCCESS);
    for (int i = 0; i < 32; i++) SAME(ask(&members[i % 2], 'w', 0).status, IBV_WC_SUCCESS);
    /* Another process opens the receiving end by its number. */
    struct answer opened = ask(other, 'o', number);
    SAME(opened.status, 0);
    SAME(opened.pair, number);
    SAME(opened.word, IBV_QPS_RTS);
    ask(other, 'x', 0);
    arrives(other, 64, 9);
    SAME(ask(other, 'o', a->qp_num).status, EINVAL);
    SAME(ask(other, 'o', 0xfffff).status, EINVAL);
    /* What the queue's own protection domain does not allow. */
    other->hello.key ^= 0x5a5a00;
    SAME(post_to(other, 4, IBV_WR_RDMA_WRITE, 8, 4096), 0);
    expect(4, IBV_WC_REM_ACCESS_ERR);
    SAME(ibv_destroy_qp(a), 0);
    ask(&members[0], 'd', 0);
    /* The next connection is a new one. */
    join(&members[0]);
    arrives(other, 64, 17);
    SAME(ibv_destroy_qp(a), 0);
    ask(&members[0], 'd', 0);
    for (int i = 0; i < 2; i++) end(&members[i]);
}

/* A process is killed while a message waits in it. The sender is told, and what the other one has
 * made works on. */
static void killed(void) {
    for (int round = 0; round < 4; round++) {
        begin();
        struct member *other = &members[1];
        arrives(other, 64, 5);
        int opcode = round % 2 ? IBV_WR_RDMA_READ : IBV_WR_SEND, count = 0;
        if (round == 0) {
            /* No receive request: it waits there, if it has come so far. */
            SAME(post_to(other, 0, opcode, 64, 0), 0);
            murder(other);
        } else {
            for (int i = 0; i < 16; i++) ask(other, 'r', LONG);
            for (int i = 0; i < 16; i++) SAME(post_to(other, i, opcode, LONG, 0), 0);
            /* Some may be done. */
            for (; count < 2 * round; count++) expect(count, IBV_WC_SUCCESS);
            murder(other);
            SAME(post_to(other, 16, opcode, LONG, 0), 0);
        }
        struct ibv_wc wc;
        do {
            wc = next();
            SAME(wc.wr_id, count++);
        } while (wc.status == IBV_WC_SUCCESS);
        SAME(wc.status, IBV_WC_REM_INV_REQ_ERR);
        SAME(ibv_destroy_qp(a), 0);
        ask(&members[0], 'd', 0);
        join(&members[0]);
        arrives(&members[0], LONG, 6);
        /* Its queue is gone with it. */
        SAME(post_to(other, 1, IBV_WR_SEND, 8, 0), 0);
        expect(1, IBV_WC_REM_INV_REQ_ERR);
        SAME(ibv_destroy_qp(a), 0);
        ask(&members[0], 'd', 0);
        end(&members[0]);
        ibv_dereg_mr(mr);
        free(memory);
        ibv_close_device(context);
        close(file);
    }
}

/* The process that has made the receiving end is killed: it does not answer any more. */
static void owner_killed(void) {
    begin();
    arrives(&members[1], LONG, 5);
    murder(&members[0]);
    SAME(post_to(&members[1], 1, IBV_WR_SEND, 64, 0), 0);
    expect(1, IBV_WC_RETRY_EXC_ERR);
    SAME(ask(&members[1], 'o', number).status, EINVAL);
    SAME(ibv_destroy_qp(a), 0);
    end(&members[1]);
}

/* The receiving end lives as long as a process holds it, whoever has made it. */
static void maker_ends(void) {
    for (int way = 0; way < 4; way++) {
        begin_with(3);
        join(&members[0]);
        struct member *opener = &members[1], *late = &members[3];
        SAME(ask(opener, 'o', number).status, 0);
        for (int i = 0; i < 3; i++) arrives(&members[i], LONG, 5 + i);
        if (way == 3) {
            /* Messages are under way to the one that goes on. */
            for (int i = 0; i < 16; i++) ask(opener, 'r', LONG);
            for (int i = 0; i < 16; i++) SAME(post_to(opener, i, IBV_WR_SEND, LONG, 0), 0);
            expect(0, IBV_WC_SUCCESS);
        }
        if (way == 0) end_by(&members[0], 'l');
        if (way == 1) ask(&members[0], 'd', 0);
        if (way >= 2) murder(&members[0]);
        /* Whoever joins removes what the dead have left, and nothing else. */
        begin_late(late);
        if (way == 3) {
            for (int i = 1; i < 16; i++) expect(i, IBV_WC_SUCCESS);
            for (int i = 0; i < 16; i++) SAME(ask(opener, 'w', 0).status, IBV_WC_SUCCESS);
        }
        for (int round = 0; round < 4; round++)
            for (int i = way == 1 ? 0 : 1; i < 4; i++)
                arrives(&members[i], round % 2 ? LONG : 64, 9 + 4 * round + i);
        struct answer opened = ask(late, 'o', number);
        SAME(opened.status, 0);
        SAME(opened.word, IBV_QPS_RTS);
        /* The attributes are the same, and the next one changes them. */
        struct answer seen = ask(late, 'a', 0);
        SAME(seen.pair, a->qp_num);
        SAME(seen.key, 7);
        SAME(ask(late, 't', 3).status, 0);
        if (way % 2) murder(opener);
        else ask(opener, 'x', 0);
        arrives(late, LONG, 71);
        arrives(&members[2], 64, 72);
        SAME(ask(late, 'a', 0).word, 3);
        if (way % 2 == 0) arrives(opener, LONG, 73);
        /* With the last one it ends. */
        ask(late, 'x', 0);
        SAME(post_to(late, 1, IBV_WR_SEND, 64, 0), 0);
        expect(1, IBV_WC_RETRY_EXC_ERR);
        SAME(ask(&members[2], 'o', number).status, EINVAL);
        if (way == 1) end(&members[0]);
        if (way % 2 == 0) end(opener);
        end(&members[2]);
        end(late);
        finish();
    }
}

/* Whoever holds the receiving end changes it, and the others see that. */
static void changed(void) {
    begin_with(2);
    struct member *maker = &members[0], *other = &members[1];
    struct ibv_qp_init_attr init = { .send_cq = cq, .qp_type = IBV_QPT_XRC_SEND,
                                     .cap = { .max_send_wr = 64, .max_send_sge = 1 } };
    CHECK(a = ibv_create_qp(pd, &init));
    number = ask(maker, 'm', 0).pair;
    SAME(to_init(a), 0);
    SAME(to_rtr(a, number, port.lid, NULL), 0);
    SAME(ask(other, 'o', number).status, 0);
    /* The maker has gone to INIT; what comes after is the other one's. */
    SAME(ask(other, 'a', 0).status, IBV_QPS_INIT);
    ask(other, 'C', a->qp_num);
    SAME(to_rts(a), 0);
    SAME(ask(maker, 'a', 0).status, IBV_QPS_RTS);
    for (int round = 0; round < 20; round++) {
        struct member *by = &members[round / 2 % 2];
        SAME(ask(by, 't', 1 + round).status, 0);
        for (int i = 0; i < 2; i++) {
            struct answer seen = ask(&members[i], 'a', 0);
            SAME(seen.status, IBV_QPS_RTS);
            SAME(seen.word, 1 + round);
            SAME(seen.pair, a->qp_num);
            SAME(seen.key, 7);
        }
        for (int i = 0; i < 2; i++) arrives(&members[i], round % 4 == 3 ? LONG : 64, 3 + round + i);
    }
    /* Changes while messages are under way to both. */
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 2; k++) ask(&members[k], 'r', LONG);
    for (int i = 0; i < 32; i++) {
        SAME(post_to(&members[i % 2], 100 + i, IBV_WR_SEND, LONG, 0), 0);
        SAME(ask(&members[i / 3 % 2], 't', 1 + i % 30).status, 0);
    }
    for (int i = 0; i < 32; i++) expect(100 + i, IBV_WC_SUCCESS);
    for (int i = 0; i < 32; i++) SAME(ask(&members[i % 2], 'w', 0).status, IBV_WC_SUCCESS);
    ask(other, 'E', 0);
    SAME(ask(maker, 'a', 0).status, IBV_QPS_ERR);
    SAME(ask(maker, 't', 5).status, EINVAL);
    SAME(post_to(maker, 1, IBV_WR_SEND, 64, 0), 0);
    expect(1, IBV_WC_RETRY_EXC_ERR);
    ask(maker, 'd', 0);
    SAME(ask(other, 'a', 0).status, IBV_QPS_ERR);
    ask(other, 'x', 0);
    SAME(ask(maker, 'o', number).status, EINVAL);
    for (int i = 0; i < 2; i++) end(&members[i]);
    finish();
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    CHECK(alarm(120) == 0);
    const struct job jobs[] = {
        { "shared", shared }, { "killed", killed }, { "owner-killed", owner_killed },
        { "maker-ends", maker_ends }, { "changed", changed },
    };
    do_job(jobs, sizeof jobs / sizeof *jobs, arguments[1]);
}
