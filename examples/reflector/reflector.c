/* Sends every frame of a port back to where it came from, its Ethernet addresses swapped: "reflector n3".
 * Build it with: cc -O2 -o reflector reflector.c $(pkg-config --cflags --libs kaista-port) */
#include <kaista/port.h>

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static volatile sig_atomic_t stopped;

static void stop(int number) { stopped = number; }

static void swap_addresses(struct kaista_packet *packet)
{
    uint8_t destination[6];

    if (packet->head_len < 12)
        return;
    memcpy(destination, packet->head, 6);
    memcpy(packet->head, packet->head + 6, 6);
    memcpy(packet->head + 6, destination, 6);
}

/* One burst: how many came, or an error. What the peer has no room for is dropped, as a switch would. */
static int reflect(struct kaista_rx *rx, struct kaista_tx *tx)
{
    struct kaista_packet burst[KAISTA_BURST_MAX];
    int count = kaista_rx_burst(rx, burst, KAISTA_BURST_MAX), sent = 0;

    for (int i = 0; i < count; i++)
        swap_addresses(&burst[i]);
    if (count > 0)
        sent = kaista_tx_burst(tx, burst, (unsigned)count);
    return sent < 0 ? sent : count;
}

/* Until stopped, and until nothing is left that came for this process and not for one that succeeds it. */
static int run(struct kaista_rx *rx, struct kaista_tx *tx)
{
    int result = 0;

    while (!stopped && (result >= 0 || result == -EINTR))
        if ((result = reflect(rx, tx)) == 0)
            result = kaista_rx_wait(rx, 100);
    while (stopped && (result = kaista_rx_leave(&rx, 1)) == 0)
        reflect(rx, tx);
    return result < 0 ? result : 0;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "n3";
    struct kaista_port *port;
    struct kaista_tx_counters sent;
    char error[256];
    int failed;

    sigaction(SIGINT, &(struct sigaction){.sa_handler = stop}, NULL);
    sigaction(SIGTERM, &(struct sigaction){.sa_handler = stop}, NULL);
    if (kaista_port_open(&port, name, NULL, error, sizeof error) < 0)
        return fprintf(stderr, "reflector: %s\n", error), 1;
    failed = run(kaista_port_rx(port, 0), kaista_port_tx(port, 0));
    if (failed)
        fprintf(stderr, "reflector: %s\n", strerror(-failed));
    kaista_tx_counters(kaista_port_tx(port, 0), &sent, sizeof sent);
    printf("%" PRIu64 " packets reflected\n", sent.packets);
    kaista_port_close(port);
    return failed != 0;
}
