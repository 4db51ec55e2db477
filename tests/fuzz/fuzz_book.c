/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_book.c: any bytes as codebook.safetensors; a book that is read paints its codes. */
#include "trainer/book_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t rgb[3 * HTH_BOOK_PATCH_MAX * HTH_BOOK_PATCH_MAX];
    struct hth_why why = {""};
    struct hth_book book;

    if (hth_book_file_read("book", data, size, &book, &why) != HTH_OK) {
        HTH_ASSERT(book.centres == NULL);
        return 0;
    }
    uint16_t last = (uint16_t)(book.codes - 1), code;
    hth_book_paint(&book, &last, book.patch, rgb);
    hth_book_encode(&book, rgb, book.patch, &code);
    HTH_ASSERT(code <= last);
    hth_book_clear(&book);
    return 0;
}
