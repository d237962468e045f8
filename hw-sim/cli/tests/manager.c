/* The RDMA communication manager, used as rdma_cm(7) says, by a program that knows nothing of hwsim.
 *
 *   manager JOB ADDRESS [ADDRESS OF NOBODY]
 */
#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MS 2000

static void fail(const char *what, int line)
{
	fprintf(stderr, "line %d: %s (errno %d, %s)\n", line, what, errno, strerror(errno));
	exit(1);
}
#define CHECK(condition) ((condition) ? (void)0 : fail(#condition, __LINE__))
/* The call is refused with this errno. */
#define REFUSED(call, number) (errno = 0, CHECK((call) == -1 && errno == (number)))

static struct sockaddr_in at(const char *ip, uint16_t port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };

	CHECK(inet_pton(AF_INET, ip, &address.sin_addr) == 1);
	return address;
}

static struct rdma_event_channel *channel(void)
{
	struct rdma_event_channel *made = rdma_create_event_channel();

	CHECK(made);
	return made;
}

static struct rdma_cm_id *identifier(struct rdma_event_channel *on, enum rdma_port_space space)
{
	struct rdma_cm_id *id;

	CHECK(!rdma_create_id(on, &id, NULL, space));
	return id;
}

/* The next event, which is this one, within ten seconds. */
/* Any status. */
#define ANY INT_MIN

static struct rdma_cm_event *expect(struct rdma_event_channel *on, enum rdma_cm_event_type kind,
				    int status, int line)
{
	struct pollfd file = { .fd = on->fd, .events = POLLIN };
	struct rdma_cm_event *event;

	if (poll(&file, 1, 10000) != 1 || rdma_get_cm_event(on, &event))
		fail(rdma_event_str(kind), line);
	if (event->event != kind || (event->status != status && status != ANY)) {
		fprintf(stderr, "%s, status %d, in the place of status %d\n",
			rdma_event_str(event->event), event->status, status);
		fail(rdma_event_str(kind), line);
	}
	return event;
}
#define EVENT(on, kind, status) expect(on, RDMA_CM_EVENT_##kind, status, __LINE__)
#define ACK(event) CHECK(!rdma_ack_cm_event(event))

static struct rdma_cm_id *listener(struct rdma_event_channel *on, enum rdma_port_space space,
				   const char *ip, uint16_t port, int backlog)
{
	struct rdma_cm_id *id = identifier(on, space);
	struct sockaddr_in own = at(ip, port);

	CHECK(!rdma_bind_addr(id, (struct sockaddr *)&own));
	CHECK(!rdma_listen(id, backlog));
	return id;
}

/* Resolves address and route. */
static struct rdma_cm_id *resolved(struct rdma_event_channel *on, enum rdma_port_space space,
				   const char *ip, uint16_t port)
{
	struct rdma_cm_id *id = identifier(on, space);
	struct sockaddr_in to = at(ip, port);

	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, MS));
	ACK(EVENT(on, ADDR_RESOLVED, 0));
	CHECK(id->verbs && id->port_num == 1);
	CHECK(!rdma_resolve_route(id, MS));
	ACK(EVENT(on, ROUTE_RESOLVED, 0));
	return id;
}

static void queue_pair(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attributes = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = id->qp_type,
	};

	CHECK(!rdma_create_qp(id, NULL, &attributes));
}

/* A request of a client without a queue pair, with a name. */
static void request(struct rdma_cm_id *id, const char *name, uint32_t number)
{
	struct rdma_conn_param own = { .private_data = name, .private_data_len = strlen(name) + 1,
				       .qp_num = number, .responder_resources = 3,
				       .initiator_depth = 5, .retry_count = 4, .rnr_retry_count = 6 };

	CHECK(!rdma_connect(id, &own));
}

/* A child that runs a function, as soon as it is told to. Made before anything is opened: what is
 * open belongs to the process that has opened it. */
struct child {
	pid_t pid;
	int go;
};

static struct child child(void (*run)(const char *), const char *ip)
{
	int ends[2];
	char word;

	CHECK(!pipe(ends));
	struct child made = { .pid = fork(), .go = ends[1] };
	CHECK(made.pid >= 0);
	if (!made.pid) {
		alarm(60);
		close(ends[1]);
		CHECK(read(ends[0], &word, 1) == 1);
		run(ip);
		exit(0);
	}
	return made;
}

static void start(struct child child)
{
	CHECK(write(child.go, "!", 1) == 1);
}

static void ended(pid_t pid)
{
	int status;

	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status));
}

static const uint16_t PORT = 7000;

/* Both ways of private data, what each learns of the other, messages, and the end. */
static void client_of_connect(const char *ip)
{
	struct rdma_event_channel *on = channel();
	struct rdma_cm_id *id = resolved(on, RDMA_PS_TCP, ip, PORT);
	struct rdma_cm_event *event;
	static char text[64];
	struct ibv_mr *region;
	struct ibv_wc done;

	queue_pair(id);
	CHECK((region = rdma_reg_msgs(id, text, sizeof(text))));
	CHECK(!rdma_post_recv(id, NULL, text, sizeof(text), region));
	CHECK(ntohs(rdma_get_dst_port(id)) == PORT && rdma_get_src_port(id));
	request(id, "who asks", 0);
	event = EVENT(on, ESTABLISHED, 0);
	CHECK(!strcmp(event->param.conn.private_data, "who answers"));
	CHECK(event->param.conn.private_data_len == 196);
	ACK(event);
	CHECK(rdma_get_recv_comp(id, &done) == 1 && done.status == IBV_WC_SUCCESS);
	CHECK(!strcmp(text, "a message"));
	CHECK(!rdma_disconnect(id));
	ACK(EVENT(on, DISCONNECTED, 0));
	ACK(EVENT(on, TIMEWAIT_EXIT, 0));
	rdma_dereg_mr(region);
	rdma_destroy_qp(id);
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(on);
}

static void job_connect(const char *ip)
{
	struct child client = child(client_of_connect, ip);
	struct rdma_event_channel *on = channel();
	struct rdma_cm_id *port = listener(on, RDMA_PS_TCP, ip, PORT, 0), *id;
	struct rdma_cm_event *event;
	struct rdma_conn_param own = { .private_data = "who answers", .private_data_len = 12,
				       .responder_resources = 2, .initiator_depth = 2 };
	static char text[64] = "a message";
	struct ibv_qp_init_attr made;
	struct ibv_qp_attr attributes;
	struct ibv_mr *region;
	struct ibv_wc done;

	start(client);
	event = EVENT(on, CONNECT_REQUEST, 0);
	id = event->id;
	CHECK(event->listen_id == port && id != port && id->verbs);
	CHECK(!strcmp(event->param.conn.private_data, "who asks"));
	CHECK(event->param.conn.private_data_len == 56);
	/* What one side has under way, the other must take. */
	CHECK(event->param.conn.responder_resources == 5);
	CHECK(event->param.conn.initiator_depth == 3);
	CHECK(event->param.conn.retry_count == 4 && event->param.conn.rnr_retry_count == 6);
	ACK(event);
	CHECK(((struct sockaddr_in *)rdma_get_local_addr(id))->sin_addr.s_addr ==
	      at(ip, 0).sin_addr.s_addr);
	queue_pair(id);
	CHECK(!rdma_accept(id, &own));
	ACK(EVENT(on, ESTABLISHED, 0));
	CHECK(!ibv_query_qp(id->qp, &attributes, IBV_QP_STATE, &made));
	CHECK(attributes.qp_state == IBV_QPS_RTS && attributes.max_rd_atomic == 2);
	CHECK(attributes.max_dest_rd_atomic == 2 && attributes.retry_cnt == 4);
	CHECK((region = rdma_reg_msgs(id, text, sizeof(text))));
	CHECK(!rdma_post_send(id, NULL, text, 10, region, IBV_SEND_SIGNALED));
	CHECK(rdma_get_send_comp(id, &done) == 1 && done.status == IBV_WC_SUCCESS);
	ACK(EVENT(on, DISCONNECTED, 0));
	CHECK(!rdma_disconnect(id));
	ended(client.pid);
	rdma_dereg_mr(region);
	rdma_destroy_qp(id);
	CHECK(!rdma_destroy_id(id) && !rdma_destroy_id(port));
	rdma_destroy_event_channel(on);
}

/* Who is refused learns why. */
static void job_refusals(const char *ip)
{
	struct rdma_event_channel *on = channel(), *of = channel();
	struct rdma_cm_id *port = listener(of, RDMA_PS_TCP, ip, PORT, 2), *id, *asked, *more[2];
	struct rdma_cm_event *event;

	id = resolved(on, RDMA_PS_TCP, ip, PORT);
	request(id, "please", 77);
	event = EVENT(of, CONNECT_REQUEST, 0);
	CHECK(event->param.conn.qp_num == 77);
	asked = event->id;
	ACK(event);
	CHECK(!rdma_reject(asked, "no", 3));
	REFUSED(rdma_reject(asked, "no", 3), EINVAL);
	event = EVENT(on, REJECTED, 28);
	CHECK(!strcmp(event->param.conn.private_data, "no"));
	ACK(event);
	CHECK(!rdma_destroy_id(asked) && !rdma_destroy_id(id));

	/* Destroyed instead of answered. */
	id = resolved(on, RDMA_PS_TCP, ip, PORT);
	request(id, "please", 77);
	event = EVENT(of, CONNECT_REQUEST, 0);
	asked = event->id;
	ACK(event);
	CHECK(!rdma_destroy_id(asked));
	ACK(EVENT(on, REJECTED, 28));
	CHECK(!rdma_destroy_id(id));

	/* Nobody listens there; nobody listens any more. */
	id = resolved(on, RDMA_PS_TCP, ip, PORT + 1);
	request(id, "please", 77);
	ACK(EVENT(on, REJECTED, 8));
	CHECK(!rdma_destroy_id(id));

	/* More than two do not wait; those that wait are refused when the listener goes. */
	for (int index = 0; index < 2; index++) {
		more[index] = resolved(on, RDMA_PS_TCP, ip, PORT);
		request(more[index], "please", 77);
	}
	for (int index = 0;; index++) {
		struct pollfd file = { .fd = on->fd, .events = POLLIN };

		/* Requests come in their order only if the last one is refused. */
		id = resolved(on, RDMA_PS_TCP, ip, PORT);
		request(id, "please", 77);
		if (poll(&file, 1, 10000) == 1)
			break;
		CHECK(index < 4);
	}
	event = EVENT(on, REJECTED, 28);
	ACK(event);
	CHECK(!rdma_destroy_id(port));
	ACK(EVENT(on, REJECTED, 28));
	ACK(EVENT(on, REJECTED, 28));
	CHECK(!rdma_destroy_id(id) && !rdma_destroy_id(more[0]) && !rdma_destroy_id(more[1]));

	/* The accept of a request whose sender is gone. */
	port = listener(of, RDMA_PS_TCP, ip, PORT, 0);
	id = resolved(on, RDMA_PS_TCP, ip, PORT);
	request(id, "please", 77);
	event = EVENT(of, CONNECT_REQUEST, 0);
	asked = event->id;
	ACK(event);
	CHECK(!rdma_destroy_id(id));
	struct rdma_conn_param own = { .qp_num = 5 };
	if (!rdma_accept(asked, &own))
		/* It was accepted before the news came, and the news is a refusal: that the request was
		 * taken back (4), or, where the acceptance was under way, of nobody's connection (28). */
		ACK(EVENT(of, REJECTED, ANY));
	else
		CHECK(errno == EINVAL);
	CHECK(!rdma_destroy_id(asked) && !rdma_destroy_id(port));
	rdma_destroy_event_channel(on);
	rdma_destroy_event_channel(of);
}

/* What is asked in the wrong state, or wrongly, is refused with the kernel's number. */
static void job_mistakes(const char *ip, const char *nobody)
{
	struct rdma_event_channel *on = channel(), *other = channel();
	struct rdma_cm_id *id = identifier(on, RDMA_PS_TCP), *two = identifier(on, RDMA_PS_TCP);
	struct sockaddr_in own = at(ip, PORT), any = at("0.0.0.0", PORT), to = at(nobody, PORT);
	struct sockaddr_in away = at("192.0.2.1", 1), loop = at("127.0.0.1", 1);
	struct rdma_conn_param long_data = { .private_data = ip, .private_data_len = 57 };
	struct rdma_cm_event *event;
	uint8_t number = 32;
	int yes = 1;

	REFUSED(rdma_create_id(on, &id, NULL, (enum rdma_port_space)0x999), EINVAL);
	id = identifier(on, RDMA_PS_TCP);
	REFUSED(rdma_bind_addr(id, (struct sockaddr *)&away), EADDRNOTAVAIL);
	REFUSED(rdma_bind_addr(id, (struct sockaddr *)&loop), ENODEV);
	own.sin_family = AF_UNIX;
	REFUSED(rdma_bind_addr(id, (struct sockaddr *)&own), EINVAL);
	own.sin_family = AF_INET;
	CHECK(!rdma_bind_addr(id, (struct sockaddr *)&own));
	REFUSED(rdma_bind_addr(id, (struct sockaddr *)&own), EINVAL);
	REFUSED(rdma_bind_addr(two, (struct sockaddr *)&own), EADDRINUSE);
	REFUSED(rdma_bind_addr(two, (struct sockaddr *)&any), EADDRINUSE);
	CHECK(!rdma_set_option(two, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof(yes)));
	CHECK(!rdma_bind_addr(two, (struct sockaddr *)&own));
	REFUSED(rdma_listen(two, 0), EADDRINUSE);
	CHECK(!rdma_listen(id, 0));
	REFUSED(rdma_listen(id, 0), EINVAL);
	REFUSED(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, 1), EINVAL);
	REFUSED(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &number, 1), EINVAL);
	REFUSED(rdma_set_option(id, RDMA_OPTION_ID, 99, &yes, sizeof(yes)), ENOSYS);
	REFUSED(rdma_notify(id, IBV_EVENT_COMM_EST), EINVAL);
	REFUSED(rdma_notify(id, IBV_EVENT_QP_FATAL), EINVAL);
	CHECK(!rdma_destroy_id(id) && !rdma_destroy_id(two));

	/* The number is free again, also for all addresses, and another space has its own. */
	id = listener(on, RDMA_PS_TCP, "0.0.0.0", PORT, 0);
	two = listener(on, RDMA_PS_UDP, ip, PORT, 0);
	CHECK(!rdma_destroy_id(id) && !rdma_destroy_id(two));

	/* Addresses that nobody has. */
	id = identifier(on, RDMA_PS_TCP);
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&away, MS));
	ACK(EVENT(on, ADDR_ERROR, -ENODEV));
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 50));
	ACK(EVENT(on, ADDR_ERROR, -ETIMEDOUT));
	CHECK(!rdma_destroy_id(id));

	/* Data that fits no message. */
	id = resolved(on, RDMA_PS_TCP, ip, PORT);
	REFUSED(rdma_connect(id, &long_data), EINVAL);
	REFUSED(rdma_resolve_route(id, MS), EINVAL);
	REFUSED(rdma_reject(id, NULL, 0), EINVAL);
	CHECK(!rdma_destroy_id(id));

	/* Events move with their identifier, and go with it. */
	id = identifier(on, RDMA_PS_TCP);
	own = at(ip, PORT);
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&own, MS));
	CHECK(!rdma_migrate_id(id, other));
	ACK(EVENT(other, ADDR_RESOLVED, 0));
	CHECK(!rdma_resolve_route(id, MS));
	CHECK(!rdma_destroy_id(id));
	CHECK(!fcntl(on->fd, F_SETFL, O_NONBLOCK) && !fcntl(other->fd, F_SETFL, O_NONBLOCK));
	REFUSED(rdma_get_cm_event(on, &event), EAGAIN);
	REFUSED(rdma_get_cm_event(other, &event), EAGAIN);
	struct pollfd file = { .fd = other->fd, .events = POLLIN };
	CHECK(poll(&file, 1, 0) == 0);
	rdma_destroy_event_channel(on);
	rdma_destroy_event_channel(other);
}

/* Connects, says so, and waits to be killed. */
static int said[2];

static void client_to_kill(const char *ip)
{
	struct rdma_event_channel *on = channel();
	struct rdma_cm_id *id = resolved(on, RDMA_PS_TCP, ip, PORT);

	queue_pair(id);
	request(id, "please", 0);
	ACK(EVENT(on, ESTABLISHED, 0));
	CHECK(write(said[1], "!", 1) == 1);
	pause();
}

/* Listens, and waits to be killed with a request unanswered. */
static void server_to_kill(const char *ip)
{
	struct rdma_event_channel *on = channel();

	listener(on, RDMA_PS_TCP, ip, PORT + 2, 0);
	CHECK(write(said[1], "!", 1) == 1);
	EVENT(on, CONNECT_REQUEST, 0);
	CHECK(write(said[1], "!", 1) == 1);
	pause();
}

static void wait_for_word(void)
{
	char word;

	CHECK(read(said[0], &word, 1) == 1);
}

static void job_deaths(const char *ip)
{
	CHECK(!pipe(said));
	struct child client = child(client_to_kill, ip), server = child(server_to_kill, ip);
	struct rdma_event_channel *on = channel();
	struct rdma_cm_id *port = listener(on, RDMA_PS_TCP, ip, PORT, 0), *id;
	struct rdma_conn_param own = { .responder_resources = 1 };
	struct rdma_cm_event *event;

	start(client);
	event = EVENT(on, CONNECT_REQUEST, 0);
	id = event->id;
	ACK(event);
	queue_pair(id);
	CHECK(!rdma_accept(id, &own));
	ACK(EVENT(on, ESTABLISHED, 0));
	wait_for_word();
	CHECK(!kill(client.pid, SIGKILL) && waitpid(client.pid, NULL, 0) == client.pid);
	ACK(EVENT(on, DISCONNECTED, 0));
	CHECK(!rdma_disconnect(id));
	ACK(EVENT(on, TIMEWAIT_EXIT, 0));
	rdma_destroy_qp(id);
	CHECK(!rdma_destroy_id(id));

	start(server);
	wait_for_word();
	id = resolved(on, RDMA_PS_TCP, ip, PORT + 2);
	request(id, "please", 7);
	wait_for_word();
	CHECK(!kill(server.pid, SIGKILL) && waitpid(server.pid, NULL, 0) == server.pid);
	ACK(EVENT(on, REJECTED, 28));
	CHECK(!rdma_destroy_id(id));
	/* The dead process's port is free. */
	id = listener(on, RDMA_PS_TCP, ip, PORT + 2, 0);
	CHECK(!rdma_destroy_id(id) && !rdma_destroy_id(port));
	rdma_destroy_event_channel(on);
}

/* Queue pairs for datagrams are found, or refused. */
static void job_datagrams(const char *ip)
{
	struct rdma_event_channel *on = channel(), *of = channel();
	struct rdma_cm_id *port = listener(of, RDMA_PS_UDP, ip, PORT, 0), *id, *asked;
	struct rdma_conn_param own = { .private_data = "here", .private_data_len = 5 };
	static char from[64] = "a datagram", to[128];
	struct ibv_mr *sent, *received;
	struct rdma_cm_event *event;
	struct ibv_ah *address;
	struct ibv_wc done;

	id = resolved(on, RDMA_PS_UDP, ip, PORT + 1);
	request(id, "please", 0);
	ACK(EVENT(on, UNREACHABLE, 1));
	CHECK(!rdma_destroy_id(id));

	id = resolved(on, RDMA_PS_UDP, ip, PORT);
	request(id, "please", 0);
	event = EVENT(of, CONNECT_REQUEST, 0);
	CHECK(!strcmp(event->param.ud.private_data, "please"));
	asked = event->id;
	ACK(event);
	CHECK(!rdma_reject(asked, NULL, 0));
	ACK(EVENT(on, UNREACHABLE, 2));
	CHECK(!rdma_destroy_id(id) && !rdma_destroy_id(asked));

	id = resolved(on, RDMA_PS_UDP, ip, PORT);
	queue_pair(id);
	request(id, "please", 0);
	event = EVENT(of, CONNECT_REQUEST, 0);
	asked = event->id;
	ACK(event);
	queue_pair(asked);
	CHECK((received = rdma_reg_msgs(asked, to, sizeof(to))));
	CHECK(!rdma_post_recv(asked, NULL, to, sizeof(to), received));
	CHECK(!rdma_accept(asked, &own));
	event = EVENT(on, ESTABLISHED, 0);
	CHECK(event->param.ud.qp_num == asked->qp->qp_num);
	CHECK(event->param.ud.qkey == 0x01234567);
	CHECK(!strcmp(event->param.ud.private_data, "here"));
	CHECK((address = ibv_create_ah(id->pd, &event->param.ud.ah_attr)));
	CHECK((sent = rdma_reg_msgs(id, from, sizeof(from))));
	CHECK(!rdma_post_ud_send(id, NULL, from, sizeof(from), sent, IBV_SEND_SIGNALED, address,
				 event->param.ud.qp_num));
	ACK(event);
	CHECK(rdma_get_recv_comp(asked, &done) == 1 && done.status == IBV_WC_SUCCESS);
	CHECK(!strcmp(to + 40, from));
	CHECK(rdma_get_send_comp(id, &done) == 1 && done.status == IBV_WC_SUCCESS);
	CHECK(!ibv_destroy_ah(address));
	rdma_dereg_mr(sent);
	rdma_dereg_mr(received);
	rdma_destroy_qp(id);
	rdma_destroy_qp(asked);
	CHECK(!rdma_destroy_id(id) && !rdma_destroy_id(asked) && !rdma_destroy_id(port));
	id = resolved(on, RDMA_PS_UDP, ip, PORT);
	REFUSED(rdma_join_multicast(id, rdma_get_peer_addr(id), NULL), EOPNOTSUPP);
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(on);
	rdma_destroy_event_channel(of);
}

/* A thread that waits for events can be cancelled. */
static void *waiting(void *on)
{
	struct rdma_cm_event *event;

	rdma_get_cm_event(on, &event);
	return NULL;
}

static void job_cancel(const char *ip)
{
	struct rdma_event_channel *on = channel();
	pthread_t thread;
	void *result;

	(void)ip;
	CHECK(!pthread_create(&thread, NULL, waiting, on));
	CHECK(!pthread_cancel(thread) && !pthread_join(thread, &result));
	CHECK(result == PTHREAD_CANCELED);
	rdma_destroy_event_channel(on);
}

/* One side on each of two nodes: the synchronous calls. */
static void job_node(const char *ip)
{
	const char *node = getenv("GROUP_RANK");
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *found;
	struct ibv_qp_init_attr attributes = {
		.cap = { .max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC, .sq_sig_all = 1,
	};
	struct rdma_cm_id *port, *id;
	static char text[64];
	struct ibv_mr *region;
	struct ibv_wc done;
	int server = node && !strcmp(node, "0");

	hints.ai_flags = server ? RAI_PASSIVE : 0;
	CHECK(!rdma_getaddrinfo(ip, "7471", &hints, &found));
	if (server) {
		CHECK(!rdma_create_ep(&port, found, NULL, &attributes));
		CHECK(!rdma_listen(port, 0) && !rdma_get_request(port, &id));
		CHECK((region = rdma_reg_msgs(id, text, sizeof(text))));
		CHECK(!rdma_post_recv(id, NULL, text, sizeof(text), region));
		CHECK(!rdma_accept(id, NULL));
		CHECK(rdma_get_recv_comp(id, &done) == 1 && done.status == IBV_WC_SUCCESS);
		CHECK(!strcmp(text, "from node 1"));
		CHECK(!rdma_post_send(id, NULL, text, sizeof(text), region, 0));
		CHECK(rdma_get_send_comp(id, &done) == 1 && done.status == IBV_WC_SUCCESS);
		CHECK(!rdma_disconnect(id));
	} else {
		/* The other node's process may not listen yet: it is asked until it does. */
		for (int tries = 0;; tries++) {
			/* The library writes its completion queues there. */
			struct ibv_qp_init_attr fresh = attributes;

			CHECK(!rdma_create_ep(&id, found, NULL, &fresh));
			CHECK((region = rdma_reg_msgs(id, text, sizeof(text))));
			CHECK(!rdma_post_recv(id, NULL, text, sizeof(text), region));
			if (!rdma_connect(id, NULL))
				break;
			CHECK(errno == ECONNREFUSED && tries < 3000);
			rdma_dereg_mr(region);
			rdma_destroy_ep(id);
			usleep(10000);
		}
		static char ours[64] = "from node 1";
		struct ibv_mr *own = rdma_reg_msgs(id, ours, sizeof(ours));
		CHECK(own && !rdma_post_send(id, NULL, ours, sizeof(ours), own, 0));
		CHECK(rdma_get_recv_comp(id, &done) == 1 && done.status == IBV_WC_SUCCESS);
		CHECK(!strcmp(text, "from node 1"));
		CHECK(!rdma_disconnect(id));
		rdma_dereg_mr(own);
	}
	rdma_dereg_mr(region);
	rdma_destroy_ep(id);
	rdma_freeaddrinfo(found);
}

int main(int count, char **words)
{
	const char *job = count > 1 ? words[1] : "", *ip = count > 2 ? words[2] : "";

	alarm(120);
	if (!strcmp(job, "connect"))
		job_connect(ip);
	else if (!strcmp(job, "refusals"))
		job_refusals(ip);
	else if (!strcmp(job, "mistakes") && count > 3)
		job_mistakes(ip, words[3]);
	else if (!strcmp(job, "deaths"))
		job_deaths(ip);
	else if (!strcmp(job, "datagrams"))
		job_datagrams(ip);
	else if (!strcmp(job, "cancel"))
		job_cancel(ip);
	else if (!strcmp(job, "node"))
		job_node(ip);
	else
		fail("no such job", __LINE__);
	puts("done");
	return 0;
}
