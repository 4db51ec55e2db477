/* SPDX-License-Identifier: Apache-2.0 */
/* measure.c: measures a lab with plain sockets. One process owns sockets of both hosts. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "lab/measure.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define DELAY_MS  10.0 /* each way */
#define RATE_MBIT 80.0
#define LOSS      0.05
#define PORT      4000
#define TRIPS_MAX 4096
#define WAIT_MS   2000
#define PACKET    1000

struct measure {
    struct hth_lab *lab;
    double seconds;
    double *result; /* shared with the measuring process; -1: failed */
};

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static struct sockaddr_in address(uint32_t host)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    a.sin_addr.s_addr = htonl(UINT32_C(0x0a4d0001) + host);
    return a;
}

static int bound_socket(struct hth_lab *lab, uint32_t host, int type)
{
    struct sockaddr_in a = address(host);
    if (hth_lab_enter_index(lab, host) != HTH_OK)
        return -1;
    int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof(a)) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static bool readable(int fd, int wait_ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, wait_ms) == 1;
}

static bool send_to(int fd, uint32_t host, const void *data, size_t len)
{
    struct sockaddr_in a = address(host);
    return sendto(fd, data, len, 0, (struct sockaddr *)&a, sizeof(a)) == (ssize_t)len;
}

/* ---- delay --------------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Measure the median round trip in ms. */
static int measure_delay(void *arg)
{
    struct measure *m = arg;
    int a = bound_socket(m->lab, 0, SOCK_DGRAM), b = bound_socket(m->lab, 1, SOCK_DGRAM);
    static double trip_ms[TRIPS_MAX];
    size_t count = 0;
    double end_s = now_s() + m->seconds;
    while (count < TRIPS_MAX && (count < 5 || now_s() < end_s)) {
        uint64_t word = count, back = 0;
        double begin_s = now_s();
        if (!send_to(a, 1, &word, sizeof(word)) || !readable(b, WAIT_MS) ||
            recv(b, &back, sizeof(back), 0) != sizeof(back) ||
            !send_to(b, 0, &back, sizeof(back)) || !readable(a, WAIT_MS) ||
            recv(a, &back, sizeof(back), 0) != sizeof(back) || back != word)
            return 1;
        trip_ms[count++] = (now_s() - begin_s) * 1e3;
    }
    qsort(trip_ms, count, sizeof(trip_ms[0]), by_size);
    *m->result = trip_ms[count / 2];
    return 0;
}

/* ---- rate ---------------------------------------------------------------------------------- */

static bool connect_both(struct hth_lab *lab, int *from, int *to)
{
    struct sockaddr_in a = address(1);
    int door = bound_socket(lab, 1, SOCK_STREAM);
    *from = bound_socket(lab, 0, SOCK_STREAM);
    *to = -1;
    if (door >= 0 && *from >= 0 && listen(door, 1) == 0 &&
        connect(*from, (struct sockaddr *)&a, sizeof(a)) == 0 && readable(door, WAIT_MS))
        *to = accept(door, NULL, NULL);
    if (door >= 0)
        close(door);
    return *to >= 0 && fcntl(*from, F_SETFL, O_NONBLOCK) == 0 &&
           fcntl(*to, F_SETFL, O_NONBLOCK) == 0;
}

/* Count the bytes that arrive until the clock shows end_s. */
static double pump(int from, int to, double end_s)
{
    static char buf[65536];
    double bytes = 0, now;
    while ((now = now_s()) < end_s) {
        struct pollfd p[2] = {{.fd = from, .events = POLLOUT}, {.fd = to, .events = POLLIN}};
        ssize_t n;
        if (poll(p, 2, (int)((end_s - now) * 1e3) + 1) < 0)
            break;
        if (p[0].revents & POLLOUT && send(from, buf, sizeof(buf), MSG_NOSIGNAL) < 0 &&
            errno != EAGAIN)
            break;
        while ((n = recv(to, buf, sizeof(buf), 0)) > 0)
            bytes += (double)n;
    }
    return bytes;
}

/* Measure Mbit/s of data after the slow start. */
static int measure_rate(void *arg)
{
    struct measure *m = arg;
    int from, to;
    if (!connect_both(m->lab, &from, &to))
        return 1;
    double begin_s = now_s();
    pump(from, to, begin_s + 0.3 * m->seconds);
    double middle_s = now_s(), bytes = pump(from, to, begin_s + m->seconds);
    *m->result = bytes * 8e-6 / (now_s() - middle_s);
    return 0;
}

/* ---- loss ---------------------------------------------------------------------------------- */

static uint32_t loss_packets(double seconds)
{
    return (uint32_t)(1000 + 4000 * seconds);
}

/* Send bursts that fit into every buffer; packets that do not arrive within a while are lost. */
static int measure_loss(void *arg)
{
    struct measure *m = arg;
    int a = bound_socket(m->lab, 0, SOCK_DGRAM), b = bound_socket(m->lab, 1, SOCK_DGRAM);
    char packet[PACKET] = {0};
    uint32_t sent = 0, got = 0, all = loss_packets(m->seconds);
    while (sent < all) {
        for (uint32_t i = 0; i < 50 && sent < all; i++, sent++)
            if (!send_to(a, 1, packet, sizeof(packet)))
                return 1;
        while (readable(b, sent < all ? 2 : 300) && recv(b, packet, sizeof(packet), 0) > 0)
            got++;
    }
    *m->result = 1 - (double)got / sent;
    return 0;
}

/* ---- all ----------------------------------------------------------------------------------- */

static enum hth_err measure(const struct hth_lab_spec *spec, int (*how)(void *), double seconds,
                            struct hth_lab_test_row *row, char *error)
{
    struct measure m = {.seconds = seconds};
    double median_us, worst_us;
    HTH_TRY(hth_lab_new(spec, &m.lab, error));
    m.result =
        mmap(NULL, sizeof(double), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int code = m.result != MAP_FAILED ? hth_lab_run(m.lab, how, &m) : -1;
    if (code == 0)
        row->measured = *m.result;
    else
        snprintf(error, HTH_LAB_ERROR_MAX, "measuring %s: code %d, %s", row->what, code,
                 strerror(errno));
    hth_lab_lateness(m.lab, &median_us, &row->late_p99_us, &worst_us);
    row->good = row->measured >= row->low && row->measured <= row->high;
    if (m.result != MAP_FAILED)
        munmap(m.result, sizeof(double));
    hth_lab_free(m.lab);
    return code == 0                               ? HTH_OK
           : code < 0 || code == HTH_LAB_EXIT_SKIP ? HTH_E_UNSUPPORTED
                                                   : HTH_E_IO;
}

enum hth_err hth_lab_test(double seconds, struct hth_lab_test_row rows[HTH_LAB_TEST_ROWS],
                          char error[HTH_LAB_ERROR_MAX])
{
    char names[2][2] = {"a", "b"};
    struct hth_lab_spec_host hosts[2] = {{.name = names[0]}, {.name = names[1]}};
    struct hth_lab_spec spec = {.seed = 1, .hosts = hosts, .host_count = 2};
    double part = seconds / 3, headers = 1460.0 / 1500.0;
    double error_of_loss = sqrt(LOSS * (1 - LOSS) / loss_packets(part));

    spec.link = (struct hth_lab_spec_link){.latency_ms = DELAY_MS};
    rows[0] = (struct hth_lab_test_row){.what = "round trip, ms",
                                        .set = 2 * DELAY_MS,
                                        .low = 2 * DELAY_MS,
                                        .high = 2 * DELAY_MS + 1};
    HTH_TRY(measure(&spec, measure_delay, part, &rows[0], error));

    spec.link = (struct hth_lab_spec_link){.latency_ms = 1};
    hosts[0].up_mbit = RATE_MBIT;
    rows[1] = (struct hth_lab_test_row){.what = "TCP, Mbit/s of data",
                                        .set = RATE_MBIT * headers,
                                        .low = 0.85 * RATE_MBIT * headers,
                                        .high = RATE_MBIT};
    HTH_TRY(measure(&spec, measure_rate, part, &rows[1], error));

    spec.link = (struct hth_lab_spec_link){.latency_ms = 1, .loss = LOSS};
    hosts[0].up_mbit = 0;
    rows[2] = (struct hth_lab_test_row){.what = "UDP packets lost, share",
                                        .set = LOSS,
                                        .low = LOSS - 4 * error_of_loss,
                                        .high = LOSS + 4 * error_of_loss};
    return measure(&spec, measure_loss, part, &rows[2], error);
}
