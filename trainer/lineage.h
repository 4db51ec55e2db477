/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lineage.h: which steps parameters have in them, so that a run notices when it has split.
 *
 * Trainers that share batches have the same parameters as long as each took each step with the same
 * average. A death in the middle of a sweep may leave the members of one line with another mean
 * than those of the others; nothing of that shows in the number of the step. So each trainer keeps
 * a digest,
 *
 *     digest <- H(digest, number of the step, whose values were in its average)
 *
 * and says in its note what it was at the last *milestones* (every HTH_LINEAGE_EVERY steps). Equal
 * milestones: equal parameters, up to the order of sums. Everybody counts who shows what at the
 * latest milestone where those who say nothing of it yet could not turn the vote; the most win, of
 * two with as many the larger mark. Who is not among the winners fetches the state of one that is
 * (newcomer.c).
 *
 *     step   8      12      16          milestones of A: a8 a12 a16
 *     A,B,C  o---o---o---o---o          of D:            a8 d12 d16
 *     D          '---o---o---o          at 12: three say a12, D yields
 *
 * Who takes the number of a step over without the parameters (newcomer.c) forgets its line: it says
 * nothing and is not outvoted. When it has become what the others are, it takes up the mark that
 * most of them show, and adds the steps that it made with them since.
 *
 * A fetched state brings the marks of its donor, and is refused when they are not the winners'; a
 * checkpoint those of its trainer.
 * Nobody proves what it says: a liar that says another mark is one voice, as in a round, and none
 * as long as no peer that spoke to us says the same: keys that only write notes cost nothing. On a
 * grid who spoke to us are those of our lines; of a part with other parameters somebody is in the
 * lines of somebody of the rest, who yields first, and so on.
 *
 * Pure: no clock, no I/O.
 */
#ifndef HTH_TRAINER_LINEAGE_H
#define HTH_TRAINER_LINEAGE_H

#include "averaging/roster.h"
#include "core/bytes.h"

#define HTH_LINEAGE_EVERY 4
#define HTH_LINEAGE_KEPT  8 /* milestones */
#define HTH_LINEAGE_TAIL  (HTH_ROSTER_MARKS * HTH_LINEAGE_EVERY)

/* What was so at a step. */
struct hth_mark {
    uint64_t step; /* 0: nothing */
    uint64_t mark;
};

struct hth_lineage {
    uint64_t digest;                 /* 0: forgotten */
    uint64_t kept[HTH_LINEAGE_KEPT]; /* by number of the milestone */
    uint64_t since, last;            /* milestones that are known, as steps; since > last: none */
    uint64_t alike;                  /* forgotten: as the others from this step on; MAX: not yet */
    uint64_t origin[HTH_LINEAGE_TAIL]; /* forgotten: by number of the step */
};

/* The marks of all that take part, our own (hth_lineage_say) included; those of ours and of who
 * spoke to us first. The rest are notes only: they count for a mark that one of the first shows. */
struct hth_lineage_voices {
    const struct hth_roster_marks *said;
    uint32_t count, known;
};

/* At the beginning of a run, or where it goes on from a file without a lineage: nothing is known
 * before `step`. */
void hth_lineage_init(struct hth_lineage *l, uint64_t step);
/* A step was taken, and parameters have been changed that many times now. */
void hth_lineage_add(struct hth_lineage *l, uint64_t step, uint64_t origin);
/* Goes on from `step` with parameters that are not those of the others; later it has theirs; and
 * then it takes up their line as soon as notes tell it, or begins one where nobody has any. True
 * when it knows its line again. */
void hth_lineage_forget(struct hth_lineage *l, uint64_t step);
void hth_lineage_is_alike(struct hth_lineage *l, uint64_t step);
bool hth_lineage_adopt(struct hth_lineage *l, uint64_t step, const struct hth_lineage_voices *v);
/* 0: not known. */
uint64_t hth_lineage_at(const struct hth_lineage *l, uint64_t milestone);
/* For a note: the last milestone and the marks from there backwards. */
void hth_lineage_say(const struct hth_lineage *l, struct hth_roster_marks *out);

/* True when others have won: then `winner` is what they show. */
bool hth_lineage_is_outvoted(const struct hth_lineage *l, const struct hth_lineage_voices *v,
                             struct hth_mark *winner);
/* Whether somebody who says this may be of that line: it shows that mark, or is past it. */
bool hth_lineage_may_be(const struct hth_roster_marks *said, const struct hth_mark *of);

/* How a trainer stands among those who say something, for people: a split in the last steps of a
 * run is too late for a vote. At the latest of our milestones that another one shows, too; step 0:
 * at none. */
struct hth_lineage_standing {
    uint64_t step, mark; /* ours */
    uint32_t alike;      /* others that show the same, and ... */
    uint32_t unlike;     /* ... as many as most of the rest, who agree among themselves */
};
/* `said`: our own first. All that is kept of ours is looked at: notes may be a second old. */
void hth_lineage_stands(const struct hth_lineage *ours, const struct hth_roster_marks *said,
                        uint32_t count, struct hth_lineage_standing *out);

/* The bytes that go with a state. */
#define HTH_LINEAGE_BYTES (8 * (3 + HTH_LINEAGE_KEPT))
void hth_lineage_write(const struct hth_lineage *l, struct hth_writer *w);
/* Errors: E_TRUNCATED, E_RANGE (not of a state at that step). */
enum hth_err hth_lineage_read(struct hth_reader *r, uint64_t step,
                              struct hth_lineage *out) HTH_MUST;

#endif
