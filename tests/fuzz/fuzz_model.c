/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_model.c: any bytes as model.safetensors; what loads is a whole checkpoint. */
#include "trainer/model_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hth_model_opts opts = HTH_MODEL_OPTS_INIT;
    struct hth_blob bytes = {.data = (uint8_t *)data, .size = size}, *out;
    struct hth_why why = {""};
    struct hth_model_about about;
    struct hth_st_reader *r, *trunk;
    char uid[HTH_UID_TEXT_MAX];

    opts.d = opts.features = opts.classes = 2;
    opts.layers = opts.grid_ndim = 1;
    opts.grid_dim[0] = 2;
    if (hth_model_file_open("m", &bytes, &r, &why) != HTH_OK) {
        HTH_ASSERT(r == NULL && why.text[0] != '\0');
        return 0;
    }
    for (size_t at = 0, before = 0; hth_model_file_next(r, &at, uid); before = at)
        HTH_ASSERT(at > before && at <= hth_st_count(r));
    if (hth_model_file_about("m", r, &about, &why) == HTH_OK &&
        hth_model_file_trunk(r, &opts, &about, &out, &why) == HTH_OK) {
        HTH_ASSERT(hth_st_open(out->data, out->size, &trunk) == HTH_OK);
        hth_st_close(trunk);
        hth_blob_unref(out);
    }
    hth_st_close(r);
    return 0;
}
