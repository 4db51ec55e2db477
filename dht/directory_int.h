/* SPDX-License-Identifier: Apache-2.0 */
/*
 * directory_int.h: private to dht/directory*.c. Boards deliver records, claims put them into
 * postings, and views are built from those.
 *
 *   root board of a layer --- record ---> claim --- names all experts -------------> postings
 *                                             \--- names first  coordinates only -> branches
 *   branch (layer.c0.) board - record --> claim of the experts below c0 -----------> postings
 *
 * A host exists while it has claims. Its addresses and figures come from its newest record.
 * directory_claims.c handles records, directory.c owns layers, directory_query.c answers queries.
 */
#ifndef HTH_DHT_DIRECTORY_INT_H
#define HTH_DHT_DIRECTORY_INT_H

#include "dht/board.h"
#include "dht/directory.h"
#include "dht/listing.h"
#include "dht/postings.h"
#include "dht/view.h"

struct hth_map;

struct hth_dir_host {
    int64_t issued_us; /* of its newest record, while `source` is NULL; else source->issued_us */
    bool dead;         /* not to be used: marked, or not proved where that is asked for */
    bool marked;       /* dead, by the caller */
    bool proved;       /* a connection to its address proved its key */
    uint32_t slot;
    struct hth_dir_claim *source; /* claim whose record gave the info; NULL: ended */
    struct hth_dir_claim *claims; /* list */
    struct hth_peer_id id;
    struct hth_host_info info;
    int64_t dead_wall_us;
    int64_t dead_until_us;
};

/* One believed record. A renewal touches the first cache line alone. */
struct hth_dir_claim {
    int64_t issued_us; /* of its newest record, while `is_source` */
    int64_t until_us;
    bool is_source; /* the host's info is from it */
    bool dead;      /* copy of the host's `dead` */
    bool refuted;   /* some of its experts are left out of `posted`, until its next record */
    bool firsts;    /* the runs are first coordinates, in `runs`; else in `posted` */
    uint32_t run_count;
    struct hth_dir_host *host;
    struct hth_dir_layer *layer;
    struct hth_dir_claim *next, **link; /* in host->claims */
    struct hth_run *runs;
    struct hth_claim *posted;
    struct hth_timer *timer; /* of a claim made by hth_directory_load */
};

/* A prefix whose board is open, while a root record names it. */
struct hth_dir_branch {
    struct hth_dir_layer *layer;
    uint32_t c0;
    uint32_t refs;
    struct hth_board *board;
};

struct hth_dir_layer {
    struct hth_directory *dir;
    struct hth_postings *postings;
    struct hth_grid_view *view;
    uint64_t seen_version; /* version of the postings when the view was made */
    struct hth_board *board;
    struct hth_map *branches; /* c0 -> branch */
    struct hth_grid grid;
    bool wanted; /* true: hosts of another shape are refused */
    struct hth_layer_shape shape;
};

struct hth_directory { /* fields used by each query and record come first */
    struct hth_env *env;
    struct hth_dir_layer **layers; /* `few`, or an allocated array of more */
    struct hth_dir_layer *few[2];
    hth_fn *change;
    struct hth_map *by_id; /* peer id -> host */
    uint32_t layer_count, layer_capacity;
    uint32_t host_count, dead_count;
    struct hth_dir_host **order; /* in order of arrival */
    struct hth_dir_host **slots; /* by slot number; NULL: free */
    uint32_t host_capacity;
    bool notify_set;
    void *change_arg;
    struct hth_dht *dht;
    struct hth_timer *dead_timer;
    struct hth_timer *notify;
    struct hth_directory_stats stats;
    char network[HTH_NAME_LEN_MAX + 1];
    struct hth_directory_opts opts;
    struct hth_record_cache *cache;
    struct hth_dir_others *others; /* NULL: no host had another run file yet */
};

/* The change callback comes on the next turn. */
void hth_dir_notify(struct hth_directory *dir);
void hth_dir_on_notify(void *arg);

struct hth_dir_host *hth_dir_host_get(const struct hth_directory *dir,
                                      const struct hth_peer_id *id);
/* Finds or makes a host; the caller must give a new one a claim at once. Errors: E_BUDGET. */
enum hth_err hth_dir_host_need(struct hth_directory *dir, const struct hth_peer_id *id,
                               struct hth_dir_host **out) HTH_MUST;
void hth_dir_host_mark(struct hth_directory *dir, struct hth_dir_host *h, bool marked);
void hth_dir_host_set_proved(struct hth_directory *dir, struct hth_dir_host *h, bool proved);
void hth_dir_arm_dead_timer(struct hth_directory *dir);
void hth_dir_on_dead_timer(void *arg);
void hth_dir_host_update(struct hth_directory *dir, struct hth_dir_claim *c,
                         const struct hth_host_info *info, int64_t issued_us);
static inline int64_t hth_dir_host_issued_us(const struct hth_dir_host *h)
{
    return h->source != NULL ? h->source->issued_us : h->issued_us;
}

/* Opens the board of the layer's root (c0 is ignored) or of a prefix. Errors: those of a watch. */
enum hth_err hth_dir_board_open(struct hth_dir_layer *layer, enum hth_record_kind kind, uint32_t c0,
                                const struct hth_board_ops *ops, void *arg,
                                struct hth_board **out) HTH_MUST;
extern const struct hth_board_ops HTH_DIR_ROOT_OPS; /* their arg is the layer */

struct hth_dir_claim *hth_dir_claim_new(struct hth_dir_host *h, struct hth_dir_layer *layer);
/* Takes the listing's runs. The new ones are added before the old ones are removed, so that an
 * expert named by both stays live. Errors: E_BUDGET, E_NO_MEMORY, and nothing changed. */
enum hth_err hth_dir_claim_set(struct hth_dir_claim *c, struct hth_listing *l) HTH_MUST;
/* Drops one expert of the claim until the next record. Errors: E_NOT_FOUND, E_BUDGET,
 * E_NO_MEMORY. */
enum hth_err hth_dir_claim_refute(struct hth_dir_claim *c, uint32_t expert) HTH_MUST;
/* Frees the claim, and its host with the last one. */
void hth_dir_claim_free(struct hth_dir_claim *c);

/* A record of this layer whose grid or shape is not the layer's. */
void hth_dir_other_seen(struct hth_dir_layer *layer, const struct hth_record *rec,
                        const struct hth_listing *l);
/* NULL is fine. */
void hth_dir_others_free(struct hth_dir_others *others);

#endif
