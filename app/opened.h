/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opened.h: a trained model and its data, opened from the folder of a trainer.
 *
 *   hth_opened_read     the trunk's file, and from it the run file
 *   hth_opened_data     the data set, and the words and code book behind the model's ids
 *   hth_opened_infer    the model, with its experts from the folder or on their hosts
 *   hth_opened_clear
 *
 * Nothing is written to the folder, and its trainer may be running. Nothing is printed: `why` says
 * what is wrong and what to do.
 *
 * It blocks on the disk: call it at the start of a program, or in jobs of the io lane, one at a
 * time; there hth_opened_infer takes experts of the folder only.
 */
#ifndef HTH_APP_OPENED_H
#define HTH_APP_OPENED_H

#include "cli/config.h"
#include "cli/runfile.h"
#include "data/codes.h"
#include "trainer/infer.h"

struct hth_set;
struct hth_words;

/* The files behind the ids of a model. They lie in the data set it learnt from, or beside the trunk
 * of a model that came from elsewhere (hearth import). Its schema covers their hash: others are
 * noticed, never used. NULL: there is none. */
struct hth_side {
    struct hth_blob *words, *book;
};
/* Whether ids of this run have a meaning that only words say. */
bool hth_side_needed(const struct hth_runfile *run);
/* hth_data_hash of both. */
uint64_t hth_side_hash(struct hth_env *env, const struct hth_side *side);

struct hth_opened_opts {
    const char *dir;        /* the folder */
    const char *checkpoint; /* "last", "best" or a step (trainer/saved.h); NULL: the last */
    const char *data;       /* a data set in place of the run file's; NULL: that one */
};

struct hth_opened {
    struct hth_opened_opts opts;
    struct hth_trained *trained;
    const struct hth_model_about *about; /* of trained */
    struct hth_runfile *run;
    struct hth_model_opts model;
    char *path, *folder;     /* of the trunk's file; the folder it lies in */
    struct hth_set *set;     /* of the model's ids; NULL: there is none */
    struct hth_why no_set;   /* why there is none, for those who need one */
    struct hth_side side;    /* where tokens have a meaning */
    struct hth_words *words; /* of them; NULL: tokens are bytes, or there are none */
    struct hth_codes paint;  /* book and decoder, after hth_opened_book */
    /* private */
    struct hth_config_data data;
    float mean, std; /* of pixels, as the run file's data has them */
};

/* Clear *out in any case. Errors: those of hth_trained_open and hth_saved_find (E_USAGE for no
 * such checkpoint), and of the run file. */
enum hth_err hth_opened_read(struct hth_env *env, const struct hth_opened_opts *opts,
                             struct hth_opened *out, struct hth_why *why) HTH_MUST;
/* Errors: those of a set, of words and of reading files; a set that the model can do without is no
 * error, nor are no words or those of another model. */
enum hth_err hth_opened_data(struct hth_env *env, struct hth_opened *o,
                             struct hth_why *why) HTH_MUST;
/* Whether the model has its words. Errors: E_CONFIG (none), E_WRONG_RUN (others). */
enum hth_err hth_opened_check_words(const struct hth_opened *o, struct hth_why *why) HTH_MUST;
/* Loads the code book, for hth_opened_paint. Errors: E_NOT_FOUND (there is none), E_CONFIG (of
 * fewer codes than the model's), those of hth_book_file_load. */
enum hth_err hth_opened_book(struct hth_opened *o, struct hth_why *why) HTH_MUST;
/* `in` has back end, rows and, for experts on hosts, rpc and directory; the rest is filled in
 * here. Errors: those of hth_opened_check_words and hth_infer_new. */
enum hth_err hth_opened_infer(struct hth_env *env, const struct hth_opened *o,
                              struct hth_infer_opts *in, struct hth_infer **out,
                              struct hth_why *why) HTH_MUST;
/* All zero is fine. Free the model first. */
void hth_opened_clear(struct hth_opened *o);

/* "a classifier", "a masked lm"; and the verb for such a model. */
const char *hth_opened_kind(const struct hth_opened *o);
const char *hth_opened_verb(const struct hth_opened *o);
/* Whether a text may be shorter than the context: experts of kind transformer are chosen by a whole
 * sequence. Errors: E_CONFIG. */
enum hth_err hth_opened_check_rows(const struct hth_opened *o, struct hth_why *why) HTH_MUST;
/* The held-out part of the data, or that of training, as it is: in order, and nothing changed.
 * Strings are borrowed. */
void hth_opened_samples(struct hth_opened *o, bool held_out, struct hth_data_opts *out);

/* Ids of a text as the model reads it, `begin` first where there are words; "[MASK]" becomes the
 * id behind all others in a masked model. Heap. */
#define HTH_MASK_TEXT "[MASK]"
int32_t *hth_opened_ids(const struct hth_opened *o, const char *text, size_t len, size_t *count);
/* The text of ids, as a terminal can show it. Heap. */
char *hth_opened_text(const struct hth_opened *o, const int32_t *ids, size_t count);
/* Ids of a picture's caption, [model.text]; returns how many it has: above that it was cut. */
size_t hth_opened_caption(const struct hth_opened *o, const char *caption, int32_t *ids);

/* Pixels of a picture's side; its pixels, side * side * 3 bytes. Errors: those of
 * hth_decoder_paint. */
uint32_t hth_opened_side(const struct hth_opened *o);
enum hth_err hth_opened_paint(struct hth_opened *o, const int32_t *codes, uint8_t *rgb) HTH_MUST;

#endif
