/*
 * Everything of DPDK that is called from Rust: most of its packet functions are inline and have no symbol of their own.
 * Calls on the packet path carry whole bursts. Numbers below zero are negated errno values.
 */
/* Handles of interrupts, which are not counted as stable yet. */
#define ALLOW_EXPERIMENTAL_API

#include <errno.h>
#include <semaphore.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_interrupts.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>

/* src/mbuf.rs has the same fields at the same places. */
_Static_assert(offsetof(struct rte_mbuf, buf_addr) == 0, "buf_addr");
_Static_assert(offsetof(struct rte_mbuf, data_off) == 16, "data_off");
_Static_assert(offsetof(struct rte_mbuf, refcnt) == 18, "refcnt");
_Static_assert(offsetof(struct rte_mbuf, nb_segs) == 20, "nb_segs");
_Static_assert(offsetof(struct rte_mbuf, ol_flags) == 24, "ol_flags");
_Static_assert(offsetof(struct rte_mbuf, pkt_len) == 36, "pkt_len");
_Static_assert(offsetof(struct rte_mbuf, data_len) == 40, "data_len");
_Static_assert(offsetof(struct rte_mbuf, buf_len) == 54, "buf_len");
_Static_assert(sizeof(((struct rte_mbuf *)0)->buf_addr) == 8 && sizeof(((struct rte_mbuf *)0)->data_off) == 2, "sizes");
_Static_assert(sizeof(((struct rte_mbuf *)0)->pkt_len) == 4 && sizeof(((struct rte_mbuf *)0)->data_len) == 2, "sizes");
_Static_assert(sizeof(struct rte_mbuf) == 128, "two cache lines");
_Static_assert(RTE_PKTMBUF_HEADROOM == 128, "port::HEADROOM");

/* src/ffi.rs has the same. */
struct kaista_device {
	uint16_t max_rx_queues;
	uint16_t max_tx_queues;
	uint16_t reta_size;
	uint16_t max_mtu;
	uint32_t max_frame;
	uint8_t hashes_flows;
	uint8_t hash_key_bytes;
	uint8_t mac[6];
	char driver[32];
};

_Static_assert(sizeof(struct kaista_device) == 52, "src/ffi.rs");

struct kaista_stats {
	uint64_t ipackets, opackets, ibytes, obytes, imissed, ierrors, oerrors, rx_nombuf;
};

/* What a card takes into its hash: addresses, and ports where there are any. */
#define FLOWS (RTE_ETH_RSS_IP | RTE_ETH_RSS_TCP | RTE_ETH_RSS_UDP | RTE_ETH_RSS_SCTP)

static int failed(void)
{
	return rte_errno ? -rte_errno : -EIO;
}

/*
 * Something to be done by the thread on which DPDK learns of peers: one at a time, as whoever asks has DPDK's control to itself.
 * Not by an alarm: alarms that come due while others run are run with them.
 */
static struct {
	int fd;
	void (*what)(const void *with);
	const void *with;
	sem_t done;
} errand;

static void run_errand(void *unused)
{
	uint64_t asked;

	(void)unused;
	if (read(errand.fd, &asked, sizeof(asked)) != sizeof(asked))
		return;
	errand.what(errand.with);
	sem_post(&errand.done);
}

static int accept_errands(void)
{
	struct rte_intr_handle *handle = rte_intr_instance_alloc(RTE_INTR_INSTANCE_F_PRIVATE);
	int result;

	errand.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (!handle || errand.fd < 0 || sem_init(&errand.done, 0, 0) != 0)
		return -ENOMEM;
	if (rte_intr_fd_set(handle, errand.fd) || rte_intr_type_set(handle, RTE_INTR_HANDLE_EXT))
		return failed();
	result = rte_intr_callback_register(handle, run_errand, NULL);
	/* The register keeps a copy. */
	rte_intr_instance_free(handle);
	return result;
}

static void by_dpdks_thread(void (*what)(const void *with), const void *with)
{
	const uint64_t one = 1;

	errand.what = what;
	errand.with = with;
	while (write(errand.fd, &one, sizeof(one)) != sizeof(one))
		;
	while (sem_wait(&errand.done) != 0)
		;
}

static void nothing(const void *with)
{
	(void)with;
}

/*
 * Waits until DPDK's thread has dealt with all that is under way among the devices of this process. It asks the kernel for
 * several events at once and gives each to whoever has its descriptor by then. Had somebody closed one and somebody else opened
 * another of that number, the newcomer would be told to read what is not there: memif's driver waits for it, on the thread
 * that would have to bring it. The first errand ends what was asked for before, the second that which came of it.
 */
static void settle(void)
{
	by_dpdks_thread(nothing, NULL);
	by_dpdks_thread(nothing, NULL);
}

/*
 * Even where DPDK is to make no files it makes a folder for them, which would outlive the process: whoever ends by a signal
 * takes nothing away.
 */
int kaista_start(int argc, char **argv)
{
	if (rte_eal_init(argc, argv) < 0)
		return failed();
	rmdir(rte_eal_get_runtime_dir());
	return accept_errands();
}

/* Threads that DPDK knows have a cache of each pool, and pay less for every packet. */
int kaista_register_thread(void)
{
	return rte_thread_register() < 0 ? failed() : 0;
}

void kaista_unregister_thread(void)
{
	rte_thread_unregister();
}

const char *kaista_error(int number)
{
	return rte_strerror(number < 0 ? -number : number);
}

struct rte_mempool *kaista_pool(const char *name, unsigned int count, unsigned int cache, uint16_t room)
{
	return rte_pktmbuf_pool_create(name, count, cache, 0, room, SOCKET_ID_ANY);
}

unsigned int kaista_pool_available(const struct rte_mempool *pool)
{
	return rte_mempool_avail_count(pool);
}

int kaista_attach(const char *devargs, const char *name, uint16_t *port)
{
	int error;

	/* DPDK would say that all is well. */
	if (rte_eth_dev_get_port_by_name(name, port) == 0)
		return -EEXIST;
	error = rte_dev_probe(devargs);
	if (error)
		return error;
	return rte_eth_dev_get_port_by_name(name, port);
}

int kaista_describe(uint16_t port, struct kaista_device *to)
{
	struct rte_eth_dev_info info;
	struct rte_ether_addr mac;
	int error;

	memset(to, 0, sizeof(*to));
	error = rte_eth_dev_info_get(port, &info);
	if (error)
		return error;
	error = rte_eth_macaddr_get(port, &mac);
	if (error)
		return error;
	memcpy(to->mac, mac.addr_bytes, sizeof(to->mac));
	to->max_rx_queues = info.max_rx_queues;
	to->max_tx_queues = info.max_tx_queues;
	to->reta_size = info.reta_size;
	to->max_mtu = info.max_mtu;
	to->max_frame = info.max_rx_pktlen;
	to->hashes_flows = (info.flow_type_rss_offloads & FLOWS) != 0;
	to->hash_key_bytes = info.hash_key_size;
	strncpy(to->driver, info.driver_name, sizeof(to->driver) - 1);
	return 0;
}

static int set_queues_up(uint16_t port, uint16_t queues, uint16_t rx_descriptors, uint16_t tx_descriptors,
			 struct rte_mempool *pool)
{
	int error = 0;
	uint16_t queue;

	for (queue = 0; queue < queues && !error; queue++) {
		error = rte_eth_rx_queue_setup(port, queue, rx_descriptors, rte_eth_dev_socket_id(port), NULL, pool);
		if (!error)
			error = rte_eth_tx_queue_setup(port, queue, tx_descriptors, rte_eth_dev_socket_id(port), NULL);
	}
	return error;
}

/* `spreads`: frames over its queues, by flows. */
int kaista_configure(uint16_t port, uint16_t queues, uint16_t descriptors, uint16_t mtu, int spreads, uint8_t *key,
		     uint8_t key_bytes, struct rte_mempool *pool)
{
	struct rte_eth_conf conf;
	uint16_t rx_descriptors = descriptors, tx_descriptors = descriptors;
	int error;

	memset(&conf, 0, sizeof(conf));
	conf.rxmode.mtu = mtu;
	if (spreads) {
		struct rte_eth_dev_info info;

		error = rte_eth_dev_info_get(port, &info);
		if (error)
			return error;
		conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
		conf.rx_adv_conf.rss_conf.rss_hf = info.flow_type_rss_offloads & FLOWS;
		conf.rx_adv_conf.rss_conf.rss_key = key;
		conf.rx_adv_conf.rss_conf.rss_key_len = key_bytes;
	}
	error = rte_eth_dev_configure(port, queues, queues, &conf);
	if (error)
		return error;
	error = rte_eth_dev_adjust_nb_rx_tx_desc(port, &rx_descriptors, &tx_descriptors);
	if (error)
		return error;
	return set_queues_up(port, queues, rx_descriptors, tx_descriptors, pool);
}

/* The table may have more entries than there are buckets: hashes that are equal in their low bits share an owner. */
int kaista_steer(uint16_t port, const uint8_t *owners, uint16_t buckets, uint16_t entries)
{
	struct rte_eth_rss_reta_entry64 table[RTE_ETH_RSS_RETA_SIZE_512 / RTE_ETH_RETA_GROUP_SIZE];
	uint16_t at;

	if (entries > RTE_ETH_RSS_RETA_SIZE_512)
		return -EINVAL;
	memset(table, 0, sizeof(table));
	for (at = 0; at < entries; at++) {
		table[at / RTE_ETH_RETA_GROUP_SIZE].mask |= UINT64_C(1) << at % RTE_ETH_RETA_GROUP_SIZE;
		table[at / RTE_ETH_RETA_GROUP_SIZE].reta[at % RTE_ETH_RETA_GROUP_SIZE] = owners[at % buckets];
	}
	return rte_eth_dev_rss_reta_update(port, table, entries);
}

/* A port's address is its function's: frames for any are accepted, where the device chooses at all. */
int kaista_run(uint16_t port)
{
	int error = rte_eth_dev_start(port);

	if (error)
		return error;
	settle();
	error = rte_eth_promiscuous_enable(port);
	return error == -ENOTSUP ? 0 : error;
}

struct removal {
	uint16_t port;
	const char *bus, *name;
};

static void take_away(const void *removal)
{
	const struct removal *what = removal;

	rte_eth_dev_stop(what->port);
	rte_eth_dev_close(what->port);
	rte_eal_hotplug_remove(what->bus, what->name);
}

/* Of some devices the peer may leave at the same time, which DPDK's own thread learns; `there` it is done by that thread. */
void kaista_take_away(uint16_t port, const char *bus, const char *name, int there)
{
	struct removal what = {.port = port, .bus = bus, .name = name};

	if (there)
		by_dpdks_thread(take_away, &what);
	else
		take_away(&what);
	settle();
}

int kaista_link_is_up(uint16_t port)
{
	struct rte_eth_link link;

	return rte_eth_link_get_nowait(port, &link) == 0 && link.link_status == RTE_ETH_LINK_UP;
}

int kaista_stats(uint16_t port, struct kaista_stats *to)
{
	struct rte_eth_stats stats;
	int error = rte_eth_stats_get(port, &stats);

	if (error)
		return error;
	to->ipackets = stats.ipackets;
	to->opackets = stats.opackets;
	to->ibytes = stats.ibytes;
	to->obytes = stats.obytes;
	to->imissed = stats.imissed;
	to->ierrors = stats.ierrors;
	to->oerrors = stats.oerrors;
	to->rx_nombuf = stats.rx_nombuf;
	return 0;
}

uint16_t kaista_receive(uint16_t port, uint16_t queue, struct rte_mbuf **to, uint16_t most)
{
	return rte_eth_rx_burst(port, queue, to, most);
}

uint16_t kaista_send(uint16_t port, uint16_t queue, struct rte_mbuf **from, uint16_t count)
{
	return rte_eth_tx_burst(port, queue, from, count);
}

int kaista_allocate(struct rte_mempool *pool, struct rte_mbuf **to, unsigned int count)
{
	return rte_pktmbuf_alloc_bulk(pool, to, count);
}

void kaista_free(struct rte_mbuf **from, unsigned int count)
{
	rte_pktmbuf_free_bulk(from, count);
}
