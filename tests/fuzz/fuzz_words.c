/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_words.c: any bytes as words.json, and as a text that a list encodes. A list that is read can
 * be written and read again; ids stay below the vocabulary and decode.
 */
#include <string.h>

#include "data/words.h"

#define IDS_MAX 256

static void encode(const struct hth_words *words, const uint8_t *data, size_t size)
{
    int32_t ids[IDS_MAX];
    char text[64];
    uint32_t vocab = HTH_ID_WORD + hth_words_count(words) / 2;
    size_t n = hth_words_encode(words, vocab, (const char *)data, size, ids, IDS_MAX);

    for (size_t i = 0; i < HTH_MIN(n, (size_t)IDS_MAX); i++)
        HTH_ASSERT(ids[i] >= HTH_ID_BYTE && (uint32_t)ids[i] < vocab);
    n = hth_words_decode(words, ids, HTH_MIN(n, (size_t)IDS_MAX), text, sizeof(text));
    HTH_ASSERT(strlen(text) < sizeof(text));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hth_word_counter *counter = hth_word_counter_new();
    struct hth_words *words, *again;
    struct hth_blob *blob;
    struct hth_why why = {""};

    (void)hth_text_ok((const char *)data, size);
    hth_word_counter_add(counter, (const char *)data, size);
    words = hth_word_counter_list(counter, 1);
    encode(words, data, size);
    hth_words_free(words);
    hth_word_counter_free(counter);
    if (hth_words_parse("words.json", data, size, &words, &why) != HTH_OK)
        return 0;
    encode(words, data, size);
    HTH_ASSERT(hth_words_write(words, &blob) == HTH_OK);
    HTH_ASSERT(hth_words_parse("words.json", blob->data, blob->size, &again, &why) == HTH_OK);
    hth_blob_unref(blob);
    hth_words_free(words);
    hth_words_free(again);
    return 0;
}
