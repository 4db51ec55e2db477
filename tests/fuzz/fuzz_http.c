/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_http.c: any bytes as an HTTP request: refused, incomplete, or a request that is read alike
 * from its own bytes alone, and is incomplete without the last of them.
 */
#include "core/limits.h"
#include "net/http_request.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hth_http_request all, own;
    const char *text = (const char *)data;
    int status = hth_http_request_read(text, size, &all);
    HTH_ASSERT(status == 0 || status == 200 || (status >= 400 && status <= 505));
    HTH_ASSERT(status != 0 || size < HTH_HTTP_REQUEST_BYTES_MAX);
    if (status != 200)
        return 0;
    HTH_ASSERT(all.bytes <= size && all.path[0] == '/');
    HTH_ASSERT(hth_http_request_read(text, all.bytes, &own) == 200);
    HTH_ASSERT(memcmp(&all, &own, sizeof(all)) == 0);
    HTH_ASSERT(hth_http_request_read(text, all.bytes - 1, &own) == 0);
    return 0;
}
