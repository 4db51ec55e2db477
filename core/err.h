/* SPDX-License-Identifier: Apache-2.0 */
/*
 * err.h: every way something can fail, in one table.
 *
 * A fallible function returns `enum hth_err`; HTH_OK is 0. Each code has a class that tells which
 * side has to act, so that callers decide by class and people read the text:
 *
 *   RETRY  a temporary failure: try again later or elsewhere
 *   PEER   a peer sent or did something wrong: drop the message or the peer, and continue
 *   LOCAL  this machine or its configuration: a person must act
 *   BUG    an impossible state of our own
 *
 * The numeric values travel on the wire (rpc replies): append at the end, never renumber. An error
 * is logged once, where it becomes known: what happened, to what, and what to do next.
 */
#ifndef HTH_CORE_ERR_H
#define HTH_CORE_ERR_H

enum hth_err_class {
    HTH_CLASS_OK,
    HTH_CLASS_RETRY,
    HTH_CLASS_PEER,
    HTH_CLASS_LOCAL,
    HTH_CLASS_BUG
};

/* X(number, NAME, class, text) */
#define HTH_ERR_MAP(X)                                                                             \
    X(0, OK, OK, "success")                                                                        \
    X(1, E_AGAIN, RETRY, "try again later")                                                        \
    X(2, E_BUSY, RETRY, "the peer is busy; retry after the time it gave")                          \
    X(3, E_TIMEOUT, RETRY, "no answer before the deadline")                                        \
    X(4, E_CANCELED, RETRY, "canceled by the caller")                                              \
    X(5, E_QUEUE_FULL, RETRY, "a bounded queue is full")                                           \
    X(6, E_BUDGET, RETRY, "a byte budget is used up")                                              \
    X(7, E_CLOSED, RETRY, "the connection was closed")                                             \
    X(8, E_REFUSED, RETRY, "nothing listens at that address")                                      \
    X(9, E_UNREACHABLE, RETRY, "the address can't be reached")                                     \
    X(10, E_DRAINING, RETRY, "the peer is shutting down")                                          \
    X(11, E_NO_EXPERTS, RETRY, "no live expert was found")                                         \
    X(12, E_NOT_FOUND, RETRY, "nothing under that name")                                           \
    X(13, E_PROTOCOL, PEER, "the peer broke the protocol")                                         \
    X(14, E_TRUNCATED, PEER, "the data ends too early")                                            \
    X(15, E_TOO_LARGE, PEER, "larger than the limit")                                              \
    X(16, E_MALFORMED, PEER, "the data can't be parsed")                                           \
    X(17, E_VERSION, PEER, "no protocol version in common")                                        \
    X(18, E_BAD_MAGIC, PEER, "this is not hearth's protocol or file")                              \
    X(19, E_BAD_SIGNATURE, PEER, "the signature does not match")                                   \
    X(20, E_BAD_PEER_ID, PEER, "the peer's key is not the one expected")                           \
    X(21, E_EXPIRED, PEER, "the record has expired")                                               \
    X(22, E_CLOCK_SKEW, PEER, "the clocks differ by more than 3 seconds")                          \
    X(23, E_STALE, PEER, "older than what is already known")                                       \
    X(24, E_BAD_SHAPE, PEER, "a tensor's shape or type is not the one declared")                   \
    X(25, E_NOT_FINITE, PEER, "a tensor holds NaN or infinity")                                    \
    X(26, E_NO_SUCH_EXPERT, PEER, "this host does not have that expert")                           \
    X(27, E_NO_SUCH_METHOD, PEER, "this peer does not serve that method")                          \
    X(28, E_NORM, PEER, "a gradient's norm is beyond the limit")                                   \
    X(29, E_WRONG_RUN, PEER, "the peer belongs to another run or network")                         \
    X(30, E_REPLAYED, PEER, "this message was seen before")                                        \
    X(31, E_NO_MEMORY, LOCAL, "out of memory")                                                     \
    X(32, E_IO, LOCAL, "reading or writing a file failed")                                         \
    X(33, E_NO_FILE, LOCAL, "no such file")                                                        \
    X(34, E_PERMISSION, LOCAL, "permission denied")                                                \
    X(35, E_DISK_FULL, LOCAL, "no space left on the disk")                                         \
    X(36, E_ADDR_IN_USE, LOCAL, "the address is already in use")                                   \
    X(37, E_CONFIG, LOCAL, "the configuration is wrong")                                           \
    X(38, E_USAGE, LOCAL, "the command line is wrong")                                             \
    X(39, E_UNSUPPORTED, LOCAL, "this build or machine can't do that")                             \
    X(40, E_NO_DEVICE, LOCAL, "no such device")                                                    \
    X(41, E_CORRUPT, LOCAL, "a file's content is damaged")                                         \
    X(42, E_BAD_KEY, LOCAL, "the identity key can't be used")                                      \
    X(43, E_JOIN_NOTHING_LISTENS, LOCAL, "join failed: no DHT node answers at that address")       \
    X(44, E_JOIN_UDP_CLOSED, LOCAL, "join failed: UDP packets do not come back")                   \
    X(45, E_JOIN_WRONG_NETWORK, LOCAL, "join failed: the peer is in another network")              \
    X(46, E_JOIN_CLOCK, LOCAL, "join failed: this clock differs from the swarm's by over 3 s")     \
    X(47, E_JOIN_VERSION, LOCAL, "join failed: the swarm speaks a newer protocol")                 \
    X(48, E_BUG, BUG, "internal error")                                                            \
    X(49, E_RANGE, PEER, "a number is outside its allowed range")                                  \
    X(50, E_DUPLICATE, PEER, "the same thing was given twice")                                     \
    X(51, E_DEVICE, LOCAL, "the compute device failed")                                            \
    X(52, E_OTHER_SETTINGS, LOCAL, "others train a run of this name with other settings")          \
    X(53, E_GONE, RETRY, "the host does not keep the rows of that forward; send them again")       \
    X(54, E_NOT_ADMITTED, PEER, "the run is closed, and no invite to it was shown")                \
    X(55, E_PASS_EXPIRED, PEER, "the invite has expired: ask for a new one")                       \
    X(56, E_PASS_EARLY, PEER, "the invite is not valid yet: compare clocks, or wait")              \
    X(57, E_PASS_OTHER_RUN, PEER, "the invite is for another run or another run file")             \
    X(58, E_PASS_OTHER_KEY, PEER, "the pass was made for another peer's key")                      \
    X(59, E_PASS_REVOKED, PEER, "the invite was revoked")                                          \
    X(60, E_PASS_ROLE, PEER, "the invite does not give the right to do this")                      \
    X(61, E_PASS_FORGED, PEER, "the invite was not signed by the run's owner or a deputy")         \
    X(62, E_BAD_FOLD, PEER, "the contributions of a fold do not add up to its links")

enum hth_err {
#define HTH_ERR_ENUM(num, name, cls, text) HTH_##name = num,
    HTH_ERR_MAP(HTH_ERR_ENUM)
#undef HTH_ERR_ENUM
};

#define HTH_ERR_COUNT 63

/* The identifier without its prefix ("E_TIMEOUT"), for logs, JSON and metrics. Never NULL. */
const char *hth_err_name(enum hth_err err);
/* The sentence of the table. Never NULL; an unknown code (a newer peer's) gives "unknown error". */
const char *hth_err_text(enum hth_err err);
/* The side that has to act. Unknown codes are PEER: only a peer can have sent them. */
enum hth_err_class hth_err_class(enum hth_err err);
/* A code from the wire: unknown numbers become HTH_E_PROTOCOL. */
enum hth_err hth_err_from_wire(uint32_t number);

#endif
