/* SPDX-License-Identifier: Apache-2.0 */
/*
 * words.h: the tokens of texts: words and signs of a list, and bytes for all others.
 *
 *     id 0        padding
 *     id 1        begin of a text
 *     id 2..257   a byte
 *     id 258..    words by falling count, equal counts by bytes
 *
 * A word is a run of letters, digits and non-ASCII characters; a sign is any other character that
 * is not blank, alone. Words are lower case (Latin, Greek, Cyrillic, Armenian). A word that is not
 * in the list is written as its bytes, and two such neighbours are kept apart by the byte of a
 * blank; so any text can be encoded, and decoding gives it back but for case and blanks. Ids of a
 * list that is cut short are those of the whole list: a model with `vocab: N` reads ids below N.
 *
 * words.json, beside data.json, which has its hash:
 *
 *     {"version": 1, "words": [["dark", 1312], ["skin", 1785], ...]}
 *
 * Parsers take bytes as hostile. Pure functions, any thread; a list is constant once made.
 */
#ifndef HTH_DATA_WORDS_H
#define HTH_DATA_WORDS_H

#include "core/blob.h"
#include "core/limits.h"
#include "data/why.h"

#define HTH_WORDS_FILE "words.json"
#define HTH_ID_PAD     0
#define HTH_ID_BEGIN   1
#define HTH_ID_BYTE    2
#define HTH_ID_WORD    258

/* ---- text ---------------------------------------------------------------------------------- */

/* Whether bytes are UTF-8 without control characters other than tab and line ends. */
bool hth_text_ok(const char *text, size_t len);
/* Characters of text that is UTF-8. */
size_t hth_text_chars(const char *text, size_t len);
/* The next character of bytes that may be no text: to `out`, with a 0. A byte that is no UTF-8, and
 * a control character that hth_text_ok refuses, become U+FFFD, so that a terminal can show them.
 * Returns how many bytes it took; 0: none are left, or with `more` the last ones are the beginning
 * of a character. */
#define HTH_TEXT_CHAR_MAX 5
size_t hth_text_char(const char *text, size_t len, bool more, char out[HTH_TEXT_CHAR_MAX]);
/* Makes UTF-8 lower case in place; letters whose lower case has more or fewer bytes stay. */
void hth_text_lower(char *text, size_t len);
/* The next word or sign at or after *at, in lower case; advances *at. Returns its length; 0 at the
 * end. A run of more than HTH_WORD_BYTES_MAX bytes gives several words. */
size_t hth_text_word(const char *text, size_t len, size_t *at, char out[HTH_WORD_BYTES_MAX]);

/* ---- a list -------------------------------------------------------------------------------- */

struct hth_words;

/* `file` is the name in error texts. Errors: E_TOO_LARGE, E_MALFORMED (no JSON, or an entry that is
 * no word in lower case), E_VERSION, E_RANGE, E_DUPLICATE (a word twice). */
enum hth_err hth_words_parse(const char *file, const uint8_t *bytes, size_t len,
                             struct hth_words **out, struct hth_why *why) HTH_MUST;
/* NULL is fine. */
void hth_words_free(struct hth_words *words);
/* The file's bytes. Errors: E_NO_MEMORY. */
enum hth_err hth_words_write(const struct hth_words *words, struct hth_blob **out) HTH_MUST;
uint32_t hth_words_count(const struct hth_words *words);
/* Word i and how often it was counted. */
const char *hth_words_at(const struct hth_words *words, uint32_t i, uint64_t *count);

/* Ids of a text, all below `vocab` (at least HTH_ID_WORD); at most `max` are stored. Returns how
 * many there are: above `max` the text was cut. */
size_t hth_words_encode(const struct hth_words *words, uint32_t vocab, const char *text, size_t len,
                        int32_t *ids, size_t max);
/* Text of ids, with blanks between words; unknown ids and padding give nothing. Stores at most
 * max - 1 bytes and a 0, and returns the length of the whole. Bytes that a model chose may be no
 * UTF-8. */
size_t hth_words_decode(const struct hth_words *words, const int32_t *ids, size_t count, char *out,
                        size_t max);

/* ---- counting ------------------------------------------------------------------------------ */

struct hth_word_counter;

struct hth_word_counter *hth_word_counter_new(void);
/* NULL is fine. */
void hth_word_counter_free(struct hth_word_counter *counter);
/* New words are left out beyond HTH_WORDS_COUNTED_MAX. */
void hth_word_counter_add(struct hth_word_counter *counter, const char *text, size_t len);
/* The words seen at least `min` times, at most HTH_WORDS_MAX of them. */
struct hth_words *hth_word_counter_list(const struct hth_word_counter *counter, uint64_t min);

#endif
