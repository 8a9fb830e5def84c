/* What a program may do with a frame that it has sent, run by installed.rs against a broker that joins its ports p and q to a peer by
 * zero-copy links of one trust group: it sends each of two frames of p on to q, changes its head, and sends it back to p. */
#include <kaista/port.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHANGED_BYTES 12

static struct kaista_port *opened(const char *name)
{
    struct kaista_port *port = NULL;
    char error[200];

    if (kaista_port_open(&port, name, NULL, error, sizeof error) == 0)
        return port;
    fprintf(stderr, "%s: %s\n", name, error);
    exit(1);
}

static void send_one(struct kaista_tx *tx, const struct kaista_packet *packet)
{
    int sent;

    while ((sent = kaista_tx_burst(tx, packet, 1)) == 0)
        usleep(100);
    if (sent < 0)
        exit(1);
}

int main(void)
{
    struct kaista_port *p = opened("p"), *q = opened("q");
    struct kaista_rx *rx = kaista_port_rx(p, 0);
    struct kaista_packet packet;

    for (int frames = 0; frames < 2; frames++) {
        int count;

        while ((count = kaista_rx_burst(rx, &packet, 1)) == 0)
            usleep(100);
        if (count < 0)
            return 1;
        send_one(kaista_port_tx(q, 0), &packet);
        memset(packet.head, 0xee, CHANGED_BYTES);
        send_one(kaista_port_tx(p, 0), &packet);
    }
    /* The peer reads before the ports are gone. */
    getchar();
    kaista_port_close(q);
    kaista_port_close(p);
    puts("done");
    return 0;
}
