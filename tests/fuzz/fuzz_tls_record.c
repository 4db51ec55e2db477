/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_tls_record.c: the input is what a peer puts into its records, as it comes out of their
 * encryption: length (1), type (1), content, again and again. Whatever that is, it ends in data, an
 * end or an alert. The same bytes are then taken for records themselves, which nobody can forge.
 */
#include "core/base.h"
#include "net/record.h"

#include <string.h>

static const uint8_t secret[HTH_RECORD_SECRET_MAX] = {1, 2, 3};

/* False when the connection is over. */
static bool take(struct hth_records *to, uint8_t *record, size_t len)
{
    uint8_t plain[300], type = 0, alert = 0;
    size_t whole = 0, got = 0;
    HTH_ASSERT(hth_records_next(record, len, &whole, &alert) == HTH_OK && whole == len);
    if (hth_records_open(to, record, len, plain, &type, &got, &alert) != HTH_OK) {
        HTH_ASSERT(alert == HTH_RECORD_UNEXPECTED_MESSAGE);
        return false;
    }
    HTH_ASSERT(got < sizeof(plain));
    if (type == HTH_RECORD_DATA)
        return true;
    enum hth_record_event event = hth_records_control(to, type, plain, got, &alert);
    return event == HTH_RECORD_NOTHING || event == HTH_RECORD_ANSWER_UPDATE;
}

static void as_content(const uint8_t *data, size_t size)
{
    struct hth_records from, to;
    uint8_t out[300];
    HTH_ASSERT(hth_records_init(&from, HTH_SUITE_AES_128_GCM_SHA256, secret, secret, false) ==
               HTH_OK);
    HTH_ASSERT(hth_records_init(&to, HTH_SUITE_AES_128_GCM_SHA256, secret, secret, false) ==
               HTH_OK);
    while (size >= 2) {
        size_t len = HTH_MIN((size_t)data[0], size - 2);
        uint8_t type = data[1];
        /* A type of 0 is padding, and the last byte of the content its type. */
        HTH_ASSERT(hth_records_seal(&from, (enum hth_record_type)type, data + 2, len, out) ==
                   HTH_OK);
        if (!take(&to, out, len + HTH_RECORD_EXTRA_BYTES))
            break;
        /* Their writing key follows, as the sender's would. */
        if (memcmp(from.out.secret, to.in.secret, sizeof(to.in.secret)) != 0)
            HTH_ASSERT(hth_records_seal_update(&from, out) == HTH_OK);
        data += 2 + len;
        size -= 2 + len;
    }
    hth_records_clear(&from);
    hth_records_clear(&to);
}

static void as_records(const uint8_t *data, size_t size)
{
    static uint8_t plain[HTH_RECORD_WIRE_BYTES_MAX];
    struct hth_records to;
    uint8_t type, alert = 0;
    size_t len, got;
    HTH_ASSERT(hth_records_init(&to, HTH_SUITE_AES_128_GCM_SHA256, secret, secret, false) ==
               HTH_OK);
    if (hth_records_next(data, size, &len, &alert) == HTH_OK && len > 0 && len <= size)
        HTH_ASSERT(hth_records_open(&to, data, len, plain, &type, &got, &alert) == HTH_E_PROTOCOL);
    hth_records_clear(&to);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    as_content(data, size);
    as_records(data, size);
    return 0;
}
