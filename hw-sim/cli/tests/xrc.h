/* What tests of extended reliable connections (XRC) make alike. */
#include "adapters.h"
#include <fcntl.h>

static struct ibv_xrcd *domain;
static struct ibv_cq *far_cq;

static struct ibv_xrcd *open_domain(int fd, int flags) {
    struct ibv_xrcd_init_attr attr = { .comp_mask = 3, .fd = fd, .oflags = flags };
    return ibv_open_xrcd(context, &attr);
}

static struct ibv_srq *make_queue(uint32_t depth) {
    struct ibv_srq_init_attr_ex attr = {
        .attr = { .max_wr = depth, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .xrcd = domain,
        .cq = far_cq, .pd = pd,
        .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD
                     | IBV_SRQ_INIT_ATTR_CQ };
    struct ibv_srq *made = ibv_create_srq_ex(context, &attr);
    CHECK(made);
    return made;
}

static struct ibv_qp *make_receiver(void) {
    struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_XRC_RECV, .xrcd = domain,
                                        .comp_mask = IBV_QP_INIT_ATTR_XRCD };
    struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
    CHECK(qp);
    return qp;
}
