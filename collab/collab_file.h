/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collab_file.h: what a member has to remember while its process is away, as a file.
 *
 * A process that ends in order writes it beside its checkpoint; the next one reads it and removes
 * it before its first message. With the file the member was only frozen: it goes on in the same
 * life, with the same vote and the same head. Without it the next process is another member, which
 * has no vote (choice.h). So a file is believed at most once, and a crash makes a new life.
 *
 *     magic "HTHVOTE\0", u32 version, run 32, u64 life, u64 step, u32 promised, u8 accepted
 *     (0: none, 1: the tip), u32 accepted_n, u32 batch,
 *     links from the tip's anchor to the tip (proof.h),
 *     u16 count, of each member of the tip's roll: id 32, address (roll_msg.h),
 *     hash of all that 32
 *
 * The reader trusts little in it: the hash finds damage, the run's hash a file of another run, and
 * links are judged as those of a peer. But the member vouches for its chain (hth_chain_trust).
 *
 * Pure functions, any thread.
 */
#ifndef HTH_COLLAB_COLLAB_FILE_H
#define HTH_COLLAB_COLLAB_FILE_H

#include "collab/choice.h"
#include "collab/roll_msg.h"
#include "core/blob.h"

/* Above what links of full lines need. */
#define HTH_COLLAB_FILE_BYTES_MAX (512u << 10)

struct hth_collab_file {
    uint64_t life;
    struct hth_vote vote;
    struct hth_roll_peer peer[HTH_ROLL_LINE_MAX]; /* ids and addresses */
    uint32_t peers;
};

/* With the links of the vote's chain. Errors: E_TOO_LARGE, E_STALE (it accepted another candidate
 * than its tip). */
enum hth_err hth_collab_file_write(const struct hth_chain *chain,
                                   const struct hth_collab_file *file,
                                   struct hth_blob **out) HTH_MUST;
/* Takes the links up into a chain of the same run, which lead to that step. Errors: E_TRUNCATED,
 * E_BAD_MAGIC, E_VERSION, E_CORRUPT (another hash), E_WRONG_RUN, E_STALE (it is of another step),
 * those of hth_links_get, E_MALFORMED (accepted, no links, they lead elsewhere, or bytes are left
 * over), E_TOO_LARGE (peers). */
enum hth_err hth_collab_file_read(struct hth_chain *chain, const uint8_t *bytes, size_t len,
                                  uint64_t step, struct hth_collab_file *out) HTH_MUST;

#endif
