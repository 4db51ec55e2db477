/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fashion.h: Fashion-MNIST, 60,000 grey pictures of 28 x 28 pixels and 10,000 that are held out, in
 * ten classes (Debian's package dataset-fashion-mnist, licence Expat).
 *
 * The files are idx files (trainer/data.h), plain or gzip: a header of big-endian numbers, then
 * pixels or labels. Its own test files become the held-out part.
 */
#ifndef HTH_DATA_FASHION_H
#define HTH_DATA_FASHION_H

#include "data/folder.h"

#define HTH_FASHION_DIR     "/usr/share/datasets/fashion-mnist"
#define HTH_FASHION_SIDE    28
#define HTH_FASHION_LICENCE "Fashion-MNIST, copyright 2017 Zalando SE, Expat (MIT) licence"

/* Caption and class of each picture is its class's name. Errors: E_NO_FILE and its like,
 * E_BAD_MAGIC, E_TRUNCATED, E_RANGE (a label), those of the pack. */
enum hth_err hth_fashion_pack(struct hth_env *env, const char *dir, uint32_t side,
                              struct hth_pack *pack, hth_pack_progress_fn *progress, void *arg,
                              struct hth_why *why) HTH_MUST;

#endif
