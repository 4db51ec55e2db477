/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view.h: what one collection (gather.h) showed of a run: its living peers with their figures, the
 * hosts of each expert, and the sums. A monitor keeps the newest view and the one before, from
 * which rates follow; pages, terminals and files are made from it.
 *
 * Every figure is that of status_json.h and of the roster's notes, and what trainers recall
 * (recall.h), put together so that one liar among three moves little (agree.h). Strings are inert
 * (inert.h), and there is no address.
 *
 * Plain memory, loop thread.
 */
#ifndef HTH_MONITOR_VIEW_H
#define HTH_MONITOR_VIEW_H

#include "averaging/roster.h"
#include "core/ident.h"
#include "monitor/gather.h"

/* Experts of all layers for which hosts are listed; layers beyond have sums only. */
#define HTH_VIEW_PLACES_MAX 65536
#define HTH_VIEW_HOSTS      8 /* listed of one expert */
/* UTF-8 that became U+FFFD is up to three times as long. */
#define HTH_VIEW_NAME_MAX (3 * HTH_NAME_LEN_MAX + 1)

enum hth_view_role { HTH_VIEW_TRAINER, HTH_VIEW_HOST, HTH_VIEW_HELPER, HTH_VIEW_NODE };
enum hth_view_state {
    HTH_VIEW_ANSWERS,
    HTH_VIEW_SILENT,
    HTH_VIEW_UNREACHABLE, /* it answers, and says that others can't dial it */
    HTH_VIEW_UNASKED      /* it only dials, or its turn did not come */
};

/* Numbers that are not known are NAN or 0. */
struct hth_view_peer {
    struct hth_peer_id id;
    char short_id[HTH_PEER_SHORT_LEN];
    enum hth_view_role role;
    enum hth_view_state state;
    double seen_s, up_s;
    char version[HTH_VERSION_LEN_MAX + 1];
    uint8_t compute;  /* of a host */
    uint32_t experts; /* of a host, as it says */
    uint64_t rows;
    double rows_per_s; /* of a host, since the view before */
    uint32_t able_rows_per_s, queue_ms;
    double unsaved_s;
    bool trains; /* step, samples and samples_per_s are known */
    uint64_t step, samples;
    double samples_per_s, loss;
    uint32_t flags;                      /* of its note */
    struct hth_roster_last last;         /* members 0: it averaged with nobody yet */
    uint64_t saved_step;                 /* its newest checkpoint; 0: none, or it did not tell */
    bool recalls;                        /* it answered what follows (recall.h) */
    uint64_t forks, joined;
    uint32_t first_expert, expert_count; /* in the view's list; 0: they are not served */
};

struct hth_view_layer {
    char name[HTH_VIEW_NAME_MAX], kind[HTH_VIEW_NAME_MAX];
    uint32_t width;
    struct hth_grid grid;
    uint32_t places, served, twice;
    uint32_t *replicas;                /* of each expert; NULL: beyond HTH_VIEW_PLACES_MAX */
    uint16_t (*hosts)[HTH_VIEW_HOSTS]; /* indices of peers */
};

struct hth_run_view {
    uint32_t refs;    /* private */
    int64_t asked_us; /* wall clock, when the collection was done */
    char run[HTH_VIEW_NAME_MAX];
    struct hth_view_peer *peer; /* by role, then id */
    uint32_t peer_count;
    struct hth_view_layer *layer;
    uint32_t layer_count;
    struct hth_gather_expert *expert; /* of all peers that serve */
    uint32_t expert_count;

    uint32_t trainers, hosts, helpers, nodes, silent;
    double samples_per_s, rows_per_s;
    /* As trainers tell, now or, while none does, last; 0: nobody did. */
    uint64_t step, total;
    double loss;               /* NAN: nobody did */
    uint64_t saved_step;       /* the newest checkpoint */
    uint64_t behind;           /* samples behind the parameters */
    uint32_t saved_t, began_t; /* Unix s */
    uint64_t places, served;
};

/* `before` (may be NULL) gives rates. After the collection is done. */
struct hth_run_view *hth_run_view_new(const struct hth_gather *g,
                                      const struct hth_run_view *before);
/* For a job that reads it; taken and given back on the loop. */
struct hth_run_view *hth_run_view_ref(struct hth_run_view *view);
/* Gives one reference back. NULL is fine. */
void hth_run_view_free(struct hth_run_view *view);
/* NULL: not in it. */
const struct hth_view_peer *hth_run_view_find(const struct hth_run_view *view,
                                              const struct hth_peer_id *id);
/* Whether it is there: it answers, or it only dials and its record is valid. */
bool hth_view_lives(const struct hth_view_peer *p);
const char *hth_view_role_name(enum hth_view_role role);

#endif
