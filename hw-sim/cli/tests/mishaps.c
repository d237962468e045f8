/* What goes wrong while messages are under way, on each transport, through the real verbs library:
 * pieces and keys that lead outside of regions, and queue pairs that end in the middle. */
#include "xrc.h"
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

enum {
    KEY = 0x7654321, GRH = 40, DEPTH = 8, MESSAGE = 60000, ROOM = 65536, DATAGRAM = 1000,
    /* What sources hold while their queue pair is there, and later. */
    BYTE = 7, LATER = 0xee, FOLLOWS = 9,
};

/* A way for messages. */
struct way {
    const char *name;
    enum ibv_qp_type type;
    int opcode, shared;
};

static const struct way ways[] = {
    { "RC sends", IBV_QPT_RC, IBV_WR_SEND, 0 },
    { "RC writes", IBV_QPT_RC, IBV_WR_RDMA_WRITE, 0 },
    { "RC reads", IBV_QPT_RC, IBV_WR_RDMA_READ, 0 },
    { "RC sends to a shared receive queue", IBV_QPT_RC, IBV_WR_SEND, 1 },
    { "UC sends", IBV_QPT_UC, IBV_WR_SEND, 0 },
    { "UC writes", IBV_QPT_UC, IBV_WR_RDMA_WRITE, 0 },
    { "UD sends", IBV_QPT_UD, IBV_WR_SEND, 0 },
    { "XRC sends", IBV_QPT_XRC_SEND, IBV_WR_SEND, 0 },
    { "XRC writes", IBV_QPT_XRC_SEND, IBV_WR_RDMA_WRITE, 0 },
};

enum { WAYS = sizeof ways / sizeof *ways };

static int is_reliable(const struct way *way) {
    return way->type == IBV_QPT_RC || way->type == IBV_QPT_XRC_SEND;
}

/* What one end tells the other. */
struct end {
    uint32_t pair, queue, key;
    uint16_t lid;
    uint64_t address;
};

static struct ibv_srq *queue;
static struct ibv_ah *ah;

static struct end end_of(struct ibv_qp *qp) {
    struct end end = { .pair = qp->qp_num, .key = mr->rkey, .lid = port.lid,
                       .address = (uintptr_t)memory };
    if (qp->qp_type == IBV_QPT_XRC_RECV) SAME(ibv_get_srq_num(queue, &end.queue), 0);
    return end;
}

static struct ibv_qp *make_receiving(const struct way *way) {
    queue = NULL;
    if (way->type == IBV_QPT_XRC_SEND) {
        queue = make_queue(DEPTH);
        return make_receiver();
    }
    if (way->shared) {
        struct ibv_srq_init_attr init = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
        CHECK(queue = ibv_create_srq(pd, &init));
    }
    srq = queue;
    struct ibv_qp *qp = make_of(way->type);
    srq = NULL;
    return qp;
}

static struct ibv_qp *make_sending(const struct way *way) {
    struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = way->type,
                                     .cap = { .max_send_wr = DEPTH, .max_send_sge = 1 } };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(qp);
    return qp;
}

static void join(struct ibv_qp *qp, const struct end *to) {
    if (qp->qp_type != IBV_QPT_UD && qp->qp_type != IBV_QPT_UC) {
        connect_to(qp, to->pair, to->lid);
        return;
    }
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = KEY,
                                .qp_access_flags = ALL, .path_mtu = IBV_MTU_1024,
                                .dest_qp_num = to->pair,
                                .ah_attr = { .dlid = to->lid, .port_num = 1 } };
    int is_datagram = qp->qp_type == IBV_QPT_UD;
    SAME(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT
                                      | (is_datagram ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)), 0);
    attr.qp_state = IBV_QPS_RTR;
    int way_to_peer = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    SAME(ibv_modify_qp(qp, &attr, IBV_QP_STATE | (is_datagram ? 0 : way_to_peer)), 0);
    attr.qp_state = IBV_QPS_RTS;
    SAME(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
    if (is_datagram) CHECK(ah = ibv_create_ah(pd, &attr.ah_attr));
}

static void receive_at(uint64_t id, struct ibv_sge piece) {
    struct ibv_recv_wr *bad, wr = { .wr_id = id, .sg_list = &piece, .num_sge = 1 };
    SAME(queue ? ibv_post_srq_recv(queue, &wr, &bad) : ibv_post_recv(b, &wr, &bad), 0);
}

static void send_one(const struct way *way, uint64_t id, struct ibv_sge piece, const struct end *to,
                     uint64_t offset) {
    struct ibv_send_wr *bad, wr = { .wr_id = id, .sg_list = &piece, .num_sge = 1,
                                    .opcode = way->opcode, .send_flags = IBV_SEND_SIGNALED };
    if (way->type == IBV_QPT_UD) {
        wr.wr.ud.ah = ah;
        wr.wr.ud.remote_qpn = to->pair;
        wr.wr.ud.remote_qkey = KEY;
    } else {
        wr.wr.rdma.remote_addr = to->address + offset;
        wr.wr.rdma.rkey = to->key;
    }
    if (way->type == IBV_QPT_XRC_SEND) wr.qp_type.xrc.remote_srqn = to->queue;
    SAME(ibv_post_send(a, &wr, &bad), 0);
}

static void end_receiving(void) {
    SAME(ibv_destroy_qp(b), 0);
    if (queue) SAME(ibv_destroy_srq(queue), 0);
}

static void end_sending(const struct way *way) {
    SAME(ibv_destroy_qp(a), 0);
    if (way->type == IBV_QPT_UD) SAME(ibv_destroy_ah(ah), 0);
}

/* Completions of the receiver come into a queue of their own, where the way has one. */
static int poll_received(const struct way *way, struct ibv_wc *wc) {
    return ibv_poll_cq(way->type == IBV_QPT_XRC_SEND ? far_cq : cq, 1, wc);
}

/* A receive request whose memory is not the program's to give ends the receiver, with the status
 * for that, and changes nothing. Reliable senders are told. */
static void bad_requests(const struct way *way) {
    uint8_t *other = aligned_alloc(4096, 8192);
    memset(other, 1, 8192);
    struct ibv_mr *readable = ibv_reg_mr(pd, other, 4096, 0);
    struct ibv_pd *elsewhere = ibv_alloc_pd(context);
    struct ibv_mr *foreign = ibv_reg_mr(elsewhere, other + 4096, 4096, ALL);
    CHECK(readable && foreign);
    struct ibv_sge pieces[] = {
        { (uintptr_t)memory, 4096, mr->lkey ^ 0xff00 },
        { (uintptr_t)memory + BYTES - 100, 4096, mr->lkey },
        { (uintptr_t)memory - 4096, 8192, mr->lkey },
        { (uintptr_t)other, 4096, readable->lkey },
        { (uintptr_t)other + 4096, 4096, foreign->lkey },
        { UINT64_MAX - 10, 4096, mr->lkey },
    };
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        a = make_sending(way), b = make_receiving(way);
        struct end to = end_of(b), from = end_of(a);
        join(b, &from);
        if (ah) ibv_destroy_ah(ah), ah = NULL;
        join(a, &to);
        memset(memory, BYTE, 2000);
        receive_at(1, pieces[i]);
        send_one(way, 2, sge(0, DATAGRAM), &to, 0);
        int seen = 0;
        while (seen != 3) {
            struct ibv_wc wc;
            if (!ibv_poll_cq(cq, 1, &wc)) {
                int elsewhere_too = way->type == IBV_QPT_XRC_SEND && !(seen & 1);
                if (!elsewhere_too || !poll_received(way, &wc)) continue;
            }
            int expected = wc.wr_id == 1 ? IBV_WC_LOC_PROT_ERR
                         : is_reliable(way) ? IBV_WC_REM_OP_ERR : IBV_WC_SUCCESS;
            if (wc.status != (unsigned)expected)
                FAIL("%s, piece %zu, request %d: %s", way->name, i, (int)wc.wr_id,
                     ibv_wc_status_str(wc.status));
            seen |= wc.wr_id;
        }
        /* The thread that has reported it may not be done yet. */
        time_t start = time(NULL);
        while (state(b) != IBV_QPS_ERR)
            if (time(NULL) > start + 20) FAIL("%s, piece %zu: still receives", way->name, i);
        end_receiving();
        end_sending(way);
        ah = NULL;
    }
    for (int i = 0; i < 8192; i++) SAME(other[i], 1);
    for (int i = 2000; i < BYTES; i++) SAME(memory[i], 0);
    SAME(ibv_dereg_mr(foreign), 0);
    SAME(ibv_dereg_mr(readable), 0);
    SAME(ibv_dealloc_pd(elsewhere), 0);
    free(other);
}

/* Where a connection of this kind must not write or read, it does not, and the sender is told. */
static void bad_ranges(const struct way *way) {
    uint64_t offsets[] = { BYTES - 4, BYTES, (uint64_t)-8, 1ull << 40, (uint64_t)-1 };
    for (size_t i = 0; i < 5 + 2; i++) {
        a = make_sending(way), b = make_receiving(way);
        struct end to = end_of(b), from = end_of(a);
        join(b, &from);
        join(a, &to);
        struct ibv_sge piece = sge(0, 8);
        if (i == 5) piece = sge(BYTES - 4, 8);
        if (i == 6) to.key ^= 0xff00;
        send_one(way, 1, piece, &to, i < 5 ? offsets[i] : 64);
        struct ibv_wc wc = next();
        unsigned expected = i == 5 ? IBV_WC_LOC_PROT_ERR
                          : is_reliable(way) ? IBV_WC_REM_ACCESS_ERR : IBV_WC_SUCCESS;
        if (wc.status != expected)
            FAIL("%s, range %zu: %s", way->name, i, ibv_wc_status_str(wc.status));
        end_receiving();
        end_sending(way);
    }
}

static void job_outside(void) {
    for (int i = 0; i < WAYS; i++) {
        if (ways[i].opcode == IBV_WR_SEND) bad_requests(&ways[i]);
        else bad_ranges(&ways[i]);
    }
}

/* --- Two processes ------------------------------------------------------------------------- */

static int line;

static void tell(const void *what, size_t bytes) {
    if (write(line, what, bytes) != (ssize_t)bytes) FAIL("nobody listens");
}

static void hear(void *what, size_t bytes) {
    if (read(line, what, bytes) != (ssize_t)bytes) FAIL("nobody speaks");
}

static int is_spoken(void) {
    struct pollfd file = { line, POLLIN, 0 };
    return poll(&file, 1, 0) == 1;
}

static void say(char word) { tell(&word, 1); }

static void await(char expected) {
    char word;
    hear(&word, 1);
    SAME(word, expected);
}

static struct end swap(struct ibv_qp *qp) {
    struct end mine = end_of(qp), theirs;
    tell(&mine, sizeof mine);
    hear(&theirs, sizeof theirs);
    return theirs;
}

/* Takes in a message, which must be whole, and asks for the next one. */
static int take(const struct way *way) {
    struct ibv_wc wc;
    if (!poll_received(way, &wc)) return 0;
    if (wc.status != IBV_WC_SUCCESS) FAIL("%s: %s", way->name, ibv_wc_status_str(wc.status));
    uint32_t start = wc.wr_id * ROOM + (way->type == IBV_QPT_UD ? GRH : 0);
    uint32_t bytes = way->type == IBV_QPT_UD ? DATAGRAM : MESSAGE;
    SAME(wc.byte_len, bytes + (way->type == IBV_QPT_UD ? GRH : 0));
    int byte = memory[start];
    CHECK(byte == BYTE || byte == FOLLOWS);
    for (uint32_t i = 0; i < bytes; i++) SAME(memory[start + i], byte);
    receive_at(wc.wr_id, sge(wc.wr_id * ROOM, ROOM));
    return byte;
}

static void drain(const struct way *way) {
    struct ibv_wc wc;
    while (poll_received(way, &wc) || ibv_poll_cq(cq, 1, &wc)) {}
}

enum how { RECEIVER_ENDS, RECEIVER_IS_KILLED, SENDER_ENDS, SENDER_IS_KILLED, HOWS };

static void begin_receiving(const struct way *way) {
    memset(memory, 0, BYTES);
    b = make_receiving(way);
    struct end from = swap(b);
    join(b, &from);
    if (way->opcode == IBV_WR_SEND)
        for (int i = 0; i < DEPTH; i++) receive_at(i, sge(i * ROOM, ROOM));
    say('r');
    await('r');
}

/* Looks for messages until something has come, and some more times. */
static void receive_for_a_while(const struct way *way, unsigned *seed) {
    int more = 1 + rand_r(seed) % 3000, came = way->opcode == IBV_WR_RDMA_READ;
    volatile uint8_t *first = memory;
    time_t start = time(NULL);
    while (more > 0) {
        came |= take(way) || *first == BYTE;
        more -= came;
        if (time(NULL) > start + 30) FAIL("%s: nothing comes", way->name);
    }
}

static void receiver(const struct way *way, enum how how, unsigned *seed) {
    if (how == RECEIVER_IS_KILLED) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            open_device(0);
            CHECK(far_cq = ibv_create_cq(context, 64, NULL, NULL, 0));
            CHECK(domain = open_domain(-1, O_CREAT));
            begin_receiving(way);
            receive_for_a_while(way, seed);
            raise(SIGKILL);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        say('g');
        await('d');
        return;
    }
    begin_receiving(way);
    if (how == RECEIVER_ENDS) {
        receive_for_a_while(way, seed);
        SAME(ibv_destroy_qp(b), 0);
        /* From now on its memory is left alone. */
        uint8_t *then = malloc(BYTES);
        memcpy(then, memory, BYTES);
        say('g');
        await('d');
        SAME(memcmp(then, memory, BYTES), 0);
        free(then);
        if (queue) SAME(ibv_destroy_srq(queue), 0);
    } else {
        while (!is_spoken()) take(way);
        await('g');
        if (how == SENDER_IS_KILLED && way->type == IBV_QPT_UD) {
            /* The next sender gets through. */
            struct end mine = end_of(b);
            tell(&mine, sizeof mine);
            time_t start = time(NULL);
            while (take(way) != FOLLOWS)
                if (time(NULL) > start + 30) FAIL("nothing comes after a killed sender");
        }
        for (int i = 0; i < 2000; i++) take(way);
        for (int i = 0; i < BYTES; i++) CHECK(memory[i] != LATER || way->type == IBV_QPT_UD);
        say('d');
        end_receiving();
    }
    drain(way);
}

static struct end begin_sending(const struct way *way) {
    memset(memory, BYTE, BYTES);
    a = make_sending(way);
    struct end to = swap(a);
    join(a, &to);
    await('r');
    say('r');
    return to;
}

/* Keeps the queue full. Gives how many have completed, or -1 with the first that has failed. */
static int send_until(const struct way *way, const struct end *to, int count, int *under_way) {
    int done = 0;
    struct ibv_sge piece = sge(0, way->type == IBV_QPT_UD ? DATAGRAM : MESSAGE);
    while (done < count && !is_spoken()) {
        for (; *under_way < DEPTH; ++*under_way) send_one(way, 1, piece, to, 0);
        struct ibv_wc wc;
        if (!ibv_poll_cq(cq, 1, &wc)) continue;
        --*under_way, done++;
        if (wc.status == IBV_WC_SUCCESS) continue;
        if (!is_reliable(way) || wc.status != IBV_WC_RETRY_EXC_ERR)
            FAIL("%s: %s", way->name, ibv_wc_status_str(wc.status));
        return -1;
    }
    return done;
}

static void sender(const struct way *way, enum how how, unsigned *seed) {
    int under_way = 0, some = 1 + rand_r(seed) % 100;
    if (how == SENDER_IS_KILLED) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            open_device(0);
            CHECK(domain = open_domain(-1, O_CREAT));
            struct end to = begin_sending(way);
            send_until(way, &to, some, &under_way);
            raise(SIGKILL);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        say('g');
        if (way->type == IBV_QPT_UD) {
            struct end to;
            hear(&to, sizeof to);
            a = make_sending(way);
            join(a, &to);
            memset(memory, FOLLOWS, DATAGRAM);
            while (send_until(way, &to, 1000, &under_way) == 1000) {}
            end_sending(way);
        }
        await('d');
        drain(way);
        return;
    }
    struct end to = begin_sending(way);
    if (how == SENDER_ENDS) {
        send_until(way, &to, some, &under_way);
        SAME(ibv_destroy_qp(a), 0);
        /* Nobody reads what it would have sent, or writes what it would have read. */
        memset(memory, LATER, BYTES);
        say('g');
        await('d');
        for (int i = 0; i < BYTES; i++) SAME(memory[i], LATER);
        if (way->type == IBV_QPT_UD) SAME(ibv_destroy_ah(ah), 0);
    } else {
        int done = send_until(way, &to, 1 << 30, &under_way);
        if (done >= 0 && !is_reliable(way)) {
            await('g');
            send_until(way, &to, 100, &under_way);
        } else {
            /* One has failed, or does now; the others are flushed. */
            while (done >= 0) {
                /* All may have arrived. */
                if (under_way == 0) send_one(way, 1, sge(0, DATAGRAM), &to, 0), under_way++;
                struct ibv_wc wc = next();
                under_way--;
                if (wc.status == IBV_WC_RETRY_EXC_ERR) done = -1;
                else SAME(wc.status, IBV_WC_SUCCESS);
            }
            for (; under_way > 0; under_way--) SAME(next().status, IBV_WC_WR_FLUSH_ERR);
            SAME(state(a), IBV_QPS_ERR);
            await('g');
        }
        say('d');
        end_sending(way);
    }
    drain(way);
}

/* The processes meet at a socket in this folder. */
static void meet(const char *folder, int rank) {
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    char draft[200];
    snprintf(at.sun_path, sizeof at.sun_path, "%s/line", folder);
    CHECK((line = socket(AF_UNIX, SOCK_SEQPACKET, 0)) >= 0);
    if (rank == 0) {
        time_t start = time(NULL);
        while (connect(line, (struct sockaddr *)&at, sizeof at))
            if (time(NULL) > start + 30) FAIL("the other process did not come");
        return;
    }
    struct sockaddr_un first = at;
    snprintf(draft, sizeof draft, "%s/draft", folder);
    snprintf(first.sun_path, sizeof first.sun_path, "%.100s", draft);
    SAME(bind(line, (struct sockaddr *)&first, sizeof first), 0);
    SAME(listen(line, 1), 0);
    SAME(rename(draft, at.sun_path), 0);
    CHECK((line = accept(line, NULL, NULL)) >= 0);
}

/* A queue pair ends, or its process is killed, while messages are under way. */
static void traffic(const char *folder) {
    enum { ROUNDS = 4, READS = 2, ENDS_OF_READS = 40 };
    int rank = atoi(getenv("RANK"));
    /* A peer is found dead, not late: so short times are enough. */
    timeout_code = 12, retries = 2;
    meet(folder, rank);
    unsigned base = getenv("SEED") ? atoi(getenv("SEED")) : time(NULL) ^ getppid() << 8;
    fprintf(stderr, "SEED=%u\n", base);
    unsigned seed = base + rank;
    for (int round = 0; round < ROUNDS; round++)
        for (int way = 0; way < WAYS; way++)
            for (int how = 0; how < HOWS; how++) {
                if (getenv("SHOW")) fprintf(stderr, "%d %s %d\n", round, ways[way].name, how);
                if (rank == 0) sender(&ways[way], how, &seed);
                else receiver(&ways[way], how, &seed);
            }
    /* An answer that lands after the end of its queue pair is rare. */
    for (int i = 0; i < ENDS_OF_READS; i++) {
        if (rank == 0) sender(&ways[READS], SENDER_ENDS, &seed);
        else receiver(&ways[READS], SENDER_ENDS, &seed);
    }
    puts("done");
}

int main(int count, char **arguments) {
    CHECK(count >= 2);
    setvbuf(stdout, NULL, _IOLBF, 0);
    CHECK(alarm(240) == 0);
    open_device(0);
    CHECK(far_cq = ibv_create_cq(context, 64, NULL, NULL, 0));
    CHECK(domain = open_domain(-1, O_CREAT));
    if (count == 3) {
        traffic(arguments[2]);
        return 0;
    }
    const struct job jobs[] = { { "outside", job_outside } };
    do_job(jobs, 1, arguments[1]);
    return 0;
}
