/* Memory that a program gives for queues, by the functions of a parent domain. If a job fails, programs
 * that place their queues themselves lose memory, or find it in use after they got it back. */
#include "adapters.h"

enum { QP = 1, SRQ = 4, CQ = 5, MOST = 64 };

/* What the functions were asked for and have not got back. */
static struct given {
    void *memory;
    struct ibv_pd *domain;
    size_t size;
    uint64_t kind;
} given[MOST];
static int asked, held, freed, gives = 1;
static struct ibv_pd *parent;
static int own;

static void *give(struct ibv_pd *domain, void *context_, size_t size, size_t alignment, uint64_t kind) {
    asked++;
    SAME(domain == parent && context_ == &own, 1);
    CHECK(alignment && !(alignment & (alignment - 1)) && size && kind >> 32 == 0);
    if (gives == 0) return NULL;
    if (gives < 0) return IBV_ALLOCATOR_USE_DEFAULT;
    CHECK(held < MOST);
    void *memory_;
    SAME(posix_memalign(&memory_, alignment, size), 0);
    memset(memory_, 0, size);
    given[held++] = (struct given){ memory_, domain, size, kind };
    return memory_;
}

static void take(struct ibv_pd *domain, void *context_, void *memory_, uint64_t kind) {
    CHECK(context_ == &own);
    for (int i = 0; i < held; i++) {
        if (given[i].memory != memory_) continue;
        CHECK(given[i].domain == domain && given[i].kind == kind);
        given[i] = given[--held];
        freed++;
        free(memory_);
        return;
    }
    FAIL("memory that was not given, or twice, for %llu", (unsigned long long)kind);
}

static struct ibv_pd *domain_of(struct ibv_pd *below, void *alloc, void *free_) {
    struct ibv_parent_domain_init_attr attr = {
        .pd = below, .alloc = alloc, .free = free_, .pd_context = &own,
        .comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT };
    return ibv_alloc_parent_domain(context, &attr);
}

static struct ibv_cq *completions(struct ibv_pd *domain) {
    struct ibv_cq_init_attr_ex attr = {
        .cqe = 200, .wc_flags = IBV_WC_STANDARD_FLAGS, .parent_domain = domain,
        .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD };
    struct ibv_cq_ex *made = ibv_create_cq_ex(context, &attr);
    return made ? ibv_cq_ex_to_cq(made) : NULL;
}

static struct ibv_srq *shared(struct ibv_pd *domain) {
    struct ibv_srq_init_attr attr = { .attr = { .max_wr = 100, .max_sge = 4 } };
    return ibv_create_srq(domain, &attr);
}

static struct ibv_qp *queue_pair(struct ibv_pd *domain, int requests) {
    struct ibv_qp_init_attr attr = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
        .cap = { .max_send_wr = requests, .max_recv_wr = requests, .max_send_sge = 1, .max_recv_sge = 1 } };
    return ibv_create_qp(domain, &attr);
}

/* Memory that is this large is held for queues of this kind. */
static void holds(uint64_t kind, size_t least) {
    for (int i = 0; i < held; i++)
        if (given[i].kind == kind && given[i].size >= least) return;
    FAIL("no memory for queues of kind %d", (int)kind);
}

/* Each queue lies in memory of the program's, which is given back to the same domain, and no sooner than
 * the queue has ended. */
static void job_placed(void) {
    struct ibv_pd *below = pd;
    CHECK(parent = domain_of(below, give, take));
    SAME(asked, 0);
    CHECK(!completions(below) && errno == EINVAL);
    CHECK(cq = completions(parent));
    holds(CQ, 200 * sizeof(uint64_t));
    CHECK(srq = shared(parent));
    holds(SRQ, 100 * 4 * sizeof(struct ibv_sge));
    SAME(held, 2);
    pd = parent;
    pair();
    SAME(held, 4);
    holds(QP, 64 * 4 * sizeof(struct ibv_sge));
    struct ibv_recv_wr *bad, wr = { .wr_id = 7 };
    SAME(ibv_post_srq_recv(srq, &wr, &bad), 0);
    memory[0] = 5;
    SAME(post_write(1, 0, 64, 8), 0);
    expect(1, IBV_WC_SUCCESS);
    SAME(memory[64], 5);
    /* Larger, in new memory; the former goes back. */
    SAME(ibv_resize_cq(cq, 1000), 0);
    SAME(held, 4);
    SAME(freed, 1);
    holds(CQ, 1000 * sizeof(uint64_t));
    SAME(post_write(2, 0, 128, 8), 0);
    expect(2, IBV_WC_SUCCESS);
    SAME(ibv_dealloc_pd(parent), EBUSY);
    SAME(ibv_destroy_qp(a), 0);
    SAME(ibv_destroy_qp(b), 0);
    SAME(held, 2);
    SAME(ibv_destroy_srq(srq), 0);
    SAME(ibv_dealloc_pd(parent), EBUSY);
    SAME(ibv_destroy_cq(cq), 0);
    SAME(held, 0);
    SAME(freed, 5);
    SAME(asked, 5);
    SAME(ibv_dealloc_pd(parent), 0);
}

/* What gives nothing makes nothing, and nothing is left behind. */
static void job_without(void) {
    struct ibv_pd *below = pd;
    CHECK(parent = domain_of(below, give, take));
    struct ibv_cq *placed = completions(parent);
    CHECK(placed && held == 1);
    gives = 0;
    for (int round = 0; round < 1000; round++) {
        CHECK(!completions(parent) && errno == ENOMEM);
        CHECK(!shared(parent) && errno == ENOMEM);
        CHECK(!queue_pair(parent, 4) && errno == ENOMEM);
    }
    SAME(ibv_resize_cq(placed, 1000), ENOMEM);
    SAME(placed->cqe, 256);
    /* Sizes that cannot be are found out before anybody is asked. */
    int before = asked;
    CHECK(!queue_pair(parent, 1 << 30) && errno == EINVAL);
    SAME(asked, before);
    SAME(held, 1);
    SAME(freed, 0);
    /* The provider's own memory is not the program's to free. */
    gives = -1;
    struct ibv_cq *other = completions(parent);
    struct ibv_srq *queue = shared(parent);
    struct ibv_qp *qp = queue_pair(parent, 4);
    CHECK(other && queue && qp);
    SAME(asked, before + 3);
    SAME(ibv_dealloc_pd(parent), EBUSY);
    SAME(ibv_destroy_qp(qp), 0);
    SAME(ibv_destroy_srq(queue), 0);
    SAME(ibv_destroy_cq(other), 0);
    SAME(freed, 0);
    SAME(ibv_destroy_cq(placed), 0);
    SAME(freed, 1);
    SAME(ibv_dealloc_pd(parent), 0);
    /* One function alone is none. */
    CHECK(parent = domain_of(below, give, NULL));
    CHECK(qp = queue_pair(parent, 4));
    SAME(asked, before + 3);
    SAME(ibv_destroy_qp(qp), 0);
    SAME(ibv_dealloc_pd(parent), 0);
    SAME(ibv_dereg_mr(mr), 0);
    CHECK(queue = shared(below));
    SAME(ibv_dealloc_pd(below), EBUSY);
    SAME(ibv_destroy_srq(queue), 0);
    SAME(ibv_dealloc_pd(below), 0);
}

int main(int count, char **arguments) {
    static const struct job jobs[] = { { "placed", job_placed }, { "without", job_without } };
    CHECK(count == 2);
    open_device(0);
    do_job(jobs, sizeof jobs / sizeof jobs[0], arguments[1]);
    return 0;
}
