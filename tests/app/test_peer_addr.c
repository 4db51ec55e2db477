/* SPDX-License-Identifier: Apache-2.0 */
/* test_peer_addr.c: the address that is announced is one that is listened on. */
#define _POSIX_C_SOURCE 200809L

#include "app/peer_addr.h"
#include "support/suite.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

static struct hth_addr addr_of(const char *text)
{
    struct hth_addr addr;
    assert_ok(hth_addr_parse(text, &addr));
    return addr;
}

TEST(a_given_address_is_announced)
{
    static const char *const given[] = {"127.0.0.1:4700", "[::1]:5", "203.0.113.9:4700"};
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(given); i++) {
        struct hth_addr listen = addr_of(given[i]), join = addr_of("10.0.0.1:1"), out;
        hth_peer_addr_announce(&listen, &join, &out);
        assert_true(hth_addr_eq(&out, &listen));
    }
}

/* With IPv4 alone no IPv6 address is announced, whatever is joined; and loopback only where a
 * machine has nothing else, which the address towards an interface of its own shows. */
TEST(a_wildcard_becomes_an_address_of_its_family)
{
    static const char *const joined[] = {"[::1]:4700", "127.0.0.1:4700", "[2001:db8::7]:4700"};
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(joined); i++) {
        struct hth_addr listen = addr_of("0.0.0.0:4701"), join = addr_of(joined[i]), out,
                        none = {0};
        struct hth_addr other;
        hth_peer_addr_announce(&listen, &join, &out);
        assert_int_equal(out.family, 4);
        assert_int_equal(out.port, 4701);
        assert_int_not_equal(hth_addr_scope(&out), HTH_SCOPE_NONE);
        hth_peer_addr_announce(&listen, &none, &other);
        assert_true(hth_addr_eq(&out, &other));
    }
}

TEST(a_used_udp_port_is_not_free)
{
    struct sockaddr_in sa = {.sin_family = AF_INET};
    socklen_t len = sizeof(sa);
    struct hth_addr addr = addr_of("127.0.0.1:1"), any;
    (void)state;
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(fd, (struct sockaddr *)&sa, len), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&sa, &len), 0);
    addr.port = ntohs(sa.sin_port);
    assert_false(hth_peer_addr_udp_free(&addr));
    hth_peer_addr_any(addr.port, &any); /* both families contain it */
    assert_int_equal(hth_addr_scope(&any), HTH_SCOPE_NONE);
    assert_false(hth_peer_addr_udp_free(&any));
    close(fd);
    assert_true(hth_peer_addr_udp_free(&addr));
}

TEST(remarks_name_the_reach)
{
    struct hth_addr addr = addr_of("127.0.0.1:1");
    (void)state;
    assert_string_equal(hth_peer_addr_remark(&addr), " (this machine only)");
    addr = addr_of("192.168.1.2:1");
    assert_non_null(strstr(hth_peer_addr_remark(&addr), "a private address"));
    addr = addr_of("203.0.113.9:1");
    assert_string_equal(hth_peer_addr_remark(&addr), "");
}
