/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tfevents.c: records of TensorBoard's event files against the bytes of another writer (a few
 * lines of Python after TensorFlow's description), and CRC32C against RFC 3720.
 */
#include "monitor/tfevents.h"
#include "support/suite.h"

#include "core/bytes.h"

#include <math.h>

TEST(crc_has_the_values_of_its_rfc)
{
    uint8_t zero[32] = {0}, ones[32], up[32];
    (void)state;
    memset(ones, 0xFF, sizeof(ones));
    for (size_t i = 0; i < sizeof(up); i++)
        up[i] = (uint8_t)i;
    assert_int_equal(hth_crc32c(zero, sizeof(zero)), 0x8A9136AA); /* RFC 3720, B.4 */
    assert_int_equal(hth_crc32c(ones, sizeof(ones)), 0x62A8AB43);
    assert_int_equal(hth_crc32c(up, sizeof(up)), 0x46DD794E);
    assert_int_equal(hth_crc32c("123456789", 9), 0xE3069283);
}

static void check(const uint8_t *record, size_t len, const char *hex)
{
    char text[2 * HTH_TFEVENTS_BYTES_MAX + 1];
    hth_hex(record, len, text);
    assert_string_equal(text, hex);
}

TEST(records_have_these_bytes)
{
    uint8_t out[HTH_TFEVENTS_BYTES_MAX];
    const struct hth_tfevents_scalar scalar[] = {
        {"run/loss", 0.5}, {"run/unknown", NAN}, {"run/trainers", 3}};
    (void)state;
    check(out, hth_tfevents_begin(1795770000.25, out),
          "1800000000000000a37f4b2209000010a451c2da411a0d627261696e2e4576656e743a323d6264d8");
    check(out, hth_tfevents_scalars(1795770010, 1290, scalar, 3, out),
          "34000000000000005e33175c09000080a651c2da41108a0a2a260a0f0a0872756e2f6c6f73731500"
          "00003f0a130a0c72756e2f747261696e65727315000040407e559a8c");
    assert_int_equal(hth_tfevents_scalars(1, 2, &scalar[1], 1, out), 0);
}
