/* SPDX-License-Identifier: Apache-2.0 */
/*
 * identity.h: a node's Ed25519 key on disk.
 *
 * The file is three lines of text, so that a person can recognise the key:
 *
 *     hearth-identity-v1
 *     <64 hex digits: the secret>
 *     <64 hex digits: the public key, which must belong to the secret>
 *
 * The first start makes it with mode 0600, whole or not at all. When two processes start at the
 * same time, both get the same key. A file that other users may read is refused, because anyone
 * with the secret can act as this node.
 */
#ifndef HTH_NET_IDENTITY_H
#define HTH_NET_IDENTITY_H

#include "core/crypto.h"

#define HTH_IDENTITY_WHY_MAX 512

/* Loads the key, or makes one when there is no file. *created (may be NULL) is true if it made one.
 * On error `why` holds one sentence: what is wrong and what to do. Errors: E_PERMISSION
 * (unreadable, not ours, or readable by others), E_BAD_KEY (not such a file, or damaged), E_IO,
 * E_DISK_FULL. */
enum hth_err hth_identity_load(const char *path, struct hth_secret *out, bool *created,
                               char why[HTH_IDENTITY_WHY_MAX]) HTH_MUST;

/* Makes the file of a known secret, whole or not at all; never replaces one. Errors: E_DUPLICATE
 * (there is one), those of writing. */
enum hth_err hth_identity_save(const char *path, const struct hth_secret *secret) HTH_MUST;

/* The content of such a file. Errors: E_BAD_KEY, and *out is zero. */
enum hth_err hth_identity_parse(const void *text, size_t len, struct hth_secret *out) HTH_MUST;

/* A fresh secret from the kernel. Errors: E_IO. */
enum hth_err hth_identity_random(struct hth_secret *out) HTH_MUST;

#endif
