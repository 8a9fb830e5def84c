/* The interface as a C program sees it, run by installed.rs against a broker that has
 *   p: one queue pair; the peer sends back what it gets;
 *   q: two queue pairs, an IPv4 and an IPv6 address, a route; nobody is there. */
#include <kaista/port.h>

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                          \
    do {                                                                          \
        if (!(condition)) {                                                       \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                              \
        }                                                                         \
    } while (0)

static const struct kaista_open_options brief = {.size = sizeof brief, .timeout_ms = 300};

static struct kaista_port *opened(const char *name, const struct kaista_open_options *options)
{
    struct kaista_port *port = NULL;
    char error[200] = "?";

    if (kaista_port_open(&port, name, options, error, sizeof error) != 0 || *error) {
        fprintf(stderr, "%s: %s\n", name, error);
        exit(1);
    }
    CHECK(port);
    return port;
}

/* Sends what the peer takes when it is there, and waits until it is. */
static void send_all(struct kaista_tx *tx, const struct kaista_packet *packets, unsigned count)
{
    for (int tries = 0; count; tries++) {
        int sent = kaista_tx_burst(tx, packets, count);
        CHECK(sent >= 0 && tries < 10000);
        packets += sent;
        count -= (unsigned)sent;
        if (!sent)
            usleep(1000);
    }
}

static struct kaista_packet receive_one(struct kaista_rx *rx)
{
    struct kaista_packet packet;
    int count;

    for (int tries = 0; (count = kaista_rx_burst(rx, &packet, 1)) == 0; tries++) {
        CHECK(kaista_rx_wait(rx, 1000) >= 0);
        CHECK(tries < 10000);
    }
    CHECK(count == 1);
    return packet;
}

static void fill(uint8_t *frame, size_t len, unsigned seed)
{
    for (size_t i = 0; i < len; i++)
        frame[i] = (uint8_t)(i * 7 + seed);
}

static void opening_says_what_is_wrong(void)
{
    struct {
        struct kaista_open_options known;
        uint64_t more;
    } newer = {.known = {.size = sizeof newer, .timeout_ms = 300}, .more = 0};
    struct kaista_open_options options = brief;
    struct kaista_port *port = NULL;
    char error[200];

    CHECK(kaista_port_open(NULL, "p", NULL, error, sizeof error) == -EINVAL && *error);
    CHECK(kaista_port_open(&port, NULL, NULL, error, sizeof error) == -EINVAL && *error);
    CHECK(kaista_port_open(&port, "\xff", NULL, NULL, 0) == -EINVAL);
    CHECK(kaista_port_open(&port, "x:y", NULL, error, sizeof error) == -EINVAL && strstr(error, "x:y"));
    CHECK(kaista_port_open(&port, "z", &brief, error, sizeof error) == -EACCES && strstr(error, "not known"));
    options.socket = "/nonexistent";
    CHECK(kaista_port_open(&port, "p", &options, error, 8) == -ECONNREFUSED && strlen(error) == 7);
    CHECK(kaista_port_open(&port, "p", &options, error, 0) == -ECONNREFUSED);

    options = brief;
    options.size = 0;
    CHECK(kaista_port_open(&port, "p", &options, error, sizeof error) == -EINVAL);
    newer.more = 1;
    CHECK(kaista_port_open(&port, "p", &newer.known, error, sizeof error) == -E2BIG);
    CHECK(!port);
    newer.more = 0;
    kaista_port_close(opened("p", &newer.known));
    options.size = offsetof(struct kaista_open_options, timeout_ms);
    options.timeout_ms = ~0u;
    kaista_port_close(opened("p", &options));
}

static void null_and_wrong_indices_are_errors(void)
{
    struct kaista_port *port = opened("q", &brief);
    struct kaista_rx *rx = kaista_port_rx(port, 1);
    struct kaista_tx *tx = kaista_port_tx(port, 1);
    struct kaista_packet packet = {0};
    struct kaista_rx_counters received;
    struct kaista_tx_counters sent;
    struct kaista_address address;
    struct kaista_route route;
    struct kaista_port_info info;

    CHECK(rx && tx && rx != kaista_port_rx(port, 0) && rx == kaista_port_rx(port, 1));
    CHECK(!kaista_port_rx(port, 2) && !kaista_port_tx(port, 2) && !kaista_port_rx(NULL, 0) && !kaista_port_tx(NULL, 0));
    CHECK(kaista_port_info(NULL, &info, sizeof info) == -EINVAL && kaista_port_info(port, NULL, 9) == -EINVAL);
    CHECK(kaista_port_address(NULL, 0, &address) == -EINVAL && kaista_port_address(port, 0, NULL) == -EINVAL);
    CHECK(kaista_port_address(port, 2, &address) == -EINVAL && kaista_port_route(port, 1, &route) == -EINVAL);
    CHECK(kaista_port_route(NULL, 0, &route) == -EINVAL && kaista_port_route(port, 0, NULL) == -EINVAL);
    CHECK(kaista_port_report(NULL, NULL, 0) == -EINVAL && kaista_port_report(port, NULL, 1) == -EINVAL);
    CHECK(kaista_rx_burst(NULL, &packet, 1) == -EINVAL && kaista_rx_burst(rx, NULL, 1) == -EINVAL);
    CHECK(kaista_rx_wait(NULL, 0) == -EINVAL && kaista_rx_fd(NULL) == -EINVAL);
    CHECK(kaista_rx_arm(NULL) == -EINVAL && kaista_rx_disarm(NULL) == -EINVAL);
    CHECK(kaista_rx_counters(NULL, &received, sizeof received) == -EINVAL);
    CHECK(kaista_rx_counters(rx, NULL, sizeof received) == -EINVAL);
    CHECK(kaista_tx_burst(NULL, &packet, 1) == -EINVAL && kaista_tx_burst(tx, NULL, 1) == -EINVAL);
    CHECK(kaista_tx_counters(NULL, &sent, sizeof sent) == -EINVAL && kaista_tx_counters(tx, NULL, 9) == -EINVAL);
    CHECK(kaista_port_ready(NULL) == -EINVAL && kaista_rx_leave(NULL, 1) == -EINVAL);
    CHECK(kaista_rx_leave((struct kaista_rx *[]){rx, NULL}, 2) == -EINVAL && kaista_rx_leave(NULL, 0) == 1);
    CHECK(kaista_packet_copy(NULL, &info, sizeof info) == -EINVAL);
    CHECK(kaista_tx_burst(tx, NULL, 0) == 0 && kaista_rx_burst(rx, &packet, 0) == 0);
    kaista_port_close(NULL);
    kaista_port_close(port);
}

static void a_port_describes_itself(void)
{
    struct kaista_port *port = opened("q", &brief);
    struct kaista_port_info info;
    struct kaista_address address;
    struct kaista_route route;
    char text[INET6_ADDRSTRLEN];
    struct {
        struct kaista_port_info known;
        char more[8];
    } newer;

    CHECK(kaista_port_info(port, &info, sizeof info) == 0);
    CHECK(!strcmp(info.name, "q") && !memcmp(info.mac, "\x02\x00\x00\x00\x00\x07", 6));
    CHECK(info.mtu == 9000 && info.queues == 2 && info.addresses == 2 && info.routes == 1);
    memset(&newer, 0xee, sizeof newer);
    CHECK(kaista_port_info(port, &newer.known, sizeof newer) == 0);
    CHECK(newer.known.routes == 1 && !newer.more[0] && !newer.more[7]);
    memset(&info, 0xee, sizeof info);
    CHECK(kaista_port_info(port, &info, offsetof(struct kaista_port_info, mtu)) == 0 && info.mtu == 0xeeee);

    CHECK(kaista_port_address(port, 0, &address) == 0 && address.family == AF_INET && address.prefix_bits == 24);
    CHECK(!strcmp(inet_ntop(AF_INET, address.bytes, text, sizeof text), "10.3.0.1") && !address.bytes[4]);
    CHECK(kaista_port_address(port, 1, &address) == 0 && address.family == AF_INET6 && address.prefix_bits == 64);
    CHECK(!strcmp(inet_ntop(AF_INET6, address.bytes, text, sizeof text), "2001:db8::1"));
    CHECK(kaista_port_route(port, 0, &route) == 0 && route.to.family == AF_INET && route.to.prefix_bits == 0);
    CHECK(!strcmp(inet_ntop(AF_INET, route.via.bytes, text, sizeof text), "10.3.0.2") && route.via.prefix_bits == 32);
    kaista_port_close(port);
}

static void views_are_changed_sent_on_and_copied(struct kaista_rx *rx, struct kaista_tx *tx)
{
    static uint8_t frame[KAISTA_FRAME_MAX + 1], copy[KAISTA_FRAME_MAX];
    struct kaista_packet packet = {.head = frame, .head_len = 1000}, late;

    fill(frame, sizeof frame, 1);
    send_all(tx, &packet, 1);
    packet = receive_one(rx);
    CHECK(packet.head_len == 64 && packet.rest_len == 936 && packet.headroom == KAISTA_HEADROOM && packet.rest);
    CHECK(kaista_packet_len(&packet) == 1000 && !memcmp(packet.head, frame, 64));
    CHECK(kaista_packet_copy(&packet, copy, sizeof copy) == 1000 && !memcmp(copy, frame, 1000));
    memset(copy, 0xee, sizeof copy);
    CHECK(kaista_packet_copy(&packet, copy, 100) == 100 && !memcmp(copy, frame, 100) && copy[100] == 0xee);
    CHECK(kaista_packet_copy(&packet, copy, 10) == 10 && kaista_packet_copy(&packet, NULL, 10) == -EINVAL);
    CHECK(kaista_packet_copy(&packet, NULL, 0) == 0);

    /* 14 bytes off, 100 before, 50 from the end. */
    CHECK(!kaista_packet_strip(&packet, 65) && kaista_packet_strip(&packet, 14));
    CHECK(!kaista_packet_prepend(&packet, KAISTA_HEADROOM + 15));
    memset(kaista_packet_prepend(&packet, 100), 0xab, 100);
    kaista_packet_truncate(&packet, 2000);
    CHECK(kaista_packet_len(&packet) == 1086);
    kaista_packet_truncate(&packet, 1036);
    send_all(tx, &packet, 1);
    packet = receive_one(rx);
    CHECK(kaista_packet_copy(&packet, copy, sizeof copy) == 1036);
    CHECK(copy[0] == 0xab && copy[99] == 0xab && !memcmp(copy + 100, frame + 14, 936));
    kaista_packet_truncate(&packet, 60);
    CHECK(packet.head_len == 60 && packet.rest_len == 0);
    /* All of the headroom. */
    memset(kaista_packet_prepend(&packet, KAISTA_HEADROOM), 0xcd, KAISTA_HEADROOM);
    send_all(tx, &packet, 1);
    packet = receive_one(rx);
    CHECK(kaista_packet_copy(&packet, copy, sizeof copy) == 60 + KAISTA_HEADROOM && copy[127] == 0xcd && copy[128] == 0xab);

    /* Malformed ones are refused, and so is a view that was kept too long. */
    late = packet;
    CHECK(late.rest_len == 60 + KAISTA_HEADROOM - 64 && kaista_rx_burst(rx, &packet, 1) == 0);
    CHECK(kaista_tx_burst(tx, &late, 1) == -EINVAL && kaista_packet_copy(&late, copy, sizeof copy) == -EINVAL);
    packet = (struct kaista_packet){.head = frame, .head_len = 100};
    send_all(tx, &packet, 1);
    late = receive_one(rx);
    CHECK(late.rest_len == 36 && kaista_packet_copy(&late, copy, sizeof copy) == 100);
    while (kaista_rx_arm(rx) == 0)
        CHECK(kaista_rx_burst(rx, &packet, 1) == 0);
    CHECK(kaista_packet_copy(&late, copy, sizeof copy) == -EINVAL);
    packet = (struct kaista_packet){.head = NULL, .head_len = 60};
    CHECK(kaista_tx_burst(tx, &packet, 1) == -EINVAL);
    packet = (struct kaista_packet){.head = frame, .head_len = 60, .rest_len = 1};
    CHECK(kaista_tx_burst(tx, &packet, 1) == -EINVAL);
    packet = (struct kaista_packet){.head = frame, .head_len = 60, .reserved = 1};
    CHECK(kaista_tx_burst(tx, &packet, 1) == -EINVAL);
    struct kaista_packet mixed[2] = {{.head = frame, .head_len = 60}, packet};
    CHECK(kaista_tx_burst(tx, mixed, 2) == 1);
    packet = receive_one(rx);
    CHECK(kaista_packet_len(&packet) == 60);

    /* No frame is as long, or has no bytes: taken, discarded, counted. */
    struct kaista_tx_counters before, after;
    CHECK(kaista_tx_counters(tx, &before, sizeof before) == 0);
    struct kaista_packet wrong[2] = {{.head = frame, .head_len = sizeof frame}, {.head = frame}};
    CHECK(kaista_tx_burst(tx, wrong, 2) == 2);
    CHECK(kaista_tx_counters(tx, &after, sizeof after) == 0 && after.discarded == before.discarded + 2);
}

/* Returns how often the last packets were all in the half's hands and not all taken: 0 where they came in drops. */
static int taken_in_parts(struct kaista_rx *rx, struct kaista_tx *tx)
{
    enum { COUNT = 100 };
    static uint8_t frames[COUNT][80];
    struct kaista_packet packets[COUNT], part[3];
    struct kaista_rx_counters before, received;
    int seen = 0, held = 0;

    for (int i = 0; i < COUNT; i++) {
        fill(frames[i], sizeof frames[i], (unsigned)i);
        packets[i] = (struct kaista_packet){.head = frames[i], .head_len = sizeof frames[i]};
    }
    CHECK(kaista_rx_counters(rx, &before, sizeof before) == 0);
    send_all(tx, packets, COUNT);
    while (seen < COUNT) {
        int count = kaista_rx_burst(rx, part, 3);
        CHECK(count >= 0 && count <= 3);
        for (int i = 0; i < count; i++, seen++) {
            uint8_t copy[100];
            CHECK(kaista_packet_copy(&part[i], copy, sizeof copy) == 80 && !memcmp(copy, frames[seen], 80));
        }
        /* What the half holds is as good as what waits in the port, and in the end it is all there is. */
        CHECK(kaista_rx_counters(rx, &received, sizeof received) == 0);
        if (received.packets - before.packets == COUNT && seen < COUNT && ++held)
            CHECK(kaista_rx_arm(rx) == 0 && kaista_rx_wait(rx, -1) == 1 && !usleep(100) && kaista_rx_wait(rx, -1) == 1);
    }
    CHECK(received.packets - before.packets == COUNT && received.bytes - before.bytes == 80 * COUNT);
    return held;
}

static void a_burst_may_be_taken_in_parts(struct kaista_rx *rx, struct kaista_tx *tx)
{
    for (int tries = 0; taken_in_parts(rx, tx) == 0; tries++)
        CHECK(tries < 10000);
}

static void on_alarm(int number) { (void)number; }

static void waits_end_by_packet_time_and_signal(struct kaista_rx *rx, struct kaista_tx *tx)
{
    uint8_t frame[60] = {9};
    struct kaista_packet packet = {.head = frame, .head_len = sizeof frame};
    /* Again and again: one that is handled between two sleeps is not noticed. */
    struct itimerval soon = {.it_value = {.tv_usec = 5000}, .it_interval = {.tv_usec = 5000}}, never = {0};
    struct pollfd sleep = {.fd = kaista_rx_fd(rx), .events = POLLIN};
    struct epoll_event event = {.events = EPOLLIN};
    struct timespec begin, end;
    double slept, least = 1;
    int set = epoll_create1(0), answer;

    do
        answer = kaista_rx_wait(rx, 20);
    while (answer == 1);
    CHECK(answer == 0);
    sigaction(SIGALRM, &(struct sigaction){.sa_handler = on_alarm}, NULL);
    setitimer(ITIMER_REAL, &soon, NULL);
    do
        answer = kaista_rx_wait(rx, -1);
    while (answer == 1);
    CHECK(answer == -EINTR);
    setitimer(ITIMER_REAL, &never, NULL);

    /* Without a packet, 10 ms end a sleep that was announced; one that was not has no end. */
    CHECK(kaista_rx_arm(rx) == 1 && poll(&sleep, 1, -1) == 1);
    CHECK(kaista_rx_disarm(rx) == 0 && poll(&sleep, 1, 30) == 0);
    CHECK(kaista_rx_arm(rx) == 1 && kaista_rx_burst(rx, &packet, 1) == 0 && poll(&sleep, 1, 30) == 0);

    packet = (struct kaista_packet){.head = frame, .head_len = sizeof frame};
    CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, sleep.fd, &event) == 0);
    for (int i = 0; i < 200; i++) {
        int count = 0;
        send_all(tx, &packet, 1);
        while (!(count = kaista_rx_burst(rx, &packet, 1)))
            if (kaista_rx_arm(rx) == 1) {
                clock_gettime(CLOCK_MONOTONIC, &begin);
                CHECK(epoll_wait(set, &event, 1, -1) == 1);
                clock_gettime(CLOCK_MONOTONIC, &end);
                slept = (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9;
                least = slept < least ? slept : least;
            }
        CHECK(count == 1 && packet.head_len == 60 && packet.head[0] == 9);
        CHECK(kaista_rx_fd(rx) == sleep.fd);
    }
    /* The peer ended at least one of them. */
    CHECK(least < 0.009);
    close(set);
}

static void signals_go_to_threads_of_the_program(void)
{
    struct dirent *entry;
    DIR *threads = opendir("/proc/self/task");
    int others = 0;

    CHECK(threads);
    while ((entry = readdir(threads))) {
        char path[300], line[200];
        unsigned long blocked = 0;
        FILE *status;

        if (*entry->d_name == '.')
            continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
        CHECK(status = fopen(path, "r"));
        while (fgets(line, sizeof line, status) && sscanf(line, "SigBlk: %lx", &blocked) != 1)
            ;
        fclose(status);
        CHECK((atoi(entry->d_name) == getpid()) == !(blocked & 1ul << (SIGTERM - 1)));
        others += atoi(entry->d_name) != getpid();
    }
    closedir(threads);
    CHECK(others > 0);
}

static void counters_are_reported(struct kaista_port *port)
{
    struct kaista_counter counters[KAISTA_REPORT_MAX + 1] = {{.name = "drop.no-session", .value = 7}};

    CHECK(kaista_port_report(port, counters, KAISTA_REPORT_MAX + 1) == -E2BIG);
    CHECK(kaista_port_report(port, counters, 2) == -EINVAL);
    counters[1].name = "";
    CHECK(kaista_port_report(port, counters, 2) == -EINVAL);
    CHECK(kaista_port_report(port, counters, 1) == 0);
}

/* The peer sends back a frame, of which nobody who leaves is done before it has been received. */
static void one_that_leaves_is_done_when_nothing_is_left(struct kaista_port *port)
{
    struct kaista_rx *rx = kaista_port_rx(port, 0);
    uint8_t frame[100] = {0};
    struct kaista_packet packet = {.head = frame, .head_len = sizeof frame}, burst[2];
    int looks = 0, came = 0;

    CHECK(kaista_port_ready(port) == 1);
    send_all(kaista_port_tx(port, 0), (struct kaista_packet[]){packet, packet}, 2);
    CHECK(kaista_rx_wait(rx, 1000) == 1 && kaista_rx_leave(&rx, 1) == 0);
    while (kaista_rx_leave(&rx, 1) == 0) {
        int count = kaista_rx_burst(rx, burst, looks % 2 + 1);
        CHECK(count >= 0 && looks++ < 10000);
        came += count;
    }
    CHECK(came == 2 && looks > 3);
}

int main(void)
{
    struct kaista_open_options short_heads = {.size = sizeof short_heads, .peek_bytes = 64};
    struct kaista_port *port;

    CHECK(kaista_abi_version() == ((KAISTA_ABI_MAJOR << 16) | KAISTA_ABI_MINOR));
    opening_says_what_is_wrong();
    null_and_wrong_indices_are_errors();
    a_port_describes_itself();
    port = opened("p", &short_heads);
    views_are_changed_sent_on_and_copied(kaista_port_rx(port, 0), kaista_port_tx(port, 0));
    a_burst_may_be_taken_in_parts(kaista_port_rx(port, 0), kaista_port_tx(port, 0));
    waits_end_by_packet_time_and_signal(kaista_port_rx(port, 0), kaista_port_tx(port, 0));
    signals_go_to_threads_of_the_program();
    one_that_leaves_is_done_when_nothing_is_left(port);
    counters_are_reported(port);
    /* Until the peer has seen them. */
    getchar();
    kaista_port_close(port);
    puts("done");
    return 0;
}
